"""Max pooling of codes, against torch's on the same numbers in fp32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from integer_reference import codes, point, scalar
from torch.nn import functional as F

op = torch.ops.horizon.quantized_max_pool2d
FORMATS = [torch.contiguous_format, torch.channels_last]
BIG = 2**31

Pair = tuple[int, ...] | list[int]


def pool(
    q: torch.Tensor,
    kernel: Pair = (2,),
    stride: Pair = (),
    padding: Pair = (0,),
    dilation: Pair = (1,),
    ceil_mode: bool = False,
) -> torch.Tensor:
    return op(q, list(kernel), list(stride), list(padding), list(dilation), ceil_mode)


def reference(
    q: torch.Tensor,
    kernel: Pair = (2,),
    stride: Pair = (),
    padding: Pair = (0,),
    dilation: Pair = (1,),
    ceil_mode: bool = False,
) -> torch.Tensor:
    x = q.to(torch.float32)
    return F.max_pool2d(x, kernel, list(stride), padding, dilation, ceil_mode)


def check(q: torch.Tensor, *options: Any) -> None:
    actual, expected = pool(q, *options), reference(q, *options)
    assert actual.dtype == torch.uint8
    # A window of padding alone is -inf there, and the least code here.
    assert torch.equal(actual.to(torch.float32), expected.clamp(min=0))
    if q.is_contiguous():
        assert actual.is_contiguous()
    elif q.dim() == 4 and q.is_contiguous(memory_format=torch.channels_last):
        assert actual.is_contiguous(memory_format=torch.channels_last)


POOLINGS: list[tuple[Any, ...]] = [
    ((2, 2),),
    ((3, 3), (2, 2), (1, 1)),
    ((3, 3), (2, 2), (0, 0), (1, 1), True),
    ((3, 3), (1, 1), (1, 1)),
    ((5,), (1,), (2,)),
    ((3, 2), (2, 3), (1, 0), (1, 1), True),
    ((4, 4), (3, 3), (2, 2), (1, 1), True),
    ((2, 3), (5, 4), (1, 1)),
    ((3, 3), (), (1, 1), (2, 3)),
    ((3, 2), (1, 2), (0, 1), (3, 5), True),
    ((1, 1), (2, 2)),
    ((1, 7), (1,)),
    ((9, 9), (1, 1), (4, 4)),
]


@pytest.mark.parametrize("options", POOLINGS, ids=str)
@pytest.mark.parametrize("channels", [1, 3, 16, 17, 64, 70])
@pytest.mark.parametrize("format", FORMATS)
def test_max_pools_are_those_of_torch(
    options: tuple[Any, ...], channels: int, format: torch.memory_format
) -> None:
    check(codes(2, channels, 12, 13).contiguous(memory_format=format), *options)
    check(codes(channels, 12, 13), *options)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("size", [(40, 41), (300, 7), (3, 1000)])
def test_large_images_in_either_format(size: tuple[int, int], format: torch.memory_format) -> None:
    # torch's own refuses uint8 images of channels_last memory from 256 pixels on.
    q = codes(3, 20, *size).contiguous(memory_format=format)
    check(q, (3, 3), (2, 2), (1, 1))
    check(q, (2, 2), (2, 2))
    check(q, (3, 3), (1, 1), (1, 1), (1, 1), True)


@st.composite
def cases(draw: st.DrawFn) -> tuple[torch.Tensor, tuple[Any, ...]]:
    batch, channels = draw(st.integers(0, 3)), draw(st.sampled_from([1, 2, 5, 16, 33, 64]))
    size = [draw(st.integers(1, 24)) for _ in range(2)]
    kernel = [draw(st.integers(1, 6)) for _ in range(2)]
    stride = draw(st.one_of(st.just([]), st.lists(st.integers(1, 7), min_size=1, max_size=2)))
    padding = [draw(st.integers(0, k // 2)) for k in kernel]
    dilation = draw(st.lists(st.integers(1, 6), min_size=1, max_size=2))
    q = codes(batch, channels, *size, seed=draw(st.integers(0, 9)))
    layout = draw(st.sampled_from(["contiguous", "channels_last", "sliced", "transposed"]))
    if layout == "channels_last":
        q = q.contiguous(memory_format=torch.channels_last)
    elif layout == "sliced":
        q = q.repeat(1, 1, 1, 2)[..., ::2]
    elif layout == "transposed":
        q = q.transpose(2, 3)
    if batch > 0 and draw(st.booleans()):
        q = q[0]
    return q, (kernel, stride, padding, dilation, draw(st.booleans()))


@settings(max_examples=200)
@given(cases())
def test_any_geometry_is_pooled_or_refused_as_torch_does(
    case: tuple[torch.Tensor, tuple[Any, ...]],
) -> None:
    q, options = case
    try:
        reference(q, *options)
    except RuntimeError:
        with pytest.raises(ValueError, match="'kernel_size' must be no larger than 'q'"):
            pool(q, *options)
        return
    check(q, *options)


def test_a_window_may_stick_out_where_sizes_round_up() -> None:
    # 2 pixels, kernel 3, stride 2: ceil((2 - 3) / 2) + 1 = 1 window; rounding down there is none.
    q = torch.tensor([[[1, 9], [200, 3]]], dtype=torch.uint8)
    assert pool(q, (3,), (2,), (0,), (1,), True).tolist() == [[[200]]]
    with pytest.raises(ValueError, match="'kernel_size' must be no larger than 'q'"):
        pool(q, (3,), (2,))


def test_windows_of_averages_may_stick_out_as_well() -> None:
    # One window, cut to the four pixels: (1 + 9 + 201 + 5) / 4 = 54.
    q = torch.tensor([[[1, 9], [201, 5]]], dtype=torch.uint8)
    grid = (scalar(0.5), point(3))
    window = ([3], [2], [0], True, True, None)
    assert torch.ops.horizon.quantized_avg_pool2d(q, *grid, *window, *grid).tolist() == [[[54]]]
    assert F.avg_pool2d(q.double(), 3, 2, 0, True).item() == 54


def test_padding_never_wins() -> None:
    q = torch.zeros(1, 2, 4, 4, dtype=torch.uint8)
    assert pool(q, (3,), (1,), (1,)).eq(0).all()
    # Taps at -1 and 4 of four columns: padding alone, -inf in fp32.
    q = codes(1, 2, 1, 4) | 1
    window = ((1, 2), (1, 1), (0, 1), (1, 5))
    assert reference(q, *window).eq(-torch.inf).all()
    assert pool(q, *window).tolist() == [[[[0]], [[0]]]]


@pytest.mark.parametrize("format", FORMATS)
def test_empty_batches_have_empty_results(format: torch.memory_format) -> None:
    q = codes(0, 3, 6, 5).contiguous(memory_format=format)
    assert pool(q).shape == (0, 3, 3, 2)


def test_kernels_of_any_size_end_at_once() -> None:
    # Only the taps inside are visited: 2^30 - 1 of padding, and the image, on either side.
    half = 2**30 - 1
    q = codes(1, 2, 5, 6)
    actual = pool(q, (2 * half + 1,), (1,), (half,))
    assert torch.equal(actual, q.amax((2, 3), keepdim=True).expand_as(q))
    assert torch.equal(pool(q, (1,), (BIG - 1,), (0,), (BIG - 1,)), q[..., :1, :1])


@pytest.mark.parametrize("threads", [1, 2])
def test_results_do_not_depend_on_threads(threads: int) -> None:
    q = codes(4, 48, 60, 60).contiguous(memory_format=torch.channels_last)
    torch.set_num_threads(threads)
    check(q, (3, 3), (2, 2), (1, 1))


Q = codes(2, 3, 4, 5)
Call = Callable[[], object]
ERRORS: list[tuple[Call, type[Exception], str]] = [
    (lambda: pool(codes(4, 5)), ValueError, "'q' must be [channels, height, width] or [batch, c"),
    (lambda: pool(codes(1, 1, 1, 4, 5)), ValueError, "'q' must be [channels, height, width] or ["),
    (lambda: pool(codes()), ValueError, "'q' must be [channels, height, width] or [batch, chan"),
    (lambda: pool(Q.float()), TypeError, "'q' must be uint8, got float32"),
    (lambda: pool(Q.to(torch.int8)), TypeError, "'q' must be uint8, got int8"),
    (lambda: pool(codes(2, 3, 0, 5)), ValueError, "'q' must be non-empty but for the batch, got ["),
    (lambda: pool(codes(2, 0, 4, 5)), ValueError, "'q' must be non-empty but for the batch, got ["),
    (lambda: pool(codes(0, 4, 5)), ValueError, "'q' must be non-empty but for the batch, got [0,"),
    (lambda: pool(Q, ()), ValueError, "'kernel_size' must be of one or two entries, got []"),
    (lambda: pool(Q, (1, 2, 3)), ValueError, "'kernel_size' must be of one or two entries, got [1"),
    (
        lambda: pool(Q, (0, 1)),
        ValueError,
        "'kernel_size' must be at least 1 and at most 2147483647",
    ),
    (
        lambda: pool(Q, (BIG,)),
        ValueError,
        "'kernel_size' must be at least 1 and at most 2147483647",
    ),
    (
        lambda: pool(Q, (5, 2)),
        ValueError,
        "'kernel_size' must be no larger than 'q' with its paddi",
    ),
    (
        lambda: pool(Q, (2,), (1,), (0,), (4, 1)),
        ValueError,
        "'kernel_size' must be no larger than 'q' with its padding, 'dilation' included, got [2]",
    ),
    (
        lambda: pool(Q, (BIG - 1,), (1,), (0,), (BIG - 1,)),
        ValueError,
        "'kernel_size' must be no larger than 'q' with its padding",
    ),
    (lambda: pool(Q, (2,), (0,)), ValueError, "'stride' must be at least 1"),
    (lambda: pool(Q, (2,), (-1, 1)), ValueError, "'stride' must be at least 1"),
    (lambda: pool(Q, (2,), (1, 2, 3)), ValueError, "'stride' must be of one or two entries"),
    (lambda: pool(Q, (2,), (), (2, 0)), ValueError, "'padding' must be at most half the kernel, g"),
    (lambda: pool(Q, (2,), (), (-1,)), ValueError, "'padding' must be at least 0"),
    (lambda: pool(Q, (2,), (), ()), ValueError, "'padding' must be of one or two entries, got []"),
    # Half the kernel, not half its reach.
    (
        lambda: pool(Q, (2,), (), (2,), (3,)),
        ValueError,
        "'padding' must be at most half the kernel",
    ),
    (lambda: pool(Q, (2,), (), (0,), (0,)), ValueError, "'dilation' must be at least 1"),
    (lambda: pool(Q, (2,), (), (0,), (-2,)), ValueError, "'dilation' must be at least 1"),
    (lambda: pool(Q, (2,), (), (0,), ()), ValueError, "'dilation' must be of one or two entries"),
]


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(
    ("call", "error", "text"), [pytest.param(*row, id=str(i)) for i, row in enumerate(ERRORS)]
)
def test_max_pools_say_what_is_wrong(
    call: Call, error: type[Exception], text: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    direct = op
    monkeypatch.setitem(globals(), "op", lambda q, *rest: direct(q.to(device), *rest))
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value).startswith("quantized_max_pool2d: ")
    assert text in str(caught.value)


def test_the_arguments_of_the_wrong_calls_are_otherwise_good() -> None:
    assert pool(Q).shape == (2, 3, 2, 2)


CASES = {
    "plain": (codes(2, 3, 8, 9), [2, 2], [], [0, 0], [1, 1], False),
    "channels last": (
        codes(2, 3, 8, 9).contiguous(memory_format=torch.channels_last),
        [3, 3],
        [2, 2],
        [1, 1],
        [2, 1],
        True,
    ),
    "no batch": (codes(3, 8, 9), [3], [2], [1], [1], True),
}


@pytest.mark.parametrize("name", CASES)
def test_opcheck(name: str) -> None:
    # Codes cannot require grad, so there is no second case.
    result = torch.library.opcheck(op.default, CASES[name])
    assert set(result.values()) == {"SUCCESS"}


@pytest.mark.parametrize("name", CASES)
def test_meta_kernels_tell_shape_dtype_and_strides(name: str) -> None:
    q, *options = CASES[name]
    real, meta = op(q, *options), op(q.to("meta"), *options)
    assert (meta.shape, meta.dtype, meta.stride()) == (real.shape, real.dtype, real.stride())


def test_max_pools_export_with_a_free_batch() -> None:
    class Pool(torch.nn.Module):
        def forward(self, q: torch.Tensor) -> torch.Tensor:
            return op(q, [3], [2], [1], [1], True)

    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(Pool(), (codes(2, 3, 8, 9),), dynamic_shapes=({0: batch},))
    q = codes(5, 3, 8, 9)
    assert torch.equal(program.module()(q), pool(q, (3,), (2,), (1,), (1,), True))
