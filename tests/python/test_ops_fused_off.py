"""Off means off: without quantization the fused op is the plain chain of torch ops."""

from __future__ import annotations

import pytest
import torch
from fused_group import (
    CONV,
    DIFFERENTIABLE,
    LINEAR,
    NONE,
    RELU,
    RELU6,
    TRANSPOSED,
    Group,
    copies,
    error,
)
from hypothesis import given
from hypothesis import strategies as st


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Small tensors: a second thread only waits, which is slow on a busy machine."""
    torch.set_num_threads(1)


TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-9}
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def assert_equals_chain(
    group: Group,
    tensors: dict[str, torch.Tensor | None],
    grad: torch.Tensor | None = None,
) -> None:
    """Output, every gradient and the running statistics, norm-wise."""
    tolerance = TOLERANCE[group.dtype]
    a = copies(tensors)
    # torch 2.13 misreads vectors with strides in the backward pass of fp32 batch norm.
    b = copies(
        {
            k: v.contiguous()
            if v is not None and v.dim() == 1 and k not in ("input", "weight")
            else v
            for k, v in tensors.items()
        }
    )
    y, scale, zero_point = group.fused(a)
    assert scale.numel() == zero_point.numel() == 0
    expected = group.chain(b)
    assert (y.shape, y.dtype) == (expected.shape, expected.dtype)
    assert error(y.detach(), expected.detach()) <= tolerance
    if grad is None:
        grad = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(1))
    y.backward(grad)
    expected.backward(grad)
    compared = 0
    for name in DIFFERENTIABLE:
        if a[name] is None:
            continue
        actual, wanted = a[name].grad, b[name].grad
        assert actual is not None and actual.dtype == a[name].dtype, name
        compared += 1
        if name == "bias":
            assert_bias_gradient(group, tensors, actual, wanted, grad)
        else:
            assert error(actual, wanted) <= tolerance, name
    assert compared >= 2
    for name in STATISTICS:
        if a[name] is not None:
            assert error(a[name], b[name]) <= tolerance, name


def assert_bias_gradient(
    group: Group,
    tensors: dict[str, torch.Tensor | None],
    actual: torch.Tensor,
    expected: torch.Tensor,
    grad: torch.Tensor,
) -> None:
    """Absolutely, to 1e-5 (fp64: 1e-9) of the sum of |dz|: with batch statistics it is near 0."""
    t = copies(tensors, requires_grad=False)
    z = group.convolution(t["input"], t["weight"], t["bias"]).detach().requires_grad_()
    y = group.normalized(z, t)
    if t["skip"] is not None:
        y = y + t["skip"]
    (dz,) = torch.autograd.grad(group.activated(y), z, grad)
    bound = TOLERANCE[group.dtype] * float(dz.abs().sum())
    assert float((actual - expected).abs().max()) <= bound


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["fp32", "fp64"])
@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("act", [NONE, RELU, RELU6], ids=["none", "relu", "relu6"])
@pytest.mark.parametrize("add", [False, True], ids=["", "add"])
@pytest.mark.parametrize("bn", [False, True], ids=["", "bn"])
@pytest.mark.parametrize("base", [CONV, TRANSPOSED, LINEAR], ids=["conv", "transposed", "linear"])
def test_every_pattern_equals_the_plain_chain(
    base: int, bn: bool, add: bool, act: int, train: bool, dtype: torch.dtype
) -> None:
    group = Group(base=base, bn=bn, add=add, act=act, train=train, dtype=dtype)
    for bias in (False, True):
        for channels_last in (False, True) if base != LINEAR else (False,):
            case = group.but(bias=bias, channels_last=channels_last)
            assert_equals_chain(case, case.tensors())


GEOMETRIES = {
    "groups": Group(groups=2),
    "depthwise": Group(channels=(8, 8), groups=8),
    "depthwise multiplier": Group(channels=(3, 6), groups=3),
    "dilation": Group(dilation=(2, 1), padding=(2, 1)),
    "stride": Group(stride=(2, 1)),
    "no padding": Group(padding=(0, 0)),
    "four sides": Group(padding=(0, 1, 2, 3)),
    "four equal sides": Group(padding=(1, 2, 1, 2)),
    "uneven kernel": Group(kernel=(1, 3), padding=(0, 1)),
    "pointwise": Group(kernel=(1, 1), padding=(0, 0)),
    "transposed stride": Group(base=TRANSPOSED, stride=(2, 2)),
    "transposed output padding": Group(base=TRANSPOSED, stride=(2, 3), output_padding=(1, 2)),
    "transposed groups": Group(base=TRANSPOSED, groups=2, stride=(2, 2), dilation=(1, 2)),
    "one channel": Group(channels=(1, 1)),
    "three channels": Group(channels=(3, 3)),
    "seven channels": Group(channels=(5, 7)),
    "seventeen channels": Group(channels=(3, 17)),
    "many odd channels": Group(channels=(2, 67), image=(5, 3)),
    "many channels": Group(channels=(4, 72)),
    "batch of one": Group(batch=1),
    "single pixel": Group(image=(1, 1), batch=5),
    "large image": Group(image=(40, 33), batch=5),
    "one tall column": Group(image=(131, 1), kernel=(3, 1), padding=(1, 0)),
    "linear, odd": Group(base=LINEAR, channels=(5, 67), batch=9),
    "linear, one channel": Group(base=LINEAR, channels=(2, 1), batch=9),
    "linear, wide": Group(base=LINEAR, channels=(4, 640), batch=33),
    "no affine": Group(affine=False),
    "no running statistics": Group(running=False),
    "cumulative average": Group(momentum=None),
    "momentum 1": Group(momentum=1.0),
    "large eps": Group(eps=0.5),
}


@pytest.mark.parametrize("name", GEOMETRIES)
def test_geometries_and_layouts_equal_the_plain_chain(name: str) -> None:
    torch.set_num_threads(2 if name == "large image" else 1)
    for train in (True, False):
        for dtype in (torch.float32, torch.float64):
            for channels_last in (False, True):
                group = GEOMETRIES[name].but(
                    train=train, dtype=dtype, add=True, bias=True, channels_last=channels_last
                )
                if group.base == LINEAR and channels_last:
                    continue
                assert_equals_chain(group, group.tensors())


@st.composite
def any_group(draw: st.DrawFn) -> Group:
    def pair(low: int, high: int) -> tuple[int, int]:
        return draw(st.tuples(st.integers(low, high), st.integers(low, high)))

    base = draw(st.sampled_from([CONV, TRANSPOSED, LINEAR]))
    groups = draw(st.integers(1, 3)) if base != LINEAR else 1
    outs, ins = draw(st.integers(1, 9)), draw(st.integers(1, 3))
    kernel, dilation, stride = pair(1, 3), pair(1, 2), pair(1, 3)
    reach = [(k - 1) * d for k, d in zip(kernel, dilation, strict=True)]
    sides = 4 if base == CONV and draw(st.booleans()) else 2
    # Transposed: at most the reach, so that the output is not empty.
    padding = tuple(draw(st.integers(0, reach[i % 2] // 2)) for i in range(sides))
    extra = tuple(draw(st.integers(0, s - 1)) if base == TRANSPOSED else 0 for s in stride)
    image = tuple(r + 1 + draw(st.integers(0, 6)) for r in reach)
    return Group(
        base=base, groups=groups, channels=(ins * groups, outs * groups), kernel=kernel,
        dilation=dilation, stride=stride, padding=padding, output_padding=extra, image=image,
        batch=draw(st.integers(2, 4)), bn=draw(st.booleans()), add=draw(st.booleans()),
        act=draw(st.sampled_from([NONE, RELU, RELU6])), bias=draw(st.booleans()),
        train=draw(st.booleans()), affine=draw(st.booleans()), dtype=torch.float64,
        channels_last=base != LINEAR and draw(st.booleans()),
    )  # fmt: skip


@given(any_group(), st.integers(0, 5))
def test_any_geometry_equals_the_plain_chain(group: Group, seed: int) -> None:
    assert_equals_chain(group, group.tensors(seed))


@pytest.mark.parametrize("base", [CONV, TRANSPOSED, LINEAR])
@pytest.mark.parametrize("train", [True, False])
def test_an_empty_batch_equals_the_plain_chain(base: int, train: bool) -> None:
    group = Group(base=base, batch=0, add=True, bias=True, train=train)
    tensors = group.tensors()
    assert_equals_chain(group, tensors)
    t = copies(tensors)
    group.fused(t)[0].sum().backward()
    assert t["num_batches_tracked"] == (5 if train else 4)
    assert torch.equal(t["running_var"], tensors["running_var"])


def test_an_empty_batch_counts_in_the_cumulative_average() -> None:
    """Counter 4 -> 5 on the empty batch, so that the next one weighs 1/6."""
    group = Group(momentum=None)
    empty, full = group.but(batch=0).tensors(), group.tensors()
    a = {**copies(full), "running_mean": torch.zeros(6)}
    group.but(batch=0).fused({**a, "input": empty["input"]})
    assert a["num_batches_tracked"] == 5 and torch.equal(a["running_mean"], torch.zeros(6))
    group.fused(a)
    z = group.convolution(full["input"], full["weight"], None)
    assert torch.allclose(a["running_mean"], z.mean((0, 2, 3)) / 6, atol=1e-6)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("base", [CONV, TRANSPOSED, LINEAR])
def test_non_contiguous_tensors_equal_the_plain_chain(base: int, channels_last: bool) -> None:
    group = Group(base=base, add=True, bias=True, channels_last=channels_last)
    t = group.tensors()
    if base == LINEAR:
        t["input"] = torch.randn(4, 6).t()[:3].flip(0)[:, :4]
        t["weight"] = torch.randn(4, 6).t()
        grad = torch.randn(6, 3).t()
    else:
        wide = torch.randn(3, 4, 7, 12) + 0.5
        t["input"] = group.laid_out(wide)[..., ::2]
        t["weight"] = torch.randn(3, 3, *t["weight"].shape[:2]).permute(2, 3, 1, 0)
        grad = torch.randn(6, 3, 6, 7).permute(1, 0, 3, 2)
    t["skip"] = torch.randn(*t["skip"].shape[::-1]).permute(*range(t["skip"].dim())[::-1])
    for name in ("bn_weight", "bn_bias", "running_mean", "bias"):
        t[name] = torch.randn(12)[::2]
    assert_equals_chain(group, t, grad)
    assert_equals_chain(group, t, torch.ones(()).expand_as(grad))


def test_running_statistics_with_strides_are_updated_in_place() -> None:
    group = Group()
    t = group.tensors()
    mean, var = torch.zeros(12), torch.ones(12)
    t["running_mean"], t["running_var"] = mean[::2], var[1::2]
    reference = copies({**t, "running_mean": torch.zeros(6), "running_var": torch.ones(6)})
    versions = (mean._version, var._version)
    group.fused(t)
    group.chain(reference)
    assert error(mean[::2], reference["running_mean"]) < 1e-6
    assert error(var[1::2], reference["running_var"]) < 1e-6
    assert torch.equal(mean[1::2], torch.zeros(6)) and torch.equal(var[::2], torch.ones(6))
    assert mean._version > versions[0] and var._version > versions[1]


SKIPS = {
    "per channel": (6, 1, 1),
    "scalar": (),
    "one image": (1, 6, 7, 6),
    "one channel": (3, 1, 7, 6),
    "column": (7, 1),
    "larger rank": (2, 3, 6, 7, 6),
}
LARGER = {
    "batch": ((4, 6, 7, 6), Group(batch=1)),
    "channels": ((3, 5, 7, 6), Group(channels=(4, 1))),
    "image": ((3, 6, 5, 9), Group(image=(1, 1), kernel=(1, 1), padding=(0, 0))),
    "rank": ((2, 1, 6, 7, 6), Group()),
    "both ways": ((5, 1, 7, 1), Group(batch=1)),
    "nothing": ((0, 6, 7, 6), Group(batch=1)),
}


@pytest.mark.parametrize("act", [NONE, RELU6])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", SKIPS)
def test_a_smaller_skip_broadcasts(name: str, channels_last: bool, act: int) -> None:
    group = Group(act=act, channels_last=channels_last, bias=True)
    t = group.tensors()
    t["skip"] = torch.randn(SKIPS[name])
    assert_equals_chain(group, t)


@pytest.mark.parametrize("act", [NONE, RELU6])
@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", LARGER)
def test_a_larger_skip_broadcasts_the_result(
    name: str, channels_last: bool, train: bool, act: int
) -> None:
    size, group = LARGER[name]
    for dtype in (torch.float32, torch.float64):
        group = group.but(act=act, channels_last=channels_last, train=train, bias=True, dtype=dtype)
        t = group.tensors()
        t["skip"] = torch.randn(size, dtype=dtype)
        assert_equals_chain(group, t)


def test_a_larger_skip_after_linear() -> None:
    for size in ((4, 3, 6), (1, 1, 6), (2, 3, 1)):
        group = Group(base=LINEAR, bias=True, act=RELU)
        t = group.tensors()
        t["skip"] = torch.randn(size)
        assert_equals_chain(group, t)


@pytest.mark.parametrize("skip_last", [False, True])
@pytest.mark.parametrize("channels_last", [False, True])
def test_a_skip_of_another_memory_format_is_laid_anew(channels_last: bool, skip_last: bool) -> None:
    group = Group(add=True, channels_last=channels_last)
    t = group.tensors()
    t["skip"] = group.but(channels_last=skip_last).laid_out(t["skip"].contiguous())
    assert_equals_chain(group, t)


@pytest.mark.parametrize("channels_last", [False, True])
def test_the_memory_format_of_input_or_weight_is_kept(channels_last: bool) -> None:
    group = Group()
    t = group.tensors()
    y = group.fused(t)[0]
    assert y.is_contiguous()
    last = torch.channels_last
    for name in ("input", "weight"):
        y = group.fused({**t, name: t[name].contiguous(memory_format=last)})[0]
        assert y.is_contiguous(memory_format=last) and not y.is_contiguous()


def test_an_unbatched_image_equals_the_plain_chain() -> None:
    for base in (CONV, TRANSPOSED):
        for skip in (None, (6, 7, 6), (1, 6), (1, 6, 7, 6), (2, 6, 7, 6)):
            group = Group(base=base, bn=False, bias=True)
            t = group.tensors()
            t["input"] = t["input"][1]
            t["skip"] = None if skip is None else torch.randn(skip)
            assert_equals_chain(group, t)


@pytest.mark.parametrize("shape", [(4,), (2, 3, 4), (2, 0, 4), (1, 2, 3, 4)])
def test_linear_takes_any_number_of_dimensions_without_batch_norm(shape: tuple[int, ...]) -> None:
    group = Group(base=LINEAR, bn=False, bias=True)
    t = group.tensors()
    t["input"] = torch.randn(shape)
    assert_equals_chain(group, t)


def test_one_tensor_may_be_input_and_skip() -> None:
    group = Group(channels=(6, 6))
    t = copies(group.tensors())
    r = copies(t)
    group.fused({**t, "skip": t["input"]})[0].square().sum().backward()
    group.chain({**r, "skip": r["input"]}).square().sum().backward()
    assert error(t["input"].grad, r["input"].grad) < 1e-5


def test_only_the_gradients_asked_for_are_computed() -> None:
    group = Group(add=True, bias=True)
    for names in (["input"], ["weight"], ["bias"], ["bn_weight"], ["bn_bias"], ["skip"]):
        for train in (True, False):
            case = group.but(train=train)
            tensors = case.tensors()
            a, b = copies(tensors, False), copies(tensors, False)
            for t in (a, b):
                t[names[0]].requires_grad_()
            grad = torch.randn(3, 6, 7, 6)
            (actual,) = torch.autograd.grad(case.fused(a)[0], a[names[0]], grad)
            (expected,) = torch.autograd.grad(case.chain(b), b[names[0]], grad)
            assert float((actual - expected).norm()) <= 1e-5 * max(float(expected.norm()), 1.0)


def test_statistics_stay_accurate_far_from_zero() -> None:
    """|mean| / std = 1000 and 1e5: against double, where one-pass fp32 sums are off by percents."""
    for ratio, tolerance in ((1e3, 1e-5), (1e5, 1e-3)):
        for channels_last in (False, True):
            group = Group(channels=(5, 5), kernel=(1, 1), padding=(0, 0), image=(33, 29), batch=7)
            group = group.but(channels_last=channels_last, act=NONE, momentum=1.0)
            x = torch.randn(7, 5, 33, 29, generator=torch.Generator().manual_seed(3)) + ratio
            t = copies(group.tensors(), False)
            t["input"], t["weight"] = group.laid_out(x), torch.eye(5).reshape(5, 5, 1, 1)
            group.fused(t)
            exact = x.double().var((0, 2, 3))
            assert error(t["running_var"], exact) < tolerance
            assert error(t["running_mean"], x.double().mean((0, 2, 3))) < 1e-7


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_computes_in_fp32(dtype: torch.dtype) -> None:
    """z is rounded to the dtype by the convolution; all that follows is fp32 until the output."""
    group = Group(add=True, bias=True)
    for base in (CONV, LINEAR):
        for mixed in (False, True):
            case = group.but(base=base)
            tensors = {
                k: v if v is None or not v.is_floating_point() else v.to(dtype)
                for k, v in case.tensors().items()
            }
            if mixed:
                for name in ("bn_weight", "bn_bias", "running_mean", "running_var"):
                    tensors[name] = tensors[name].float()
            a = copies(tensors)
            y = case.fused(a)[0]
            assert y.dtype == dtype
            y.backward(torch.ones_like(y))
            z = case.convolution(tensors["input"], tensors["weight"], tensors["bias"]).float()
            dims = (0, 2, 3) if base == CONV else (0,)
            view = (1, -1, 1, 1) if base == CONV else (1, -1)
            mean, var = z.double().mean(dims), z.double().var(dims, unbiased=False)
            normal = (z - mean.view(view)) / (var.view(view) + 1e-5).sqrt()
            value = normal * a["bn_weight"].detach().double().view(view)
            value = value + a["bn_bias"].detach().double().view(view) + tensors["skip"]
            expected = value.clamp_min(0).float().to(dtype)
            # One unit in the last place where fp32 and double round differently.
            close = torch.isclose(
                y.float(), expected.float(), rtol=2e-3 if dtype == torch.float16 else 1e-2
            )
            assert close.all() and (y == expected).float().mean() > 0.99
            for name in DIFFERENTIABLE:
                assert a[name].grad.dtype == a[name].dtype and a[name].grad.isfinite().all()
