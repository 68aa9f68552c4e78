"""Whole networks in training: recomputation, hooks, optimizers, threads, compilation."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from networks import NETWORKS, randomize
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from horizon_plugin.quantization import (
    carry,
    convert,
    fuse_modules,
    get_default_qat_qconfig,
    prepare_qat,
)

Step = Callable[[nn.Module, Tensor], Tensor]


def make(name: str, memory_format: torch.memory_format = torch.channels_last) -> tuple[Any, Tensor]:
    torch.manual_seed(3)
    model = randomize(NETWORKS[name]()).train().to(memory_format=memory_format)
    model = fuse_modules(model, model.groups(), inplace=True)
    model.qconfig = get_default_qat_qconfig()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    x = torch.randn(NETWORKS[name].input_shape).contiguous(memory_format=memory_format)
    return prepare_qat(model, inplace=True), x


def plain(model: nn.Module, x: Tensor) -> Tensor:
    return model(x)


def train(
    model: nn.Module, x: Tensor, optimizer: torch.optim.Optimizer | None = None, call: Step = plain
) -> dict[str, Tensor]:
    """Three steps; every parameter, buffer and last gradient."""
    if optimizer is None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for step in range(3):
        optimizer.zero_grad()
        call(model, x + 0.1 * step).square().mean().backward()
        optimizer.step()
    gradients = {f"{n}.grad": p.grad for n, p in model.named_parameters()}
    return {**copy.deepcopy(model.state_dict()), **gradients}


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert [name for name, value in found.items() if not torch.equal(value, expected[name])] == []


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_a_run_repeats_to_the_bit(name, layout):
    runs = []
    for _ in range(2):
        model, x = make(name, layout)
        runs.append(train(model, x))
    assert_same(*runs)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_the_whole_network_trains_alike_and_saves_next_to_nothing(name, reentrant):
    saved: list[int] = []

    def size(tensor: Tensor) -> Tensor:
        saved.append(tensor.nbytes)
        return tensor

    def recomputed(model: nn.Module, x: Tensor) -> Tensor:
        x = x.requires_grad_()
        saved.clear()
        # The forward pass alone: what is recomputed is saved then.
        with torch.autograd.graph.saved_tensors_hooks(size, lambda tensor: tensor):
            if reentrant:
                return checkpoint(model, x, use_reentrant=True)
            return checkpoint(model, x, use_reentrant=False, context_fn=carry)

    model, x = make(name)
    # The statistics move twice a step: at the forward pass and at its repetition.
    twin, _ = make(name)
    for prepared in (model, twin):
        for module in prepared.modules():
            if isinstance(getattr(module, "momentum", None), float):
                module.momentum = 0.0
    found, expected = train(model, x, call=recomputed), train(twin, x)
    for key in [key for key in expected if "num_batches" in key]:
        assert found.pop(key) == 2 * expected.pop(key)
    gradients = {key for key in expected if key.endswith(".grad")}
    assert_same({k: found[k] for k in gradients}, {k: expected[k] for k in gradients})
    assert sum(saved) <= 2 * x.nbytes


@pytest.mark.parametrize("name", NETWORKS)
def test_saved_tensors_may_travel_and_change_their_layout(name):
    def contiguous(tensor: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        return tensor.contiguous().clone(), tensor.stride()

    def back(packed: tuple[Tensor, tuple[int, ...]]) -> Tensor:
        return packed[0]

    def hooked(model: nn.Module, x: Tensor) -> Tensor:
        with torch.autograd.graph.saved_tensors_hooks(contiguous, back):
            return model(x)

    def on_cpu(model: nn.Module, x: Tensor) -> Tensor:
        with torch.autograd.graph.save_on_cpu():
            return model(x)

    model, x = make(name)
    expected = train(copy.deepcopy(model), x)
    assert_same(train(copy.deepcopy(model), x, call=on_cpu), expected)
    found = train(model, x, call=hooked)
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=1e-4, atol=1e-5, msg=key)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd, fused": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, fused=True),
    "sgd, foreach": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, foreach=True),
    "adam, fused": lambda p: torch.optim.Adam(p, lr=1e-3, fused=True),
    "adamw, foreach": lambda p: torch.optim.AdamW(p, lr=1e-3, foreach=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.01),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_no_forward_meets_weights_from_before_the_step(name, kind):
    model, x = make(name)
    optimizer = OPTIMIZERS[kind](model.parameters())
    train(model, x, optimizer)
    # A copy through the state dict has no memory of earlier weights.
    fresh, _ = make(name)
    fresh.load_state_dict(model.state_dict())
    model.eval(), fresh.eval()
    assert torch.equal(model(x), fresh(x))
    assert torch.equal(convert(model)(x), convert(fresh)(x))


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("training", [False, True])
def test_writes_through_data_are_met_at_the_next_forward(name, training):
    model, x = make(name)
    train(model, x)
    model.train(training)
    twin = copy.deepcopy(model)
    model(x)
    with torch.no_grad():
        for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
            ours.data.mul_(0.75)
            theirs.mul_(0.75)
    if training:
        twin.load_state_dict(model.state_dict())
    assert torch.equal(model(x), twin(x))


def test_two_models_in_two_threads_train_as_one_after_the_other():
    names = ["resnet18", "mobilenet_v2"]
    expected = []
    for name in names:
        expected.append(train(*make(name)))
    starts = [make(name) for name in names]
    found: dict[int, dict[str, Tensor]] = {}

    def work(index: int) -> None:
        torch.set_num_threads(2)
        found[index] = train(*starts[index])

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index in range(2):
        assert_same(found[index], expected[index])


@pytest.mark.parametrize("name", NETWORKS)
def test_a_compiled_network_trains_as_the_eager_one(name):
    model, x = make(name)
    expected = train(copy.deepcopy(model), x)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert_same(train(model, x, call=lambda _, given: compiled(given)), expected)


@pytest.mark.parametrize("shape", [(1, 3, 64, 64), (3, 3, 40, 24), (2, 3, 128, 8)])
@pytest.mark.parametrize("name", NETWORKS)
def test_batches_and_images_of_other_sizes_go_through_the_same_model(name, shape):
    model, x = make(name)
    train(model, x)
    y = model(torch.randn(shape))
    y.square().mean().backward()
    assert torch.isfinite(y).all()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())
    model.eval()
    sample = torch.randn(shape)
    assert torch.equal(convert(model)(sample), model(sample))
