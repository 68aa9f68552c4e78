"""The fused op with quantization: against a chain of torch's straight-through ops."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable

import pytest
import torch
from fused_group import (
    CONV,
    DIFFERENTIABLE,
    HORIZON,
    LINEAR,
    NONE,
    RELU,
    RELU6,
    TENSORRT,
    TRANSPOSED,
    X86,
    Group,
    Quantizer,
    copies,
    error,
    on_grid,
)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Small tensors: a second thread only waits, which is slow on a busy machine."""
    torch.set_num_threads(1)


Tensors = dict[str, "torch.Tensor | None"]


def straight_through(
    y: torch.Tensor, scale: torch.Tensor, zero_point: int, low: int, high: int
) -> torch.Tensor:
    """torch.fake_quantize in y's precision (torch rounds fp64 results to fp32)."""
    if y.dtype == torch.float32 and scale.dim() == 0:
        zero = torch.tensor(zero_point, dtype=torch.int32)
        return torch.fake_quantize_per_tensor_affine(y, scale, zero, low, high)
    code = torch.round(y.detach() * (1 / scale).to(y.dtype)) + zero_point
    value = (code.clamp(low, high) - zero_point) * scale.to(y.dtype)
    return value + (y - y.detach()) * ((code >= low) & (code <= high))


def straight_through_weight(group: Group, weight: torch.Tensor) -> torch.Tensor:
    """Per-channel abs-max grid, codes in [-127, 127], identity gradient."""
    w = weight.detach()
    if group.base == TRANSPOSED:
        ins, outs, kh, kw = w.shape
        rows = w.reshape(group.groups, ins // group.groups, outs, kh, kw).transpose(1, 2)
        shape = rows.shape
        rows = rows.reshape(group.groups * outs, -1)
    else:
        rows = w.reshape(w.shape[0], -1)
    scale = (rows.float().abs().amax(1) / 127).clamp_min(2.0**-23)
    rows = straight_through(rows, scale[:, None], 0, -127, 127)
    if group.base == TRANSPOSED:
        rows = rows.reshape(shape).transpose(1, 2)
    return weight + (rows.reshape(w.shape) - w)


def next_range(quantizer: Quantizer, y: torch.Tensor) -> None:
    """Moves a quantizer's range by one batch, in place, with doubles rounded once."""
    lo, hi = float(y.min().float()), float(y.max().float())
    if quantizer.observed == 0:
        quantizer.min_val.fill_(lo), quantizer.max_val.fill_(hi)
    else:
        c = float(torch.tensor(quantizer.averaging_constant, dtype=torch.float32))
        for state, x in ((quantizer.min_val, lo), (quantizer.max_val, hi)):
            r = float(state)
            state.fill_(r + c * float(torch.tensor(x) - torch.tensor(r)))
    quantizer.observed += 1
    lo, hi = min(float(quantizer.min_val), 0.0), max(float(quantizer.max_val), 0.0)
    if quantizer.preset == X86:
        scale = torch.tensor((hi - lo) / 255, dtype=torch.float32)
        quantizer.zero_point.fill_(min(255, max(0, round(-lo / float(scale)))))
    else:
        peak = torch.tensor(max(-lo, hi), dtype=torch.float32)
        scale = peak / (127.5 if quantizer.preset == HORIZON else 127.0)
    quantizer.scale.copy_(scale.clamp_min(2.0**-23))


def reference(group: Group, t: Tensors, quantizer: Quantizer, qw: bool = True) -> torch.Tensor:
    """The same group as a chain of torch ops; moves the quantizer's state."""
    weight = straight_through_weight(group, t["weight"]) if qw else t["weight"]
    y = group.chain({**t, "weight": weight})
    if quantizer.observe and y.numel():
        next_range(quantizer, y.detach())
    if not quantizer.fake_quantize:
        return y
    low, high = quantizer.range
    return straight_through(y, quantizer.scale.clone(), int(quantizer.zero_point), low, high)


def run(
    group: Group, tensors: Tensors, quantizer: Quantizer, ours: bool
) -> tuple[torch.Tensor, Tensors]:
    """Output and gradients, of the operator or of the reference."""
    t = copies(tensors)
    if ours:
        y = group.fused(t, quantizer, quantize_weight=True)[0]
    else:
        y = reference(group, t, quantizer)
    y.backward(torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(1)))
    return y.detach(), t


CASES = [
    Group(base=base, bn=bn, add=add, act=act)
    for base, bn, add, act in itertools.product(
        (CONV, TRANSPOSED, LINEAR), (False, True), (False, True), (NONE, RELU, RELU6)
    )
]


@pytest.mark.parametrize("preset", [HORIZON, TENSORRT, X86], ids=["horizon", "tensorrt", "x86"])
@pytest.mark.parametrize("group", CASES, ids=str)
def test_training_equals_the_chain_of_straight_through_ops(group: Group, preset: int) -> None:
    """In fp64, where both sides agree to 1e-14 before rounding to a code: the same codes and
    states over two batches, and the gradients to 1e-9."""
    group = group.but(dtype=torch.float64, bias=True, channels=(4, 6))
    for channels_last, train in ((False, True), (True, True), (True, False)):
        if group.base == LINEAR and channels_last and train:
            continue
        case = group.but(channels_last=channels_last and group.base != LINEAR, train=train)
        ours, theirs = Quantizer(preset=preset), Quantizer(preset=preset)
        a = b = None
        for batch in range(2):
            tensors = case.tensors(seed=batch)
            if batch:
                for name in ("running_mean", "running_var", "num_batches_tracked"):
                    tensors[name] = a[name]
            y, a = run(case, tensors, ours, True)
            expected, b = run(case, tensors, theirs, False)
            for name, value in ours.state.items():
                assert torch.equal(value, theirs.state[name]), (name, batch)
            assert error(y, expected) < 1e-12
            for name in DIFFERENTIABLE:
                if name != "bias" and a[name] is not None:
                    assert error(a[name].grad, b[name].grad) < 1e-9, name
            for name in ("running_mean", "running_var", "num_batches_tracked"):
                if a[name] is not None:
                    assert error(a[name], b[name]) < 1e-12, name


@pytest.mark.parametrize("group", CASES, ids=str)
def test_fp32_training_agrees_but_for_near_ties(group: Group) -> None:
    """A value within rounding of a tie may take the neighbouring code: a step, and rarely."""
    for channels_last in (False, True):
        case = group.but(bias=True, batch=8, channels_last=channels_last and group.base != LINEAR)
        ours, theirs = Quantizer(), Quantizer()
        tensors = case.tensors()
        y, a = run(case, tensors, ours, True)
        expected, b = run(case, tensors, theirs, False)
        assert abs(float(ours.scale / theirs.scale) - 1) < 1e-5
        assert float((y - expected).abs().max()) < 1.001 * float(ours.scale)
        assert int(((y - expected).abs() > 0.5 * ours.scale).sum()) <= 3
        for name in DIFFERENTIABLE:
            if name != "bias" and a[name] is not None:
                assert error(a[name].grad, b[name].grad) < 1e-4, name


def test_output_scale_and_zero_point_are_fresh_and_stored() -> None:
    for preset, bias in ((HORIZON, 128), (TENSORRT, 128), (X86, 0)):
        group, quantizer = Group(act=NONE), Quantizer(preset=preset)
        t = group.tensors()
        _, scale, zero_point = group.fused(t, quantizer)
        assert torch.equal(scale, quantizer.scale) and scale.shape == zero_point.shape == ()
        assert zero_point.dtype == torch.int32
        assert int(zero_point) == int(quantizer.zero_point) + bias
        assert scale.data_ptr() != quantizer.scale.data_ptr() and not scale.requires_grad
        before = scale.clone()
        t["input"] = t["input"] * 3
        group.but(train=False).fused(t, quantizer)
        assert torch.equal(scale, before) and not torch.equal(quantizer.scale, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["fp32", "fp64"])
@pytest.mark.parametrize("act", [NONE, RELU, RELU6])
def test_the_range_is_that_of_the_output_to_the_bit(act: int, dtype: torch.dtype) -> None:
    """Without a skip it comes from the extremes of z, with one from a pass over the sums."""
    for base, add, bn, train, channels_last in itertools.product(
        (CONV, LINEAR), (False, True), (False, True), (False, True), (False, True)
    ):
        group = Group(
            base=base, add=add, bn=bn, act=act, train=train, channels=(5, 19), image=(13, 9),
            batch=37, dtype=dtype, channels_last=channels_last and base != LINEAR,
        )  # fmt: skip
        quantizer = Quantizer(fake_quantize=False)
        y = group.fused(group.tensors(), quantizer)[0]
        assert y.dtype == dtype and int(quantizer.observed) == 1
        assert float(quantizer.min_val) == float(y.min().float())
        assert float(quantizer.max_val) == float(y.max().float())


def test_observers_move_as_the_docs_say() -> None:
    group = Group(bn=False, act=NONE, kernel=(1, 1), padding=(0, 0), channels=(1, 1))
    t = {**group.tensors(), "weight": torch.ones(1, 1, 1, 1)}

    def observe(quantizer: Quantizer, *batches: float) -> tuple[float, float]:
        for peak in batches:
            x = torch.linspace(-1, peak, 16).reshape(1, 1, 4, 4)
            group.fused({**t, "input": x}, quantizer)
        return float(quantizer.min_val), float(quantizer.max_val)

    # 2, then 2 + 0.5 (4 - 2) = 3.
    assert observe(Quantizer(averaging_constant=0.5), 2.0, 4.0) == (-1.0, 3.0)
    assert observe(Quantizer(observer=1), 2.0, 4.0, 3.0) == (-1.0, 4.0)
    fixed = Quantizer(observer=2, min_val=torch.tensor(-1.0), scale=torch.tensor(0.25))
    assert observe(fixed, 2.0, 4.0) == (-1.0, 0.0)
    assert float(fixed.scale) == 0.25 and int(fixed.observed) == 0
    still = Quantizer(observe=False)
    assert observe(still, 2.0) == (0.0, 0.0) and int(still.observed) == 0


def test_an_empty_batch_moves_no_range() -> None:
    for add in (False, True):
        group, quantizer = Group(batch=0, add=add), Quantizer()
        y, scale, zero_point = group.fused(group.tensors(), quantizer)
        assert y.shape == (0, 6, 7, 6) and int(quantizer.observed) == 0
        assert float(scale) == 1.0 and int(zero_point) == 128


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("bn", [False, True])
def test_a_batch_that_is_not_finite_raises_and_changes_nothing(
    bn: bool, add: bool, value: float
) -> None:
    for base, train in itertools.product((CONV, LINEAR), (False, True)):
        group = Group(base=base, bn=bn, add=add, train=train, act=RELU)
        t = group.tensors()
        t["input"].view(-1)[7] = value
        before = copies(t, False)
        quantizer = Quantizer()
        with pytest.raises(ValueError, match=r"observe: 'output' must be finite, got (nan|inf)"):
            group.fused(t, quantizer)
        assert int(quantizer.observed) == 0 and float(quantizer.scale) == 1.0
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            assert t[name] is None or torch.equal(t[name], before[name])


def test_nan_in_the_skip_reaches_the_observer() -> None:
    group = Group(add=True)
    t = group.tensors()
    t["skip"][1, 2, 3, 4] = math.nan
    with pytest.raises(ValueError, match="must be finite, got nan"):
        group.fused(t, Quantizer())


def test_a_batch_that_is_not_finite_may_be_skipped() -> None:
    group, quantizer = Group(), Quantizer(skip_nonfinite=True)
    t = group.tensors()
    group.fused(t, quantizer)
    before = {k: v.clone() for k, v in quantizer.state.items()}
    t["input"][0, 0, 0, 0] = math.nan
    with warnings.catch_warnings():
        # The op warns once a process, so whether this call does depends on the order of tests.
        warnings.simplefilter("ignore")
        y = group.fused(t, quantizer)[0]
    assert y.isnan().any()
    assert all(torch.equal(before[k], v) for k, v in quantizer.state.items())


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("act", [RELU, RELU6])
def test_gradient_is_zero_at_the_kinks_and_one_at_the_ends_of_the_range(
    act: int, channels_last: bool
) -> None:
    """Scale 1/32, relu: codes -128..127, so the gradient passes in (0, 127.5/32], the tie to 128
    excluded; ReLU6 ends before that only where 6 does."""
    group = Group(bn=False, act=act, kernel=(1, 1), padding=(0, 0), channels=(1, 1), batch=1)
    values = [-1.0, -0.0, 0.0, 1e-3, 3.0, 3.96875, 3.98, 3.984375, 4.0, 5.9999, 6.0, 7.0]
    x = torch.tensor(values).reshape(1, 1, 3, 4)
    t = {**group.tensors(), "weight": torch.ones(1, 1, 1, 1)}
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    for scale, quantized in ((1 / 32, True), (1 / 16, True), (1.0, False)):
        quantizer = Quantizer(observe=False, scale=torch.tensor(scale), fake_quantize=quantized)
        leaf = x.clone().requires_grad_()
        y = group.fused({**t, "input": leaf}, quantizer)[0]
        y.sum().backward()
        for value, got in zip(values, leaf.grad.flatten().tolist(), strict=True):
            inside = value > 0 and (act == RELU or value < 6)
            if quantized:
                inside = inside and round(min(value, 6.0 if act == RELU6 else value) / scale) <= 127
            assert got == float(inside), (value, scale)
    unquantized = group.fused({**t, "input": x})[0].flatten().tolist()
    assert unquantized == [
        min(max(v, 0.0), 6.0 if act == RELU6 else 99.0) for v in x.flatten().tolist()
    ]


def test_codes_stand_for_an_input_on_a_grid() -> None:
    """Gradients with saved codes equal those with the saved float input, to the bit."""
    for base, dtype, zero_point in itertools.product(
        (CONV, TRANSPOSED, LINEAR), (torch.float32, torch.float64, torch.float16), (128, 90)
    ):
        for channels_last in (False, True) if base != LINEAR else (False,):
            if dtype == torch.float16 and base == TRANSPOSED:
                continue
            group = Group(base=base, dtype=dtype, channels_last=channels_last, padding=(1, 2))
            t = group.tensors()
            t["input"] = on_grid(t["input"].float(), 0.03125, zero_point).to(dtype)
            a, b = copies(t), copies(t)
            grad = torch.randn_like(group.fused(t)[0])
            grid = {
                "input_scale": torch.tensor(0.03125),
                "input_zero_point": torch.tensor(zero_point, dtype=torch.int32),
            }
            group.fused({**a, **grid}, quantize_weight=True)[0].backward(grad)
            group.fused(b, quantize_weight=True)[0].backward(grad)
            for name in DIFFERENTIABLE:
                if a[name] is not None:
                    assert torch.equal(a[name].grad, b[name].grad), (name, dtype)


def saved_tensors(call: Callable[[], object]) -> list[torch.Tensor]:
    saved: list[torch.Tensor] = []

    def pack(x: torch.Tensor) -> torch.Tensor:
        saved.append(x)
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        call()
    return saved


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("add", [False, True])
def test_saved_are_z_one_bit_an_output_and_one_byte_an_input(
    add: bool, channels_last: bool
) -> None:
    """16 x 24 channels, 4 x 8 x 8: outputs 6144, inputs 4096; NCHW rows of 64 are whole bytes."""
    group = Group(channels=(16, 24), batch=4, image=(8, 8), add=add, channels_last=channels_last)
    t = copies(group.tensors())
    t["input"] = on_grid(t["input"].detach(), 0.05, 128).requires_grad_()
    t["input_scale"], t["input_zero_point"] = torch.tensor(0.05), torch.tensor(128)
    saved = saved_tensors(lambda: group.fused(t, Quantizer(), quantize_weight=True))
    parameters = [t["weight"], t["bn_weight"]]
    for parameter in parameters:
        assert any(x is parameter or x.data_ptr() == parameter.data_ptr() for x in saved)
    rest = [x for x in saved if all(x.data_ptr() != p.data_ptr() for p in parameters)]
    size = sum(x.numel() * x.element_size() for x in rest)
    # z, mask, codes, [2, channels] moments, input scale and zero point (int64 here).
    assert size == 6144 * 4 + 6144 // 8 + 4096 + 2 * 24 * 4 + 4 + 8
    assert sorted(x.dtype == torch.uint8 for x in rest).count(True) == 2


def test_without_batch_statistics_no_z_is_saved() -> None:
    """Frozen, gamma without gradient: the mask and the codes; without act and quantizer no mask."""
    group = Group(channels=(16, 24), batch=4, image=(8, 8), train=False)
    t = copies(group.tensors())
    t["bn_weight"] = t["bn_weight"].detach()
    saved = saved_tensors(lambda: group.fused(t))
    assert all(x.dtype == torch.uint8 or x.numel() < 6144 for x in saved)
    plain = group.but(bn=False, act=NONE)
    t = copies(plain.tensors())
    saved = saved_tensors(lambda: plain.fused(t))
    assert {x.data_ptr() for x in saved} == {t["input"].data_ptr(), t["weight"].data_ptr()}


def test_a_moved_quantizer_does_not_disturb_an_earlier_call() -> None:
    """One quantizer serves two calls; each backward uses the range of its own forward."""
    group = Group(base=CONV, act=NONE)
    t, u = group.tensors(0), group.tensors(1)
    u["input"] = u["input"] * 5
    shared = Quantizer()
    a = copies(t)
    y = group.fused(a, shared)[0]
    group.fused(copies(u), shared)
    alone = Quantizer()
    b = copies(t)
    x = group.fused(b, alone)[0]
    grad = torch.randn_like(y)
    y.backward(grad), x.backward(grad)
    assert torch.equal(x, y)
    for name in ("input", "weight", "bn_weight", "bn_bias"):
        assert torch.equal(a[name].grad, b[name].grad)


@pytest.mark.parametrize("channels_last", [False, True])
def test_results_do_not_depend_on_the_number_of_threads(channels_last: bool) -> None:
    group = Group(channels=(8, 40), image=(41, 37), batch=9, channels_last=channels_last, add=True)
    tensors = group.tensors()
    grad = torch.randn(9, 40, 41, 37)
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        t, quantizer = copies(tensors), Quantizer()
        y = group.fused(t, quantizer, quantize_weight=True)[0]
        names = ("bn_weight", "bn_bias", "skip")
        grads = torch.autograd.grad(y, [t[n] for n in names], grad)
        results.append([y, *grads, t["running_mean"], t["running_var"], *quantizer.state.values()])
    torch.set_num_threads(2)
    for one, two in zip(*results, strict=True):
        assert torch.equal(one, two)


def test_half_precision_output_is_quantized_in_fp32() -> None:
    """Scale 2^-5 and z in fp16: every y is a code / 32, which fp16 holds exactly."""
    group = Group(bn=False, act=RELU, dtype=torch.float16)
    t = group.tensors()
    quantizer = Quantizer(observe=False, scale=torch.tensor(0.03125))
    y = group.fused(t, quantizer)[0]
    z = group.convolution(t["input"], t["weight"], None).float()
    expected = torch.fake_quantize_per_tensor_affine(z.relu(), 0.03125, 0, -128, 127)
    assert y.dtype == torch.float16 and torch.equal(y.float(), expected)
