"""Every fused group on the GPU against the CPU: a training step, eval mode, the integer layer."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from fuse_models import PATTERNS, Chain, Pattern, make_base, make_input, names_of, pattern_id
from fused_group import CONV, LINEAR, TRANSPOSED, Group, Quantizer, on_grid
from parity import (  # noqa: F401
    DEVICE,
    assert_equal,
    assert_near,
    exact_products,
    flat,
    needs_device,
    on_both,
)
from torch import Tensor, nn

from horizon_plugin.quantization import (
    DeQuantStub,
    QuantStub,
    convert,
    fuse_modules,
    get_default_qat_qconfig,
    prepare_qat,
)

pytestmark = needs_device
GROUPS = [
    Group(base=base, bn=bn, add=add, act=act, bias=not bn)
    for base, bn, add, act in [
        (CONV, True, True, 2),
        (CONV, False, False, 0),
        (TRANSPOSED, True, False, 1),
        (LINEAR, True, True, 1),
        (LINEAR, False, False, 2),
    ]
]
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def one_step(group: Group, t: dict[str, Any], g: Tensor, quantizer: dict[str, Any] | None) -> Any:
    """The operator's results, and the gradients of all that has one."""
    quantizer = None if quantizer is None else Quantizer(**quantizer)
    y, scale, _ = group.fused(t, quantizer, quantize_weight=quantizer is not None)
    leaves = [v for v in t.values() if v is not None and v.requires_grad]
    gradients = torch.autograd.grad(y, leaves, g)
    return [y, *gradients, *([scale] if quantizer else [])]


@pytest.mark.parametrize("quantized", [False, True], ids=["float", "quantized"])
@pytest.mark.parametrize("layout", ["contiguous", "channels last"])
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("train", [False, True], ids=["frozen", "statistics"])
@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_a_step_of_the_operator_is_near(
    group: Group, train: bool, dtype: torch.dtype, layout: str, quantized: bool
) -> None:
    group = group.but(train=train, dtype=dtype, channels_last=layout == "channels last")
    t = group.tensors()
    with torch.no_grad():
        g = torch.randn_like(group.fused(group.tensors())[0])
    for name in ("input", "weight", "bias", "bn_weight", "bn_bias", "skip"):
        if t[name] is not None:
            t[name].requires_grad_()
    # Outputs on a coarse grid may differ by one code where a value lies next to a boundary, so that
    # the grid here is so fine that a code is less than the tolerance.
    state = None
    if quantized:
        state = {**Quantizer().state, "observe": True, "fake_quantize": False}
        state["observed"] = torch.tensor(0)
    found, expected = on_both(one_step, group, t, g, state)
    assert_near(found[0], expected[0], TOLERANCE[dtype])
    assert_near(found[1][1], expected[1][1], TOLERANCE[dtype])
    if quantized:
        assert_near(found[1][3], expected[1][3], TOLERANCE[dtype])


@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_fake_quantized_outputs_differ_by_one_code_at_boundaries_alone(group: Group) -> None:
    t = group.tensors()
    t["input"] = on_grid(t["input"], 0.05, 128)
    t["input_scale"], t["input_zero_point"] = (
        torch.tensor(0.05),
        torch.tensor(128, dtype=torch.int32),
    )

    def forward(t: dict[str, Any], q: dict[str, Any]) -> Any:
        return group.fused(t, Quantizer(**q), quantize_weight=True)

    (found, _, _), (expected, _, _) = on_both(forward, t, Quantizer().state)
    scale = expected[1]
    assert_near(found[1], scale)
    assert_equal(found[2], expected[2])
    codes = (found[0].cpu() / found[1].cpu() - expected[0] / scale).round().abs()
    assert codes.max() <= 1
    assert (codes != 0).double().mean() <= 1e-2


@pytest.mark.parametrize("batch", [0, 1])
def test_empty_batches_and_single_images_are_near(batch: int) -> None:
    group = Group(batch=batch, add=True, act=2, train=batch > 0)
    t = group.tensors()
    found, expected = on_both(lambda t: group.fused(t)[0], t)
    assert_near(found[0], expected[0])


class Quantized(nn.Module):
    """A chain between stubs; the operand of the add is quantized by itself."""

    def __init__(self, pattern: Pattern) -> None:
        super().__init__()
        self.quant, self.quant_skip, self.dequant = QuantStub(), QuantStub(), DeQuantStub()
        self.chain = Chain(make_base(pattern), pattern)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        return self.dequant(self.chain(self.quant(x), self.quant_skip(skip)))


def prepared(pattern: Pattern, backend: str) -> tuple[nn.Module, Tensor, Tensor]:
    model = Quantized(pattern).train()
    x = make_input(pattern)
    with torch.no_grad():
        skip = torch.randn_like(copy.deepcopy(model.chain.base)(x))
    fuse_modules(model, [f"chain.{name}" for name in names_of(pattern)], inplace=True)
    model.qconfig = get_default_qat_qconfig(backend=backend)
    return prepare_qat(model, inplace=True), x, skip


def train(model: nn.Module, x: Tensor, skip: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    model(x, skip).square().sum().backward()
    gradients = {
        f"{name}.grad": p.grad for name, p in model.named_parameters() if p.grad is not None
    }
    return {**gradients, **copy.deepcopy(model.state_dict())}


@pytest.mark.parametrize("backend", ["horizon", "x86"])
@pytest.mark.parametrize("pattern", PATTERNS, ids=pattern_id)
def test_a_prepared_group_trains_alike_and_converts_to_the_same_bits(
    pattern: Pattern, backend: str
) -> None:
    model, x, skip = prepared(pattern, backend)
    there = copy.deepcopy(model).to(DEVICE)
    expected = train(model, x, skip)
    found = train(there, x.to(DEVICE), skip.to(DEVICE))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        # A code more or less where a value lies next to a boundary moves a gradient by a little.
        assert_near(found[name], value, 5e-3 if name.endswith(".grad") else 1e-5)

    model.eval()
    there.load_state_dict(model.state_dict())
    there.eval()
    with torch.no_grad():
        here = model(x, skip)
        assert_equal(there(x.to(DEVICE), skip.to(DEVICE)), here)
        assert_equal(convert(there)(x.to(DEVICE), skip.to(DEVICE)), here)
        moved = convert(model).to(DEVICE)
        assert_equal(moved(x.to(DEVICE), skip.to(DEVICE)), here)
        assert torch.equal(moved.cpu()(x, skip), here)
