"""`fuse`, `check_unfused_operations` and `fusion_report`: what is found, and what is said."""

from __future__ import annotations

import copy
import pickle
import time
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from discover_models import (
    UNSAFE,
    Chain,
    FunctionalRelu,
    InputChanged,
    Parts,
    RawAdd,
    RawResultInSkip,
    ShapeBeforeAdd,
    SharedRelu,
    X,
)
from networks import ALL_NETWORKS, randomize
from stages import silent_jit
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from horizon_plugin.quantization import (
    DeQuantStub,
    QuantStub,
    check_unfused_operations,
    convert,
    fuse,
    fuse_modules,
    fusion_report,
    get_default_qat_qconfig,
    prepare_qat,
)

MODES = {"train": True, "eval": False}


def groups_of(model: nn.Module) -> list[list[str]]:
    return sorted(list(group.names) for group in fusion_report(model).fused)


def reasons_of(model: nn.Module) -> dict[str, str]:
    return {row.name: row.reason for row in fusion_report(model).left}


# --- What is found ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL_NETWORKS)
@pytest.mark.parametrize("mode", MODES)
def test_the_groups_found_in_a_network_are_those_decided_by_hand(name, mode):
    net = randomize(ALL_NETWORKS[name]()).train(MODES[mode])
    x = torch.randn(net.input_shape)
    groups = sorted(net.groups())
    assert sorted(check_unfused_operations(net, (x,)).groups) == groups
    plain = copy.deepcopy(net)
    assert fuse(net, (x,), inplace=True) is net
    assert groups_of(net) == groups
    assert check_unfused_operations(net, (x,)).groups == []
    with torch.no_grad():
        torch.manual_seed(2)
        got = tree_leaves(net(x))
        torch.manual_seed(2)
        for y, expected in zip(got, tree_leaves(plain(x)), strict=True):
            if MODES[mode]:
                assert torch.equal(y, expected)
            else:
                bound = 1e-5 * expected.abs().max().item()
                torch.testing.assert_close(y, expected, rtol=1e-4, atol=bound)


# Model, groups found, and for some modules left alone a part of the reason.
FOUND: list[tuple[type, list[list[str]], dict[str, str]]] = [
    (Chain, [["conv", "bn", "relu"]], {"conv2": "never called", "add": "never called"}),
    (
        RawResultInSkip,
        [],
        {"conv": "used 2 times: 'relu' (ReLU) and +", "relu": "it must have one user"},
    ),
    (
        SharedRelu,
        [["conv", "bn"], ["conv2", "bn2"]],
        {"relu": "'relu' is called 2 times (on 'bn' (BatchNorm2d) and 'bn2' (BatchNorm2d))"},
    ),
    (FunctionalRelu, [["conv", "bn"]], {}),
    (RawAdd, [], {"conv": "+ in the model's forward: write it with a FloatFunctional"}),
    (InputChanged, [["conv", "bn"]], {"add": "changed in place before 'add'"}),
    (ShapeBeforeAdd, [], {"add": "shape in the model's forward", "conv": "shape in the"}),
]


@pytest.mark.parametrize(("cls", "groups", "reasons"), FOUND, ids=[r[0].__name__ for r in FOUND])
@pytest.mark.parametrize("mode", MODES)
def test_safe_groups_are_fused_and_the_rest_is_left_with_its_reason(cls, groups, reasons, mode):
    model = cls().train(MODES[mode])
    fused = fuse(model, (X,))
    assert groups_of(fused) == groups
    left = reasons_of(fused)
    for name, reason in reasons.items():
        assert reason in left[name]
    torch.testing.assert_close(fused(X.clone()), model(X.clone()), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cls", [row[0] for row in UNSAFE])
@pytest.mark.parametrize("mode", MODES)
def test_fuse_never_changes_what_an_awkward_model_computes(cls, mode):
    model = cls().train(MODES[mode])
    plain = copy.deepcopy(model)
    fused = fuse(model, (X,))
    for y, expected in zip(tree_leaves(fused(X)), tree_leaves(plain(X)), strict=True):
        torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)


class TwoConvs(Parts):
    def __init__(self, first: str = "conv") -> None:
        super().__init__()
        self.first = first

    def forward(self, x: Tensor) -> Tensor:
        if self.first == "conv":
            y, z = self.bn(self.conv(x)), self.bn2(self.conv2(x))
        else:
            z, y = self.bn2(self.conv2(x)), self.bn(self.conv(x))
        return self.relu6(self.add.add(y, z))


@pytest.mark.parametrize("first", ["conv", "conv2"])
def test_of_two_convolutions_that_meet_in_an_add_the_later_takes_it(first):
    taker = [["conv2", "bn2"], ["conv", "bn"]][first == "conv2"]
    other = [["conv", "bn"], ["conv2", "bn2"]][first == "conv2"]
    model = TwoConvs(first).eval()
    fused = fuse(model, (X,))
    assert groups_of(fused) == sorted([other, [*taker, "add", "relu6"]])
    torch.testing.assert_close(fused(X), model(X), rtol=1e-5, atol=1e-5)


class Linears(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.bn, self.act = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Hardtanh(0, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.bn(self.fc(x)))


@pytest.mark.parametrize(("shape", "count"), [((4, 6), 1), ((4, 6, 6), 0)])
def test_a_linear_layer_fuses_with_a_batch_norm_on_two_dimensions_only(shape, count):
    fused = fuse(Linears(), (torch.randn(shape),))
    assert len(groups_of(fused)) == count
    assert count or "2-D input only" in reasons_of(fused)["bn"]


def test_an_identity_between_members_is_passed():
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Identity(), nn.BatchNorm2d(3), nn.ReLU()).eval()
    assert groups_of(fuse(model, (X,))) == [["0", "2", "3"]]


def test_one_relu_object_in_two_places_belongs_to_each_place():
    relu = nn.ReLU()
    model = nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 3, 1), relu), nn.Sequential(nn.Conv2d(3, 3, 1), relu)
    )
    assert groups_of(fuse(model, (X,))) == [["0.0", "0.1"], ["1.0", "1.1"]]


def test_an_alias_outside_the_group_leaves_it_alone_with_that_reason():
    model = Chain()
    model.taps = nn.ModuleList([model.conv])
    fused = fuse(model, (X,))
    assert groups_of(fused) == []
    assert "'conv' is also 'taps.0', one module in two places" in reasons_of(fused)["bn"]


def test_modes_that_differ_between_groups_are_each_fused():
    model = nn.Sequential(*(nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)) for _ in "ab"))
    model[0].eval()
    fused = fuse(model, (X,))
    assert [g.kind for g in fusion_report(fused).fused] == ["Conv2d", "ConvBN2d"]


# --- What the planner refuses -------------------------------------------------------------------


class PaddedConv(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.pad(x, (1, 1, 1, 1)))


def set_qconfigs(model: nn.Module) -> None:
    model.conv.qconfig, model.relu.qconfig = get_default_qat_qconfig(), None


REFUSED_BY_THE_PLANNER = {
    "qconfig": (set_qconfigs, "must agree on their qconfig"),
    "inner hook": (lambda m: m.bn.register_forward_hook(lambda *a: None), "hooks on inner members"),
    "modes": (lambda m: m.conv.eval(), "0.conv: eval, 0.bn: train, 0.relu: train"),
    "weight norm": (lambda m: nn.utils.parametrizations.weight_norm(m.conv), "parametrized"),
    "subclass": (lambda m: setattr(m, "conv", PaddedConv(3, 3, 3)), "'0.conv' is a PaddedConv"),
    "statistics": (
        lambda m: (setattr(m, "bn", nn.BatchNorm2d(3, track_running_stats=False)), m.eval()),
        "'0.bn' must have running statistics",
    ),
}


@pytest.mark.parametrize("kind", REFUSED_BY_THE_PLANNER)
def test_what_the_planner_refuses_is_left_alone_and_the_rest_fused(kind):
    change, text = REFUSED_BY_THE_PLANNER[kind]
    model = nn.Sequential(Chain(), Chain())
    change(model[0])
    fused = fuse(model, (X,))
    assert groups_of(fused) == [["1.conv", "1.bn", "1.relu"]]
    assert text in reasons_of(fused)["0.conv"]
    assert any(text in row.reason for row in check_unfused_operations(model, (X,)))


def test_inner_hooks_are_dropped_where_that_is_asked_for():
    model = Chain()
    model.bn.register_forward_hook(lambda *a: None)
    with pytest.warns(UserWarning, match="they are dropped"):
        fused = fuse(model, (X,), allow_inner_hooks=True)
    assert groups_of(fused) == [["conv", "bn", "relu"]]


@pytest.mark.parametrize(
    ("mode", "kind"), [("fuse_bn", "ConvReLU2d"), ("with_bn", "ConvBNReLU2d"), (None, "ConvReLU2d")]
)
def test_the_mode_is_that_of_fuse_modules(mode, kind):
    assert [g.kind for g in fusion_report(fuse(Chain().eval(), (X,), mode=mode)).fused] == [kind]


class Silu(nn.Module):
    def __init__(self, conv: nn.Module, act: nn.Module) -> None:
        super().__init__()
        self.conv, self.act = conv, act

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.conv(x))


def test_sequences_of_the_users_are_found_as_well():
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.SiLU(), nn.Conv2d(3, 3, 1), nn.ReLU())
    config = {"additional_fuser_method_mapping": {(nn.Conv2d, nn.SiLU): Silu}}
    assert check_unfused_operations(model, (X,)).groups == [["2", "3"]]
    fused = fuse(model, (X,), fuse_custom_config_dict=config)
    assert type(fused[0]) is Silu and isinstance(fused[1], nn.Identity)
    assert groups_of(fused) == [["0", "1"], ["2", "3"]]


@pytest.mark.parametrize("call", [fuse, check_unfused_operations])
def test_arguments_are_checked(call):
    for bad in (3, nn.Conv2d):
        with pytest.raises(TypeError, match="'model' must be a module"):
            call(bad, (X,))
    with pytest.raises(ValueError, match=f"{call.__name__}: 'mode' must be one of"):
        call(Chain(), (X,), mode="fold")
    with pytest.raises(TypeError, match=f"{call.__name__}: 'fuse_custom_config_dict' must be"):
        call(Chain(), (X,), fuse_custom_config_dict=3)
    with pytest.raises(TypeError, match="'model' must be a module"):
        fusion_report(3)


# --- Reports ------------------------------------------------------------------------------------


def test_unfused_operations_print_and_say_what_to_call():
    unfused = check_unfused_operations(FunctionalRelu(), (X,))
    assert str(unfused) == (
        "conv (Conv2d): could be fused: fuse_modules(model, [['conv', 'bn']]); 'bn': its result "
        "goes to relu in the model's forward: use an nn.ReLU module, or fuse_fx"
    )
    assert str(check_unfused_operations(fuse(Chain(), (X,)), (X,))) == "nothing is left to fuse"


def test_checking_prints_nothing(capsys):
    check_unfused_operations(RawAdd(), (X,))
    assert capsys.readouterr() == ("", "")


def test_the_report_lists_groups_and_reasons():
    text = str(fusion_report(fuse(SharedRelu(), (X,))))
    assert text.startswith("fused: 2\n  conv, bn -> ConvBN2d\n  conv2, bn2 -> ConvBN2d\n")
    assert "left alone: 3\n" in text and "  relu (ReLU): 'relu' is called 2 times" in text


def test_the_report_works_after_fuse_modules():
    report = fusion_report(fuse_modules(Chain().eval(), ["conv", "bn", "relu"]))
    assert [(g.names, g.kind) for g in report.fused] == [(("conv", "bn", "relu"), "ConvReLU2d")]
    assert report.left == [] and not report.is_searched
    assert "left alone: not searched" in str(report)
    assert fusion_report(Chain()).fused == []


class Stubbed(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.quant, self.body, self.dequant = QuantStub(), body, DeQuantStub()
        self.qconfig = get_default_qat_qconfig()

    def forward(self, x: Tensor) -> Tensor:
        return self.dequant(self.body(self.quant(x)))


COPIES: dict[str, Any] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
}


@pytest.mark.parametrize("how", COPIES)
def test_the_report_survives_copies_and_every_stage(how):
    fused = fuse(Stubbed(TwoConvs()), (X,))
    names = ["body.conv2", "body.bn2", "body.add", "body.relu6"]
    expected = [["body.conv", "body.bn"], names]
    assert groups_of(COPIES[how](fused)) == expected
    prepared = prepare_qat(fused)
    prepared(X)
    converted = convert(prepared.eval())
    for model in (prepared, converted):
        report = fusion_report(COPIES[how](model))
        assert sorted(list(g.names) for g in report.fused) == expected
        assert {g.kind for g in report.fused} == {"ConvBN2d", "ConvBNAddReLU62d"}
        assert {row.name for row in report.left} == {"body.relu"}


def test_names_follow_a_model_that_becomes_a_part_of_another():
    part = fuse(TwoConvs(), (X,))
    whole = nn.Sequential(nn.Identity(), part)
    assert groups_of(whole) == [["1.conv", "1.bn"], ["1.conv2", "1.bn2", "1.add", "1.relu6"]]
    whole.append(nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU()))
    assert groups_of(fuse(whole, (X,)))[-1] == ["2.0", "2.1"]


def test_what_is_fused_later_leaves_the_report():
    model = fuse(SharedRelu(), (X,))
    model.last = nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU())
    model.forward = lambda x: model.last(SharedRelu.forward(model, x))
    again = fuse(model, (X,))
    assert ["last.0", "last.1"] in groups_of(again) and len(groups_of(again)) == 3


def test_a_prepared_model_says_what_remained():
    model = prepare_qat(Stubbed(Chain()).train())
    model(X)
    unfused = check_unfused_operations(model, (X,))
    assert unfused.groups == []
    assert "is prepared already: call fuse_modules before prepare_qat" in str(unfused)


def test_fused_models_script_and_trace_as_before():
    model = fuse(SharedRelu().eval(), (X,))
    for compiled in silent_jit(torch.jit.script, model), silent_jit(torch.jit.trace, model, X):
        torch.testing.assert_close(compiled(X), model(X))


# --- Size ---------------------------------------------------------------------------------------


def test_a_model_of_thousands_of_modules_is_fused_in_seconds():
    count = 700
    model = nn.Sequential(
        *(
            nn.Sequential(nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2), nn.ReLU()).eval()
            for _ in range(count)
        )
    )
    start = time.perf_counter()
    fused = fuse(model.eval(), (torch.randn(1, 2, 2, 2),), inplace=True)
    assert time.perf_counter() - start < 10  # 2,800 modules: about one second alone
    assert len(fusion_report(fused).fused) == count
