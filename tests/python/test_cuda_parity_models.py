"""Whole models on the GPU: mixed precision, CUDA graphs, determinism, files, moves."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from networks import NETWORKS, randomize
from parity import (  # noqa: F401
    DEVICE,
    assert_equal,
    assert_near,
    exact_products,
    needs_device,
    needs_gpu,
)
from stages import reload, script, trace
from torch import Tensor, nn

from horizon_plugin.quantization import (
    convert,
    fuse_modules,
    get_default_qat_qconfig,
    prepare_qat,
)

pytestmark = needs_device
NAMES = list(NETWORKS)


def prepared(name: str, backend: str = "") -> tuple[nn.Module, Tensor]:
    """On the CPU, in train mode."""
    torch.manual_seed(5)
    model = randomize(NETWORKS[name]()).train()
    model = fuse_modules(model, model.groups(), inplace=True)
    model.qconfig = get_default_qat_qconfig(backend=backend)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return prepare_qat(model, inplace=True), torch.randn(NETWORKS[name].input_shape)


def step(model: nn.Module, x: Tensor, optimizer: torch.optim.Optimizer) -> Tensor:
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def trained(model: nn.Module, x: Tensor, steps: int = 2) -> dict[str, Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for _ in range(steps):
        step(model, x, optimizer)
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("name", NAMES)
def test_networks_compute_and_convert_to_the_same_bits(name: str) -> None:
    model, x = prepared(name)
    trained(model, x, steps=1)
    model.eval()
    there = copy.deepcopy(model).to(DEVICE)
    with torch.no_grad():
        expected = model(x)
        assert_equal(there(x.to(DEVICE)), expected)
        int8 = convert(there)
        assert_equal(int8(x.to(DEVICE)), expected)
        here = convert(model)
        assert_equal(dict(int8.state_dict()), dict(here.state_dict()))
        assert torch.equal(int8.cpu()(x), expected)
        assert_equal(here.to(DEVICE)(x.to(DEVICE)), expected)


@pytest.mark.parametrize("backend", ["horizon", "x86"])
@pytest.mark.parametrize("name", NAMES)
def test_the_first_step_moves_ranges_and_statistics_alike(name: str, backend: str) -> None:
    model, x = prepared(name, backend)
    there = copy.deepcopy(model).to(DEVICE)
    first = next(n for n, _ in model.named_buffers() if n.endswith("running_mean"))
    with torch.no_grad():
        expected, found = model(x), there(x.to(DEVICE))
    # Codes next to a boundary differ, and the layers after them; the first layer has none before.
    assert_near(found, expected, 0.1)
    assert_near(dict(there.named_buffers())[first], dict(model.named_buffers())[first])
    for (n, a), (_, b) in zip(there.named_buffers(), model.named_buffers(), strict=True):
        if not b.dtype.is_floating_point:
            assert torch.equal(a.cpu(), b), n
        elif n.endswith(("min_val", "max_val", "scale")):
            assert_near(a, b, 5e-2)


def test_training_goes_on_after_moves_between_devices() -> None:
    model, x = prepared("resnet18")
    trained(model, x, steps=1)
    before = copy.deepcopy(model.state_dict())
    model.to(DEVICE).to("cpu")
    assert all(torch.equal(v, before[n]) for n, v in model.state_dict().items())
    trained(model.to(DEVICE), x.to(DEVICE), steps=1)
    assert all(v.device.type == DEVICE.type for v in model.state_dict().values())
    again, _ = prepared("resnet18")
    again.load_state_dict(model.state_dict())
    model.eval()
    again.eval()
    with torch.no_grad():
        assert_equal(model(x.to(DEVICE)), again(x))


@pytest.mark.parametrize("name", NAMES)
def test_two_runs_give_the_same_bits(name: str) -> None:
    states = []
    for _ in range(2):
        model, x = prepared(name)
        states.append(trained(model.to(DEVICE), x.to(DEVICE)))
    assert states[0].keys() == states[1].keys()
    assert [n for n, v in states[0].items() if not torch.equal(v, states[1][n])] == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_mixed_precision_trains(dtype: torch.dtype) -> None:
    model, x = prepared("resnet18")
    model, x = model.to(DEVICE), x.to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    scaler = torch.amp.GradScaler(DEVICE.type, enabled=dtype == torch.float16)
    losses = []
    for _ in range(6):
        optimizer.zero_grad()
        with torch.autocast(DEVICE.type, dtype):
            loss = model(x).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert losses[-1] < losses[0]
    model.eval()
    with torch.no_grad():
        assert_equal(convert(model)(x), model(x).cpu())


@pytest.mark.parametrize("kind", ["trace", "script"])
@pytest.mark.parametrize("name", NAMES)
def test_files_run_on_the_device_and_on_the_cpu(name: str, kind: str) -> None:
    model, x = prepared(name)
    trained(model, x, steps=1)
    with torch.no_grad():
        int8 = convert(model.eval()).to(DEVICE)
        expected = model(x)
        module = trace(int8, x.to(DEVICE)) if kind == "trace" else script(int8)
        assert_equal(module(x.to(DEVICE)), expected)
        assert_equal(reload(module)(x.to(DEVICE)), expected)


def test_an_empty_batch_passes() -> None:
    model, x = prepared("resnet18")
    trained(model, x, steps=1)
    there = copy.deepcopy(model.eval()).to(DEVICE)
    with torch.no_grad():
        assert there(x[:0].to(DEVICE)).shape == model(x[:0]).shape
        assert convert(there)(x[:0].to(DEVICE)).shape == model(x[:0]).shape


@needs_gpu
def test_a_training_step_does_not_wait_for_the_gpu() -> None:
    model, x = prepared("resnet18")
    model, x = model.to(DEVICE), x.to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step(model, x, optimizer)
    torch.cuda.set_sync_debug_mode("error")
    try:
        step(model, x, optimizer)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@needs_gpu
@pytest.mark.parametrize("name", NAMES)
def test_a_captured_training_step_is_the_eager_one(name: str) -> None:
    model, x = prepared(name)
    model, x = model.to(DEVICE), x.to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step(model, x, optimizer)
    torch.cuda.current_stream().wait_stream(stream)
    eager = copy.deepcopy(model)
    eager_optimizer = torch.optim.SGD(eager.parameters(), lr=0.01)

    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        model(x).square().mean().backward()
        optimizer.step()
    before = copy.deepcopy(dict(model.state_dict()))
    assert [n for n, v in eager.state_dict().items() if not torch.equal(v, before[n])] == []
    for _ in range(2):
        graph.replay()
        step(eager, x, eager_optimizer)
    found: dict[str, Any] = dict(model.state_dict())
    different = [n for n, v in eager.state_dict().items() if not torch.equal(v, found[n])]
    assert different == []


@needs_gpu
def test_a_captured_integer_model_is_the_eager_one() -> None:
    model, x = prepared("resnet18")
    trained(model, x, steps=1)
    int8 = convert(model.eval()).to(DEVICE)
    still = x.to(DEVICE)
    with torch.no_grad():
        expected = int8(still).clone()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = int8(still)
        graph.replay()
    assert torch.equal(result, expected)
