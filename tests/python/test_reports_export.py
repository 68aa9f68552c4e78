"""What went wrong elsewhere with TorchScript files and the integer run."""

from __future__ import annotations

import copy
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from residual import IMAGE, prepared_residual, trained_residual
from stages import reload, script, silent_jit, trace
from torch import Tensor, nn

import horizon_plugin
from horizon_plugin.quantization import (
    DeQuantStub,
    QuantStub,
    convert,
    disable_fake_quant,
    disable_observer,
    get_default_qat_out_qconfig,
    get_default_qat_qconfig,
    prepare_qat,
)

GRAPHS = {"traced": lambda m: trace(m, IMAGE), "scripted": script}
STAGES = {"prepared": lambda m: m, "converted": convert}

LOADER = """
import sys, torch
torch.ops.load_library(sys.argv[1])
for path in sys.argv[2:]:
    case = torch.load(path + ".case", weights_only=True)
    net = torch.jit.load(path)
    for x, y in case:
        assert torch.equal(net(x), y), path
assert not [name for name in sys.modules if name.startswith("horizon")]
print("equal", len(sys.argv) - 2)
"""


def test_files_run_in_a_process_that_has_the_library_and_not_the_package(tmp_path):
    model = trained_residual()
    paths = []
    with torch.no_grad():
        inputs = [IMAGE, torch.randn(3, 3, 9, 8)]
        expected = [(x, model(x)) for x in inputs]
        for stage, to_stage in STAGES.items():
            for graph, to_graph in GRAPHS.items():
                paths.append(str(tmp_path / f"{stage} {graph}.pt"))
                silent_jit(torch.jit.save, to_graph(to_stage(model)), paths[-1])
                torch.save(expected, paths[-1] + ".case")
    library = next((Path(horizon_plugin.__file__).parent / "lib").glob("libhorizon_plugin.*"))
    command = [sys.executable, "-W", "ignore", "-c", LOADER, str(library), *paths]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["equal", "4"]


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("graph", GRAPHS)
def test_a_graph_fixes_no_size_no_batch_and_no_memory_format(graph, stage):
    model = trained_residual()
    with torch.no_grad():
        loaded = reload(GRAPHS[graph](STAGES[stage](model)))
        large = torch.randn(5, 3, 11, 9)
        for x in (large, large[:0], large[:, :, :1, :1]):
            assert torch.equal(loaded(x), model(x))
        channels_last = large.to(memory_format=torch.channels_last)
        assert torch.equal(loaded(channels_last), model(large))


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("graph", GRAPHS)
def test_freezing_and_optimizing_a_graph_keep_the_bits(graph, stage):
    model = trained_residual()
    with torch.no_grad():
        module = GRAPHS[graph](STAGES[stage](model)).eval()
        y = model(IMAGE)
        for change in (torch.jit.freeze, torch.jit.optimize_for_inference):
            changed = silent_jit(change, module)
            for _ in range(3):  # the profiling executor changes its graph between calls
                assert torch.equal(changed(IMAGE), y)


def test_fake_quant_is_active_in_a_loaded_graph_and_has_its_gradient():
    model = trained_residual()
    loaded = reload(script(model))
    off = copy.deepcopy(model).apply(disable_fake_quant).apply(disable_observer)
    x = IMAGE.clone().requires_grad_()
    y = loaded(x)
    assert torch.equal(y, model(IMAGE))
    assert not torch.equal(y, off(IMAGE))
    y.sum().backward()
    assert x.grad.abs().sum() > 0


@pytest.mark.parametrize("graph", GRAPHS)
def test_a_graph_made_with_fake_quant_off_is_the_float_model(graph):
    model = trained_residual()
    on = model(IMAGE)
    model.apply(disable_fake_quant).apply(disable_observer)
    with torch.no_grad():
        y = model(IMAGE)
        assert not torch.equal(y, on)
        assert torch.equal(GRAPHS[graph](model)(IMAGE), y)


class Wrapper(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(2.0 * x) + 1.0


@pytest.mark.parametrize("stage", STAGES)
def test_a_quantized_model_is_a_part_of_a_float_one(stage):
    model = trained_residual()
    with torch.no_grad():
        expected = model(2.0 * IMAGE) + 1.0
        whole = Wrapper(STAGES[stage](model))
        assert torch.equal(whole(IMAGE), expected)
        for to_graph in GRAPHS.values():
            assert torch.equal(to_graph(whole)(IMAGE), expected)


@pytest.mark.parametrize("stage", STAGES)
def test_a_script_of_a_model_that_never_ran_says_what_to_run(stage):
    model = trained_residual()
    fresh = prepared_residual().eval()
    fresh.load_state_dict(model.state_dict())
    fresh = STAGES[stage](fresh)
    with pytest.raises(RuntimeError, match="has not seen an input: run one forward in eval mode"):
        script(fresh)
    fresh(IMAGE)
    assert torch.equal(script(fresh)(IMAGE), model(IMAGE))


def test_inference_mode_works_at_every_step_and_leaves_the_model_trainable():
    model = trained_residual()
    with torch.inference_mode():
        y = model(IMAGE)
        int8 = convert(model)
        outputs = [int8(IMAGE), trace(int8, IMAGE)(IMAGE), script(int8)(IMAGE)]
    outputs += [int8(IMAGE), script(int8)(IMAGE), model(IMAGE).detach()]
    assert all(torch.equal(out, y) for out in outputs)
    model.train()(IMAGE).sum().backward()
    assert model.conv1.weight.grad.isfinite().all()


@pytest.mark.parametrize("stage", STAGES)
def test_threads_that_share_a_model_do_not_mix_their_scales(stage):
    model = trained_residual()
    inputs = [torch.randn(2, 3, 6, 5) for _ in range(6)]
    with torch.no_grad():
        expected = [model(x) for x in inputs]
    runner, different = STAGES[stage](model), []

    def run(k: int) -> None:
        try:
            with torch.no_grad():
                for _ in range(10):
                    if not torch.equal(runner(inputs[k]), expected[k]):
                        different.append(k)
        except Exception as error:  # reported by the main thread
            different.append(error)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert different == []


def test_codes_that_leave_a_model_are_warned_about():
    net = nn.Sequential(QuantStub(), nn.Conv2d(3, 4, 1), DeQuantStub())
    net.qconfig = get_default_qat_qconfig()
    ends_in_codes = copy.deepcopy(net[:2])
    ends_in_codes.qconfig = net.qconfig
    ends_in_floats = copy.deepcopy(ends_in_codes)
    ends_in_floats[1].qconfig = get_default_qat_out_qconfig()
    for model in (net, ends_in_floats):
        model = prepare_qat(model, inplace=True)
        model(IMAGE)
        assert convert(model.eval())(IMAGE).dtype == torch.float32
    model = prepare_qat(ends_in_codes, inplace=True)
    model(IMAGE)
    with pytest.warns(UserWarning, match="the result of 1 leaves the model as uint8 codes"):
        int8 = convert(model.eval())
    assert int8(IMAGE).dtype == torch.uint8


class Im2col(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        quant, conv, dequant = self
        columns = F.unfold(quant(x), 2, padding=1)
        return dequant(conv(columns[:, :, None]))


def test_columns_of_an_image_are_refused_on_codes_as_they_pad_with_code_0():
    net = Im2col(QuantStub(), nn.Conv2d(12, 4, 1), DeQuantStub())
    net.qconfig = get_default_qat_qconfig(backend="x86")
    model = prepare_qat(net, inplace=True)
    model(IMAGE)
    with pytest.raises(ValueError, match="1: 'input' comes from 'unfold', a float op on the res"):
        convert(model.eval())


BAD_INPUTS = {
    "int32": (lambda: IMAGE.int(), "quant: quantize.*: 'x' must be float"),
    "complex": (lambda: IMAGE.to(torch.complex64), "quant: quantize.*: 'x' must be float"),
    "none": (lambda: None, "quant: 'x' must be a floating-point tensor, got NoneType"),
    "list": (lambda: [IMAGE], "quant: 'x' must be a floating-point tensor, got list"),
    "0-d": (lambda: IMAGE[0, 0, 0, 0], r"conv1: .*'input' must be .*, got (shape )?\[\]"),
    "channels": (lambda: IMAGE[:, :2], "conv1: .*'input' must be of 3 channels"),
    "nan": (lambda: torch.full_like(IMAGE, torch.nan), "quantize: 'x' must be free of NaN"),
    "meta": (lambda: IMAGE.to("meta"), "quant: 'x' must be on cpu, where the model is, got meta"),
    "sparse": (lambda: IMAGE.to_sparse(), "quant: 'x' must be a dense .* got torch.sparse_coo"),
}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("bad", BAD_INPUTS)
def test_a_wrong_input_names_the_layer_and_the_next_one_works(bad, stage):
    model = trained_residual()
    runner = STAGES[stage](model)
    make, text = BAD_INPUTS[bad]
    with pytest.raises((TypeError, ValueError, RuntimeError), match=text):
        runner(make())
    assert torch.equal(runner(IMAGE), model(IMAGE))
