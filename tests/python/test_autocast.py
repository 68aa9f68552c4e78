"""Mixed precision: groups under autocast, and half inputs beside float32 parameters."""

from __future__ import annotations

import copy

import pytest
import torch
from fused_group import (
    CONV,
    DIFFERENTIABLE,
    LINEAR,
    NONE,
    RELU6,
    TRANSPOSED,
    Group,
    Quantizer,
    copies,
    error,
)
from residual import IMAGE, prepared_residual, trained_residual
from torch import Tensor, nn

from horizon_plugin.quantization import (
    DeQuantStub,
    FloatFunctional,
    QuantStub,
    convert,
    fuse_modules,
    get_default_qat_qconfig,
    prepare_qat,
)

HALVES = [torch.bfloat16, torch.float16]
GROUPS = [
    Group(add=True, bias=True),
    Group(bn=False, act=NONE, bias=True, channels_last=True),
    Group(train=False, act=RELU6),
    Group(base=TRANSPOSED, stride=(2, 2), bias=True),
    Group(base=LINEAR, add=True, batch=16),
    Group(base=LINEAR, bn=False, bias=True),
]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Small tensors: a second thread only waits, which is slow on a busy machine."""
    torch.set_num_threads(1)


def step(
    group: Group, t: dict[str, Tensor | None], quantizer: Quantizer
) -> tuple[Tensor, dict[str, Tensor]]:
    y = group.fused(t, quantizer, quantize_weight=True)[0]
    y.backward(torch.linspace(-1, 1, y.numel()).reshape(y.shape).to(y.dtype))
    return y.detach(), {n: t[n].grad for n in DIFFERENTIABLE if t[n] is not None}


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_autocast_is_a_cast_of_input_and_skip_in_front_of_the_op(
    group: Group, dtype: torch.dtype
) -> None:
    tensors = group.tensors()
    ours, plain = copies(tensors), copies(tensors)
    q, p = Quantizer(), Quantizer()
    with torch.autocast("cpu", dtype):
        y, grads = step(group, ours, q)
    cast = dict(plain)
    for name in ("input", "skip"):
        if plain[name] is not None:
            cast[name] = plain[name].to(dtype)
            cast[name].retain_grad()
    expected, _ = step(group, cast, p)
    assert y.dtype == dtype
    assert torch.equal(y, expected)
    for name, grad in grads.items():
        assert grad.dtype == torch.float32, name
        assert torch.equal(grad, plain[name].grad), name
    for name, state in q.state.items():
        assert state.dtype == p.state[name].dtype
        assert torch.equal(state, p.state[name]), name
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        if ours[name] is not None:
            assert torch.equal(ours[name], plain[name]), name


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_a_group_under_autocast_follows_the_float32_one(group: Group, dtype: torch.dtype) -> None:
    group = group.but(act=NONE)  # no kink, on whose other side a rounded value may fall
    tensors = group.tensors()
    wide, half = copies(tensors), copies(tensors)
    _, expected = step(group, wide, p := Quantizer(fake_quantize=False))
    with torch.autocast("cpu", dtype):
        _, grads = step(group, half, q := Quantizer(fake_quantize=False))
    # 2^-8 and 2^-11 are half a step of a mantissa; sums of many products hold a few.
    bound = 0.05 if dtype == torch.bfloat16 else 0.01
    for name, grad in grads.items():
        if name == "bias" and group.bn and group.train:
            assert not grad.any()
            continue
        assert error(grad, expected[name]) < bound, name
    assert float(q.min_val) == pytest.approx(float(p.min_val), abs=0.05)
    assert float(q.max_val) == pytest.approx(float(p.max_val), rel=0.02)


@pytest.mark.parametrize("dtype", [*HALVES, torch.float64], ids=str)
@pytest.mark.parametrize("base", [CONV, TRANSPOSED, LINEAR])
def test_float32_weights_beside_another_input_are_quantized_in_float32(
    base: int, dtype: torch.dtype
) -> None:
    group = Group(base=base, bn=False, act=NONE, bias=True)
    t = group.tensors()
    x = t["input"].to(dtype)
    y = group.fused({**t, "input": x}, None, quantize_weight=True)[0]
    on_grid = torch.ops.horizon.fake_quantize_weight(t["weight"], base, 1)
    assert y.dtype == dtype
    assert torch.equal(y, group.convolution(x, on_grid.to(dtype), t["bias"].to(dtype)))


def test_a_backward_pass_inside_the_region_is_not_cast_again() -> None:
    group = Group(base=LINEAR, dtype=torch.float64, batch=16)
    tensors = group.tensors()
    _, expected = step(group, copies(tensors), Quantizer())
    with torch.autocast("cpu", torch.bfloat16):
        y, grads = step(group, copies(tensors), Quantizer())
    assert y.dtype == torch.float64  # as PyTorch's ops, which leave float64 alone
    for name, grad in grads.items():
        assert torch.equal(grad, expected[name]), name


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_opcheck_passes_with_half_inputs_and_float32_parameters(
    group: Group, dtype: torch.dtype
) -> None:
    t = group.tensors()
    for name in ("input", "skip"):
        t[name] = t[name].to(dtype) if t[name] is not None else None
    arguments = group.arguments(copies(t), Quantizer(), quantize_weight=True)
    torch.library.opcheck(torch.ops.horizon.fused.default, (), arguments)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_prepared_models_train_under_autocast_with_a_grad_scaler(dtype: torch.dtype) -> None:
    model = prepared_residual()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=dtype == torch.float16)
    losses = []
    for _ in range(8):
        with torch.autocast("cpu", dtype):
            y = model(IMAGE)
            loss = (y.float() - 0.5).square().mean()
        assert y.dtype == dtype
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
    state = model.state_dict()
    assert {v.dtype for v in state.values() if v.is_floating_point()} == {torch.float32}
    assert all(v.isfinite().all() for v in state.values())


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_prepared_eval_keeps_its_bits_under_autocast(dtype: torch.dtype) -> None:
    model = trained_residual()
    expected = model(IMAGE)
    int8 = convert(copy.deepcopy(model))
    with torch.autocast("cpu", dtype):
        assert torch.equal(model(IMAGE), expected)
        assert torch.equal(int8(IMAGE), expected)


class Mixed(nn.Module):
    """A float32 skip, from the stub, beside a result that autocast makes half."""

    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant, self.add = QuantStub(), DeQuantStub(), FloatFunctional()
        self.first, self.second = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.quant(x)
        return self.dequant(self.add.add(self.second(self.first(x)), x))


@pytest.mark.parametrize("fused", [False, True])
def test_operands_of_an_add_may_differ_in_dtype_under_autocast(fused: bool) -> None:
    net = Mixed().train()
    if fused:
        fuse_modules(net, ["second", "add"], inplace=True)
    net.qconfig = get_default_qat_qconfig()
    model = prepare_qat(net, inplace=True)
    with torch.autocast("cpu", torch.bfloat16):
        y = model(IMAGE)
    y.float().sum().backward()
    assert y.isfinite().all()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_compiled_models_follow_autocast() -> None:
    model = prepared_residual()
    other = copy.deepcopy(model)
    compiled = torch.compile(other, backend="aot_eager", fullgraph=False)
    with torch.autocast("cpu", torch.bfloat16):
        y, z = model(IMAGE), compiled(IMAGE)
    assert z.dtype == torch.bfloat16
    assert torch.equal(y, z)
    y.float().square().sum().backward()
    z.float().square().sum().backward()
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad)
