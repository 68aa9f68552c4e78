"""What went wrong elsewhere with training state, checkpoints, copies and settings."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from plain import ranges
from residual import GROUPS, IMAGE, Residual, fused_residual, prepared_residual, trained_residual
from stages import reload, script, trace
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune

from horizon_plugin.nn import intrinsic
from horizon_plugin.quantization import (
    DeQuantStub,
    FusionError,
    QuantStub,
    convert,
    freeze_bn_stats,
    fuse_modules,
    get_default_qat_qconfig,
    prepare_qat,
    unfreeze_bn_stats,
)

STORED = Path(__file__).parents[1] / "data" / "prepared_v1.pt"


def prepare(net: nn.Module) -> nn.Module:
    net.qconfig = get_default_qat_qconfig()
    return prepare_qat(net.train(), inplace=True)


# --- Ranges and statistics --------------------------------------------------------------------


def test_validation_moves_no_buffer():
    model = trained_residual()
    before = copy.deepcopy(model.state_dict())
    model(10 * IMAGE)
    with torch.no_grad():
        model(10 * IMAGE)
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]), key


def test_freezing_covers_batch_norms_inside_groups_and_on_their_own():
    net = nn.Sequential(
        QuantStub(), nn.BatchNorm2d(3), nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), DeQuantStub()
    )
    fuse_modules(net, [2, 3], inplace=True)
    model = prepare(net)
    model(IMAGE)
    means = [model[1].running_mean, model[2].bn.running_mean]
    before, ranges_before = [m.clone() for m in means], ranges(model)
    freeze_bn_stats(model)
    for _ in range(2):
        model(2 * IMAGE + 1)
        model.train()
    assert all(torch.equal(m, b) for m, b in zip(means, before, strict=True))
    assert model[1].num_batches_tracked == model[2].bn.num_batches_tracked == 1
    after = ranges(model)
    assert all(after[key] != ranges_before[key] for key in after if "max_val" in key)
    unfreeze_bn_stats(model)
    model(2 * IMAGE + 1)
    assert not any(torch.equal(m, b) for m, b in zip(means, before, strict=True))


def test_fusing_again_changes_no_range_and_is_refused_after_prepare():
    model = trained_residual()
    before = ranges(model)
    with pytest.warns(UserWarning, match="is fused already: this list changes nothing"):
        assert fuse_modules(model, GROUPS, inplace=True) is model
    assert ranges(model) == before
    assert before["add.activation_post_process.observed"] == 1
    unfused = prepare(Residual())
    unfused(IMAGE)
    before = ranges(unfused)
    with pytest.raises(FusionError, match="'conv1' is prepared already: call fuse_modules before"):
        fuse_modules(unfused, GROUPS, inplace=True)
    assert ranges(unfused) == before


class Checkpointed(Residual):
    options: dict

    def block(self, x: Tensor) -> Tensor:
        return self.bn3(self.up(F.max_pool2d(self.relu1(self.bn1(self.conv1(x))), 1)))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.utils.checkpoint.checkpoint(self.block, self.quant(x), **self.options)
        return self.dequant(x)


@pytest.mark.parametrize("options", [{"use_reentrant": False}, {"use_reentrant": True}], ids=str)
def test_checkpointing_without_the_carry_context_says_how_to_give_it(options):
    net = Checkpointed()
    net.options = options
    model = prepared_residual(net)
    y = model(IMAGE.clone().requires_grad_())
    text = r"(conv1|up): 'input' was quantized at an earlier call.* context_fn=carry"
    with pytest.raises(RuntimeError, match=text):
        y.sum().backward()


# --- Weights that are computed from others ----------------------------------------------------


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
def test_a_weight_norm_is_refused_by_fuse_and_prepare_and_works_once_removed(old):
    apply = torch.nn.utils.weight_norm if old else parametrizations.weight_norm
    net = Residual()
    expected = net.conv1.weight.detach().clone()
    net.conv1 = apply(net.conv1)
    with pytest.raises(FusionError, match=r"'conv1' .* first"):
        fuse_modules(net, GROUPS, inplace=True)
    with pytest.raises(ValueError, match="prepare_qat: conv1: its weight is computed by a param"):
        prepare(net)
    if old:
        torch.nn.utils.remove_weight_norm(net.conv1)
    else:
        parametrize.remove_parametrizations(net.conv1, "weight")
    model = trained_residual(net)
    torch.testing.assert_close(model.conv1.weight, expected)
    assert torch.equal(convert(model)(IMAGE), model(IMAGE))


def test_a_weight_that_is_recomputed_after_prepare_is_never_deployed_stale():
    model = trained_residual()
    prune.l1_unstructured(model.conv1, "weight", 0.5)
    model(IMAGE)
    with pytest.raises(ValueError, match="convert: conv1: its weight is pruned"):
        convert(model)
    prune.remove(model.conv1, "weight")
    int8 = convert(model)
    assert (int8.conv1.weight == 0).float().mean() >= 0.5
    assert torch.equal(int8(IMAGE), model(IMAGE))

    model = trained_residual()
    parametrizations.weight_norm(model.up)
    model(IMAGE)
    with pytest.raises(ValueError, match="convert: up: its weight is computed by a parametriz"):
        convert(model)

    model = trained_residual()
    prune.l1_unstructured(model.add, "weight", 0.5)
    with pytest.raises(RuntimeError, match="add: its weight is set by a hook"):
        model(IMAGE)


# --- Settings ---------------------------------------------------------------------------------


def test_a_group_whose_members_are_left_float_stays_float_through_convert():
    net = nn.Sequential(
        QuantStub(),
        nn.Conv2d(3, 3, 1),
        DeQuantStub(),
        nn.Conv2d(3, 4, 1),
        nn.BatchNorm2d(4),
        nn.ReLU6(),
        QuantStub(),
        nn.Conv2d(4, 2, 1),
        DeQuantStub(),
    ).train()
    for i in (3, 4, 5):
        net[i].qconfig = None
    fuse_modules(net, [3, 4, 5], inplace=True)
    model = prepare(net)
    model(IMAGE)
    model.eval()
    int8 = convert(model)
    assert type(model[3].module) is type(int8[3].module) is intrinsic.ConvBNReLU62d
    with torch.no_grad():
        y = model(IMAGE)
        for stage in (int8, script(int8), trace(int8, IMAGE)):
            assert torch.equal(stage(IMAGE), y)


def test_presets_may_differ_between_layers():
    net = fused_residual()
    for layer in (net.quant, net.add):
        layer.qconfig = get_default_qat_qconfig(backend="x86")
    model = prepare_qat(net, inplace=True)
    model(IMAGE)
    model.eval()
    grids = {
        name: model.get_submodule(name).activation_post_process.dtype
        for name in ("quant", "conv1", "add", "up")
    }
    assert grids == {"quant": "quint8", "conv1": "qint8", "add": "quint8", "up": "qint8"}
    with torch.no_grad():
        y = model(IMAGE)
        int8 = convert(model)
        for stage in (int8, script(model), script(int8), trace(int8, IMAGE)):
            assert torch.equal(stage(IMAGE), y)


# --- Copies and files -------------------------------------------------------------------------


def saved_and_loaded(model: nn.Module) -> nn.Module:
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


COPIES = {
    "deepcopy": copy.deepcopy,
    "deepcopy twice": lambda m: copy.deepcopy(copy.deepcopy(m)),
    "pickle": lambda m: pickle.loads(pickle.dumps(m)),
    "torch.save": saved_and_loaded,
}
STAGES = {
    "fused": lambda: fused_residual().eval(),
    "prepared": trained_residual,
    "converted": lambda: convert(trained_residual()),
}


@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("stage", STAGES)
def test_copies_of_every_stage_run_and_are_bit_equal(stage, way):
    model = STAGES[stage]()
    expected = model(IMAGE)
    other = COPIES[way](model)
    assert type(other) is type(model)
    assert isinstance(other, Residual)
    assert torch.equal(other(IMAGE), expected)
    theirs, ours = (m.state_dict(keep_vars=True) for m in (other, model))
    assert not {id(t) for t in theirs.values()} & {id(t) for t in ours.values()}
    if stage == "prepared":
        assert torch.equal(convert(other)(IMAGE), expected)


@pytest.mark.parametrize("way", COPIES)
def test_copies_in_the_middle_of_training_go_on_alike(way):
    model = prepared_residual()
    model(IMAGE).sum().backward()
    other = COPIES[way](model)
    for m in (model, other):
        m.zero_grad()
        m(2 * IMAGE).square().sum().backward()
    assert ranges(other) == ranges(model)
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad)


class WithLock(Residual):
    """Says itself what to pickle, as models that hold locks or files do."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()

    def __getstate__(self) -> dict:
        return {k: v for k, v in self.__dict__.items() if k != "lock"}

    def __setstate__(self, state: dict) -> None:
        super().__setstate__(state)
        self.lock = threading.Lock()


def test_a_models_own_pickling_is_honoured():
    model = trained_residual(WithLock())
    for stage in (model, convert(model)):
        for way in COPIES.values():
            other = way(stage)
            assert other.lock is not stage.lock
            assert torch.equal(other(IMAGE), model(IMAGE))


def test_ranges_and_constants_keep_their_dtype_when_the_model_changes_its_own():
    model = trained_residual()
    int8 = convert(model)
    expected = int8(IMAGE)
    before = {k: v.dtype for k, v in int8.state_dict().items()}
    for change in (nn.Module.float, nn.Module.half, nn.Module.bfloat16, nn.Module.double):
        assert torch.equal(change(int8)(IMAGE), expected)
    assert {k: v.dtype for k, v in int8.state_dict().items()} == before
    quantizer = model.half().conv1.activation_post_process
    assert model.conv1.weight.dtype == torch.float16
    assert {b.dtype for b in quantizer.buffers()} == {torch.float32, torch.int32, torch.int64}


def test_a_stored_prepared_state_dict_of_version_1_loads_bit_equal():
    """`tests/data/prepared_v1.pt` was written by version 0.1 of the package, with

    torch.manual_seed(1); model = prepared_residual(); three `train_steps` on IMAGE; then
    torch.save({"state": model.state_dict(), "input": IMAGE, "output": model.eval()(IMAGE)}, path)

    It is never written again: a change that breaks this test breaks the files that users have.
    """
    assert STORED.stat().st_size < 20_000
    stored = torch.load(STORED, weights_only=True)
    state = stored["state"]
    versions = {m: v["version"] for m, v in state._metadata.items()}
    assert versions["conv1"] == versions["conv1.activation_post_process"] == 1
    model = prepared_residual().eval()
    assert not torch.equal(model(stored["input"]), stored["output"])
    model.load_state_dict(state, strict=True)
    assert torch.equal(model(stored["input"]), stored["output"])
    assert torch.equal(convert(model)(stored["input"]), stored["output"])
    assert torch.equal(reload(script(model))(stored["input"]), stored["output"])
    assert {m: v["version"] for m, v in model.state_dict()._metadata.items()} == versions
