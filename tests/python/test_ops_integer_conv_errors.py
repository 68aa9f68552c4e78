"""What quantized_conv refuses, and how it says so."""

from __future__ import annotations

import pytest
import torch
from integer_reference import CONV2D, CONV_TRANSPOSE2D, LINEAR, codes, point, scalar, weights

NAMES = (
    "input input_scale input_zero_point weight weight_scale factor offset skip skip_scale "
    "skip_zero_point output_scale output_zero_point base stride padding dilation output_padding "
    "groups activation"
).split()


def conv_arguments(base: int = CONV2D) -> dict[str, object]:
    values: dict[str, object] = dict.fromkeys(NAMES)
    values |= {
        "input": codes(2, 4, 6, 7),
        "input_scale": scalar(0.05),
        "input_zero_point": point(128),
        "weight": weights(4, 4, 3, 3),
        "weight_scale": torch.ones(4),
        "factor": torch.ones(4, dtype=torch.float64),
        "offset": torch.zeros(4, dtype=torch.float64),
        "output_scale": scalar(0.1),
        "output_zero_point": point(128),
        "base": base,
        "stride": [1, 1],
        "padding": [0, 0],
        "dilation": [1, 1],
        "output_padding": [0, 0],
        "groups": 1,
        "activation": 0,
    }
    if base == LINEAR:
        values |= {"input": codes(2, 4), "weight": weights(4, 4)}
    return values


def conv(kind: int = CONV2D, /, **changes: object) -> torch.Tensor:
    values = conv_arguments(kind)
    assert set(changes) <= set(values)
    return torch.ops.horizon.quantized_conv(*(values | changes).values())


F64 = {"dtype": torch.float64}
NAN, INF = float("nan"), float("inf")
BIG = 2**62
SKIP = {"skip": codes(2, 4, 4, 5), "skip_scale": scalar(0.1), "skip_zero_point": point(0)}

CONV_ERRORS: list[tuple[type[Exception], str, dict[str, object]]] = [
    (TypeError, "'input' must be uint8, got float32", {"input": torch.rand(2, 4, 6, 7)}),
    (TypeError, "'input' must be uint8, got int8", {"input": codes(2, 4, 6, 7).char()}),
    (TypeError, "'weight' must be int8, got uint8", {"weight": codes(4, 4, 3, 3)}),
    (
        TypeError,
        "'weight_scale' must be float32, got float64",
        {"weight_scale": torch.ones(4, **F64)},
    ),
    (TypeError, "'factor' must be float64, got float32", {"factor": torch.ones(4)}),
    (TypeError, "'offset' must be float64, got int64", {"offset": torch.ones(4).long()}),
    (TypeError, "'input_scale' must be float32", {"input_scale": point(1)}),
    (TypeError, "'input_zero_point' must be int32 or int64", {"input_zero_point": scalar(1.0)}),
    (TypeError, "'skip' must be uint8, got int8", SKIP | {"skip": weights(4, 1, 1)}),
    (ValueError, "'input_scale' must be a tensor with one element", {"input_scale": torch.ones(2)}),
    (ValueError, "'input_scale' must be finite and positive, got 0", {"input_scale": scalar(0.0)}),
    (ValueError, "'input_scale' must be finite and positive", {"input_scale": scalar(-1.0)}),
    (
        ValueError,
        "'input_scale' must be finite and positive, got nan",
        {"input_scale": scalar(NAN)},
    ),
    (ValueError, "'output_scale' must be finite and positive", {"output_scale": scalar(INF)}),
    (
        ValueError,
        "'input_zero_point' must be in [0, 255], got 256",
        {"input_zero_point": point(256)},
    ),
    (ValueError, "'input_zero_point' must be in [0, 255], got -1", {"input_zero_point": point(-1)}),
    (
        ValueError,
        "'output_zero_point' must be in [0, 255], got 4611686018427387904",
        {"output_zero_point": torch.tensor(BIG)},
    ),
    (
        ValueError,
        "'output_scale' must be given together with 'output_zero_point', got the scale alone",
        {"output_zero_point": None},
    ),
    (ValueError, "got the zero point alone", {"output_scale": None}),
    (ValueError, "'skip' must be given with 'skip_scale'", {"skip": codes(4, 1, 1)}),
    (
        ValueError,
        "'skip' must be of a shape that broadcasts with that of the convolution's output "
        "[2, 4, 4, 5], got [2, 3, 4, 5]",
        SKIP | {"skip": codes(2, 3, 4, 5)},
    ),
    (
        ValueError,
        "the skip's scale over the output's must be finite",
        SKIP | {"skip_scale": scalar(3e38)},
    ),
    (ValueError, "'weight_scale' must be of shape [4], got [1]", {"weight_scale": torch.ones(1)}),
    (ValueError, "'factor' must be of shape [4], got [3]", {"factor": torch.ones(3, **F64)}),
    (ValueError, "'offset' must be of shape [4], got []", {"offset": torch.tensor(1.0, **F64)}),
    (
        ValueError,
        "the multiplier of output channel 2 must be finite in fp32, got inf",
        {"factor": torch.tensor([1.0, 1.0, 1e300, 1.0], **F64)},
    ),
    (
        ValueError,
        "the multiplier of output channel 0 must be finite in fp32, got nan",
        {"weight_scale": torch.tensor([NAN, 1.0, 1.0, 1.0])},
    ),
    (
        ValueError,
        "the offset of output channel 3 must be finite in fp32, got -inf",
        {"offset": torch.tensor([0.0, 0.0, 0.0, -INF], **F64)},
    ),
    (
        ValueError,
        "'base' must be 0 (conv2d), 1 (conv_transpose2d) or 2 (linear), got 3",
        {"base": 3},
    ),
    (ValueError, "'base' must be", {"base": -1}),
    (ValueError, "'activation' must be 0 (none), 1 (relu) or 2 (relu6), got 3", {"activation": 3}),
    (ValueError, "'activation' must be", {"activation": -1}),
    (ValueError, "'stride' must be of 2 entries, got [1]", {"stride": [1]}),
    (
        ValueError,
        "'stride' must be at least 1 and at most 2147483647, got [1, 0]",
        {"stride": [1, 0]},
    ),
    (ValueError, "'stride' must be at least 1", {"stride": [-2, 1]}),
    (ValueError, "'stride' must be at least 1 and at most", {"stride": [BIG, 1]}),
    (ValueError, "'dilation' must be at least 1", {"dilation": [0, 1]}),
    (ValueError, "'dilation' must be of 2 entries, got []", {"dilation": []}),
    (ValueError, "'padding' must be of 2 entries (height, width) or 4", {"padding": [1]}),
    (ValueError, "'padding' must be at least 0", {"padding": [-1, 0]}),
    (ValueError, "'padding' must be at least 0", {"padding": [0, 0, 0, -1]}),
    (ValueError, "'output_padding' must be 0 for conv2d, got [1, 0]", {"output_padding": [1, 0]}),
    (ValueError, "'groups' must be at least 1, got 0", {"groups": 0}),
    (ValueError, "'groups' must be at least 1, got -4", {"groups": -4}),
    (ValueError, "'weight' must be divisible into 3 groups in dimension 0", {"groups": 3}),
    (ValueError, "'weight' must be divisible into", {"groups": BIG}),
    (ValueError, "'input' must be of 8 channels, got [2, 4, 6, 7]", {"groups": 2}),
    (ValueError, "'weight' must be 4-dimensional", {"weight": weights(4, 4, 3)}),
    (ValueError, "'weight' must be non-empty", {"weight": weights(4, 4, 0, 3)}),
    (ValueError, "'weight' must be non-empty", {"weight": weights(0, 4, 3, 3)}),
    (ValueError, "'input' must be [channels, height, width] or", {"input": codes(4, 4)}),
    (ValueError, "'input' must be [channels, height, width] or", {"input": codes(1, 2, 4, 6, 7)}),
    (ValueError, "'input' must be [channels, height, width] or", {"input": point(1).byte()}),
    (ValueError, "'input' must be non-empty but for the batch", {"input": codes(2, 4, 0, 7)}),
    (
        ValueError,
        "'input' must be at least as large as the kernel (3 in dimension -2) with its padding, "
        "got 2 + 0",
        {"input": codes(2, 4, 2, 7)},
    ),
    (
        ValueError,
        "'input' must be at least as large as the kernel (13 in dimension -2)",
        {"dilation": [6, 1]},
    ),
    (
        ValueError,
        "'weight' must be of at most 65793 values per output (sums must fit int32), got 73728",
        {"input": codes(1, 8192, 3, 3), "weight": weights(4, 8192, 3, 3)},
    ),
    (
        ValueError,
        "'weight' must be on the device of 'input' (cpu), got meta",
        {"weight": weights(4, 4, 3, 3).to("meta")},
    ),
    (
        ValueError,
        "'factor' must be on the device of 'input' (cpu), got meta",
        {"factor": torch.ones(4, device="meta", **F64)},
    ),
]

TRANSPOSED_ERRORS: list[tuple[type[Exception], str, dict[str, object]]] = [
    (
        ValueError,
        "'output_padding' must be smaller than stride or dilation, got [1, 0]",
        {"output_padding": [1, 0]},
    ),
    (ValueError, "'output_padding' must be of 2 entries, got []", {"output_padding": []}),
    (ValueError, "'output_padding' must be at least 0", {"output_padding": [-1, 0]}),
    (
        ValueError,
        "'padding' must be of 2 entries (height, width), got [0, 0, 0, 0]",
        {"padding": [0] * 4},
    ),
    (
        ValueError,
        "'padding' must be small enough to leave an output in dimension -2, got [4, 0]",
        {"padding": [4, 0]},
    ),
    (ValueError, "'input' must be of 4 channels, got [2, 3, 6, 7]", {"input": codes(2, 3, 6, 7)}),
    (ValueError, "'weight_scale' must be of shape [8], got [4]", {"groups": 2}),
]

LINEAR_ERRORS: list[tuple[type[Exception], str, dict[str, object]]] = [
    (ValueError, "'groups' must be 1 for linear, got 2", {"groups": 2}),
    (ValueError, "'weight' must be 2-dimensional", {"weight": weights(4, 4, 1, 1)}),
    (ValueError, "'weight' must be non-empty", {"weight": weights(4, 0), "input": codes(2, 0)}),
    (ValueError, "'input' must be [..., 4] as the weight says, got [2, 5]", {"input": codes(2, 5)}),
    (ValueError, "'input' must be [..., 4] as the weight says, got []", {"input": codes()}),
    (
        ValueError,
        "'weight' must be of at most 65793 values per output",
        {"input": codes(1, 65794), "weight": weights(4, 65794)},
    ),
]


@pytest.mark.parametrize(
    ("base", "error", "text", "changes"),
    [
        pytest.param(base, *row, id=f"{base}-{i}")
        for base, table in (
            (CONV2D, CONV_ERRORS),
            (CONV_TRANSPOSE2D, TRANSPOSED_ERRORS),
            (LINEAR, LINEAR_ERRORS),
        )
        for i, row in enumerate(table)
    ],
)
def test_quantized_conv_says_what_is_wrong(
    base: int, error: type[Exception], text: str, changes: dict[str, object]
) -> None:
    with pytest.raises(error) as caught:
        conv(base, **changes)
    assert str(caught.value).startswith("quantized_conv: ")
    assert text in str(caught.value)


@pytest.mark.parametrize("base", [CONV2D, CONV_TRANSPOSE2D, LINEAR])
def test_the_arguments_of_the_error_table_are_good(base: int) -> None:
    assert conv(base).dtype == torch.uint8


def test_lists_are_not_read_for_linear() -> None:
    names = ("stride", "padding", "dilation", "output_padding")
    lists: dict[str, object] = {name: [] for name in names}
    assert torch.equal(conv(LINEAR, **lists), conv(LINEAR))


def test_results_too_large_for_memory_are_an_error() -> None:
    huge = 2**31 - 1
    with pytest.raises(RuntimeError):
        conv(padding=[huge, huge])
    with pytest.raises(RuntimeError):
        conv(CONV_TRANSPOSE2D, stride=[huge, huge])
