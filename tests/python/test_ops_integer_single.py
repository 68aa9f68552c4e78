"""The integer operations other than convolution groups, against one rounding at a time."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from integer_reference import NONE, RELU, RELU6, centred, codes, f32, finish, fma, point, scalar
from torch.nn import functional as F

ops = torch.ops.horizon

FORMATS = [torch.contiguous_format, torch.channels_last]
# The last grid is coarse: codes saturate and ReLU6's bound lies inside.
GRIDS = [(0.05, 128), (0.0371, 0), (0.3, 77)]

Grid = tuple[float, int]


def grid(g: Grid) -> tuple[torch.Tensor, torch.Tensor]:
    return scalar(g[0]), point(g[1])


def exact(g: Grid) -> tuple[float, int]:
    return float(f32(g[0])), g[1]


def expected_add(
    a: torch.Tensor, ga: Grid, b: torch.Tensor, gb: Grid, gy: Grid, act: int, alpha: float
) -> np.ndarray:
    (sa, za), (sb, zb), (sy, zy) = exact(ga), exact(gb), exact(gy)
    second = centred(b, zb).astype(f32) * f32(alpha * sb / sy)
    assert second.dtype == f32
    return finish(fma(centred(a, za).astype(f32), f32(sa / sy), second), act, sy, zy)


def expected_mul(
    a: torch.Tensor, ga: Grid, b: torch.Tensor, gb: Grid, gy: Grid, act: int
) -> np.ndarray:
    (sa, za), (sb, zb), (sy, zy) = exact(ga), exact(gb), exact(gy)
    product = (centred(a, za) * centred(b, zb)).astype(f32)
    return finish(product * f32(sa * sb / sy), act, sy, zy)


def add(a, ga, b, gb, gy, act, alpha=1.0):  # type: ignore[no-untyped-def]
    return ops.quantized_add(a, *grid(ga), b, *grid(gb), *grid(gy), act, alpha)


def mul(a, ga, b, gb, gy, act):  # type: ignore[no-untyped-def]
    return ops.quantized_mul(a, *grid(ga), b, *grid(gb), *grid(gy), act)


def every_pair() -> tuple[torch.Tensor, torch.Tensor]:
    code = torch.arange(256, dtype=torch.uint8)
    return code[:, None].expand(256, 256), code[None, :].expand(256, 256)


@pytest.mark.parametrize("act", [NONE, RELU, RELU6])
@pytest.mark.parametrize("grids", list(itertools.permutations(GRIDS)))
@pytest.mark.parametrize("alpha", [1.0, -1.0])
def test_every_pair_of_codes_adds_as_specified(
    act: int, grids: tuple[Grid, ...], alpha: float
) -> None:
    a, b = every_pair()
    actual = add(a, grids[0], b, grids[1], grids[2], act, alpha)
    expected = expected_add(a, grids[0], b, grids[1], grids[2], act, alpha)
    np.testing.assert_array_equal(actual.numpy(), expected)


@pytest.mark.parametrize("act", [NONE, RELU, RELU6])
@pytest.mark.parametrize("grids", list(itertools.permutations(GRIDS)))
def test_every_pair_of_codes_multiplies_as_specified(act: int, grids: tuple[Grid, ...]) -> None:
    a, b = every_pair()
    actual = mul(a, grids[0], b, grids[1], grids[2], act)
    expected = expected_mul(a, grids[0], b, grids[1], grids[2], act)
    np.testing.assert_array_equal(actual.numpy(), expected)


def test_sums_of_halves_round_to_even() -> None:
    # 1/2 (a - 128) + 1/2 (b - 128): every odd sum is a tie.
    a, b = every_pair()
    actual = add(a, (0.5, 128), b, (0.5, 128), (1.0, 128), NONE).numpy()
    total = (a.long() + b.long() - 256).numpy()
    np.testing.assert_array_equal(actual, np.clip(np.rint(total / 2) + 128, 0, 255))
    assert (total % 2 == 1).sum() == 2**15


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((2, 3, 4, 5), (2, 3, 4, 5)),
        ((2, 3, 4, 5), (3, 1, 1)),
        ((2, 3, 1, 1), (2, 3, 4, 5)),
        ((3, 1), (1, 5)),
        ((), (4,)),
        ((), ()),
        ((0, 3), (1, 3)),
        ((2, 1, 3), (4, 1)),
        ((65,), (65,)),
    ],
)
def test_operands_broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    qa, qb = codes(*a), codes(*b, seed=1)
    ga, gb, gy = GRIDS
    actual = add(qa, ga, qb, gb, gy, NONE)
    np.testing.assert_array_equal(actual.numpy(), expected_add(qa, ga, qb, gb, gy, NONE, 1.0))
    actual = mul(qa, ga, qb, gb, gy, NONE)
    np.testing.assert_array_equal(actual.numpy(), expected_mul(qa, ga, qb, gb, gy, NONE))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("swap", [False, True])
def test_the_larger_operand_decides_the_format(format: torch.memory_format, swap: bool) -> None:
    a, b = codes(2, 3, 4, 5).contiguous(memory_format=format), codes(2, 3, 1, 1)
    operands = (b, GRIDS[0], a, GRIDS[1]) if swap else (a, GRIDS[0], b, GRIDS[1])
    for result in (add(*operands, GRIDS[2], NONE), mul(*operands, GRIDS[2], NONE)):
        assert result.is_contiguous(memory_format=format)


def test_views_of_operands_are_read_as_they_are() -> None:
    a = codes(5, 4, 6, 3).permute(0, 3, 1, 2)[:, :, ::2]
    b = codes(3, 2, 6, seed=2).flip(0)
    actual = add(a, GRIDS[0], b, GRIDS[1], GRIDS[2], RELU)
    expected = expected_add(a, GRIDS[0], b, GRIDS[1], GRIDS[2], RELU, 1.0)
    np.testing.assert_array_equal(actual.numpy(), expected)


def affine_reference(
    q: torch.Tensor, gx: Grid, factor: torch.Tensor, offset: torch.Tensor, gy: Grid, act: int
) -> np.ndarray:
    (sx, zx), (sy, zy) = exact(gx), exact(gy)
    shape = [-1] + [1] * (q.dim() - 2)
    m = ((sx * factor.numpy().reshape(-1)) / sy).astype(f32)
    b = (offset.numpy().reshape(-1) / sy).astype(f32)
    if m.size > 1:
        m = m.reshape(shape)
    if b.size > 1:
        b = b.reshape(shape)
    v = centred(q, zx).astype(f32) * m
    return finish(v + b, act, sy, zy)


@pytest.mark.parametrize("act", [NONE, RELU, RELU6])
@pytest.mark.parametrize("grids", list(itertools.permutations(GRIDS, 2)))
@pytest.mark.parametrize("constants", [(1.0, 0.0), (-0.7, 1.3), (0.0, 2.0), (1.0, -3.0)])
def test_every_code_maps_as_specified(
    act: int, grids: tuple[Grid, Grid], constants: tuple[float, float]
) -> None:
    q = torch.arange(256, dtype=torch.uint8)
    factor, offset = (torch.tensor(c, dtype=torch.float64) for c in constants)
    actual = ops.quantized_affine(q, *grid(grids[0]), factor, offset, *grid(grids[1]), act)
    expected = affine_reference(q, grids[0], factor, offset, grids[1], act)
    np.testing.assert_array_equal(actual.numpy(), expected)


@pytest.mark.parametrize("shape", [(2, 5, 4, 7), (3, 5), (3, 5, 9), (2, 5, 2, 3, 4), (0, 5, 3, 3)])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("which", ["factor", "offset", "both"])
def test_a_channel_has_its_own_map(shape: tuple[int, ...], last: bool, which: str) -> None:
    q = codes(*shape)
    if last:
        q = q.movedim(1, -1).contiguous().movedim(-1, 1)
    factor = torch.randn(5 if which != "offset" else 1, dtype=torch.float64)
    offset = torch.randn(5 if which != "factor" else 1, dtype=torch.float64)
    actual = ops.quantized_affine(q, *grid(GRIDS[0]), factor, offset, *grid(GRIDS[1]), RELU)
    expected = affine_reference(q, GRIDS[0], factor, offset, GRIDS[1], RELU)
    np.testing.assert_array_equal(actual.numpy(), expected)
    if len(shape) == 4 and q.numel() > 0:
        assert actual.stride() == q.stride()


def test_a_map_onto_the_same_grid_changes_nothing() -> None:
    q = torch.arange(256, dtype=torch.uint8).reshape(1, 4, 8, 8)
    one, none = torch.ones(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    for g in GRIDS:
        assert torch.equal(ops.quantized_affine(q, *grid(g), one, none, *grid(g), NONE), q)


@pytest.mark.parametrize("dim", [0, 1, 2, 3, -1, -3])
@pytest.mark.parametrize("format", FORMATS)
def test_operands_are_joined_on_one_grid(dim: int, format: torch.memory_format) -> None:
    shape = [2, 3, 4, 5]
    q, expected = [], []
    sy, zy = exact(GRIDS[2])
    for i, g in enumerate(GRIDS):
        shape[dim] = (3, 1, 17)[i]
        q.append(codes(*shape, seed=i).contiguous(memory_format=format))
        s, z = exact(g)
        onto = finish(centred(q[i], z).astype(f32) * f32(s / sy), NONE, sy, zy)
        expected.append(q[i].numpy() if g == GRIDS[2] else onto)
    scales, zeros = zip(*(grid(g) for g in GRIDS), strict=True)
    actual = ops.quantized_cat(q, scales, zeros, dim, *grid(GRIDS[2]))
    np.testing.assert_array_equal(actual.numpy(), np.concatenate(expected, dim))
    assert actual.is_contiguous(memory_format=format)


def test_joining_differing_formats_gives_a_contiguous_result() -> None:
    a = codes(2, 3, 4, 5)
    b = codes(2, 6, 4, 5).contiguous(memory_format=torch.channels_last)[:, ::2]
    one = grid(GRIDS[0])
    c = a.contiguous(memory_format=torch.channels_last)
    for pair in ([a, b], [a, c]):
        actual = ops.quantized_cat(pair, [one[0]] * 2, [one[1]] * 2, 1, *one)
        assert actual.is_contiguous()
        assert torch.equal(actual, torch.cat(pair, 1))


@pytest.mark.parametrize("shape", [(7,), (0, 3), (2, 0, 3), (2, 3, 4, 5, 6)])
def test_any_rank_can_be_joined(shape: tuple[int, ...]) -> None:
    q = [codes(*shape), codes(*shape, seed=1)]
    g = grid(GRIDS[1])
    for dim in range(len(shape)):
        actual = ops.quantized_cat(q, [g[0]] * 2, [g[1]] * 2, dim, *g)
        assert torch.equal(actual, torch.cat(q, dim))


def pool_reference(sums: np.ndarray, counts: np.ndarray, gx: Grid, gy: Grid) -> np.ndarray:
    (sx, _), (sy, zy) = exact(gx), exact(gy)
    multiplier = (sx / (sy * counts.astype(np.float64))).astype(f32)
    return finish(sums.astype(f32) * multiplier, NONE, sy, zy)


POOLINGS = [
    {"kernel_size": (2, 2)},
    {"kernel_size": (3, 3), "stride": (2, 2), "padding": (1, 1)},
    {"kernel_size": (3, 2), "stride": (2, 3), "padding": (1, 0), "ceil_mode": True},
    {"kernel_size": (3, 3), "stride": (2, 2), "padding": (1, 1), "count_include_pad": False},
    {"kernel_size": (4, 4), "stride": (3, 3), "padding": (2, 2), "ceil_mode": True},
    {
        "kernel_size": (4, 4),
        "stride": (3, 3),
        "padding": (2, 2),
        "ceil_mode": True,
        "count_include_pad": False,
    },
    {"kernel_size": (3, 3), "divisor_override": 5},
    {"kernel_size": (2, 2), "divisor_override": -3},
    {"kernel_size": (1, 7), "stride": (1, 1)},
]


@pytest.mark.parametrize("options", POOLINGS)
@pytest.mark.parametrize("channels", [1, 3, 17, 64, 70])
@pytest.mark.parametrize("format", FORMATS)
def test_average_pools_count_as_torch_does(
    options: dict[str, object], channels: int, format: torch.memory_format
) -> None:
    q = codes(2, channels, 9, 8).contiguous(memory_format=format)
    options = {"padding": (0, 0), "ceil_mode": False, "count_include_pad": True} | options
    gx, gy = GRIDS[2], (0.25, 100)
    actual = ops.quantized_avg_pool2d(
        q,
        *grid(gx),
        list(options["kernel_size"]),
        list(options.get("stride", [])),
        list(options["padding"]),
        options["ceil_mode"],
        options["count_include_pad"],
        options.get("divisor_override"),
        *grid(gy),
    )
    # In float64, torch's pooling of integers with divisor 1 is their sum, and that of ones on a
    # frame of ones or zeros counts them.
    summing = options | {"divisor_override": 1}
    sums = F.avg_pool2d(q.contiguous().double() - gx[1], **summing).numpy()
    area = float(np.prod(options["kernel_size"]))
    means = F.avg_pool2d(torch.ones(1, 1, 9, 8, dtype=torch.float64), **options).numpy()
    ones = F.avg_pool2d(torch.ones(1, 1, 9, 8, dtype=torch.float64), **summing).numpy()
    counts = np.rint(ones / means)
    assert counts.max() <= area
    np.testing.assert_array_equal(actual.numpy(), pool_reference(sums, counts, gx, gy))
    assert actual.is_contiguous(memory_format=format)


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (5, 7), (9, 8), (11, 3), (0, 2)])
@pytest.mark.parametrize("shape", [(2, 17, 9, 8), (5, 9, 8), (0, 3, 4, 4)])
@pytest.mark.parametrize("format", FORMATS)
def test_adaptive_pools_cut_windows_as_torch_does(
    size: tuple[int, int], shape: tuple[int, ...], format: torch.memory_format
) -> None:
    q = codes(*shape)
    if len(shape) == 4:
        q = q.contiguous(memory_format=format)
    gx, gy = GRIDS[1], GRIDS[0]
    actual = ops.quantized_adaptive_avg_pool2d(q, *grid(gx), list(size), *grid(gy)).numpy()
    height, width = shape[-2:]
    sums = np.zeros((*shape[:-2], *size))
    counts = np.ones(size)
    for i, j in itertools.product(range(size[0]), range(size[1])):
        rows = slice(i * height // size[0], -(-(i + 1) * height // size[0]))
        columns = slice(j * width // size[1], -(-(j + 1) * width // size[1]))
        window = centred(q, gx[1])[..., rows, columns]
        sums[..., i, j] = window.sum((-1, -2))
        counts[i, j] = window.shape[-1] * window.shape[-2]
    np.testing.assert_array_equal(actual, pool_reference(sums, counts, gx, gy))
    if 0 not in (*size, *shape):
        means = F.adaptive_avg_pool2d(q.contiguous().double() - gx[1], size).numpy()
        np.testing.assert_allclose(sums / counts, means, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("shape", "dim"),
    [
        ((2, 17, 5, 6), [2, 3]),
        ((2, 17, 5, 6), [-1, -2]),
        ((2, 3, 5, 6), [1]),
        ((2, 3, 5, 6), [0, 2]),
        ((2, 3, 5, 6), []),
        ((4, 300), [1]),
        ((7,), [0]),
        ((), []),
        ((), [-1]),
        ((0, 4), [1]),
        ((2, 3, 4, 5, 6), [1, 3]),
    ],
)
@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("last", [False, True])
def test_means_are_those_of_torch(
    shape: tuple[int, ...], dim: list[int], keepdim: bool, last: bool
) -> None:
    q = codes(*shape)
    if last and q.dim() > 1:
        q = q.movedim(1, -1).contiguous().movedim(-1, 1)
    gx, gy = GRIDS[0], GRIDS[1]
    actual = ops.quantized_mean(q, *grid(gx), dim, keepdim, *grid(gy))
    axes = tuple(dim) if dim and shape else tuple(range(len(shape)))
    sums = centred(q, gx[1]).sum(axes, keepdims=keepdim)
    count = int(np.prod([shape[a] for a in axes]))
    expected = pool_reference(np.asarray(sums), np.float64(count), gx, gy)
    assert actual.shape == torch.mean(q.double(), dim, keepdim).shape
    np.testing.assert_array_equal(actual.numpy(), expected)


def test_means_of_very_many_codes_do_not_overflow() -> None:
    # 9000 * 1000 * 255 = 2295000000 > 2^31.
    q = torch.full((1, 1, 9000, 1000), 255, dtype=torch.uint8)
    for x in (q, q.view(9000 * 1000)):
        mean = ops.quantized_mean(x, scalar(0.5), point(0), [], False, scalar(0.5), point(0))
        assert mean.item() == 255
    pooled = ops.quantized_adaptive_avg_pool2d(
        q, scalar(0.5), point(0), [1, 1], scalar(0.5), point(0)
    )
    assert pooled.item() == 255
