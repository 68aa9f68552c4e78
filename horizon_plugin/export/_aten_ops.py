"""ATen operators: views of codes, and the float arithmetic of islands and of what surrounds them.

Named as the core operators that `torch.export` decomposes to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from horizon_plugin.export import _image_ops
from horizon_plugin.export._step import Step, Unsupported, fixed, shape_of
from horizon_plugin.export._writer import Value

Operand = Value | Tensor


def _same(step: Step, x: Operand, *_: Any) -> Operand:
    return x


def _view(step: Step, x: Operand, *_: Any) -> Value:
    return step.value(step.reshape(step.use(x), step.shape))


def _permute(step: Step, x: Operand, dims: list[int]) -> Value:
    return step.emit("Transpose", x, perm=[dim % len(x.shape) for dim in dims])


def _expand(step: Step, x: Operand, *_: Any) -> Value:
    # A size that follows the batch is there already: 1 keeps it.
    target = [1 if size is None else size for size in step.shape]
    return step.emit("Expand", x, step.writer.integers("shape", target))


def _slice(
    step: Step, x: Operand, dim: int, start: int | None, end: int | None, stride: int
) -> Value:
    given = [start or 0, 2**63 - 1 if end is None else end, dim, stride]
    if not all(isinstance(number, int) for number in given):
        raise Unsupported("a slice at a place that follows the batch")
    return step.emit("Slice", x, *(step.writer.integers("slice", [number]) for number in given))


def _select(step: Step, x: Operand, dim: int, index: int) -> Value:
    return step.emit("Gather", x, torch.tensor(index, dtype=torch.int64), axis=dim)


def _split(step: Step, x: Operand, _sizes: Any, dim: int) -> list[Value]:
    parts = step.results()
    lengths = [part.shape[dim] for part in parts]
    sizes = step.writer.integers("split", fixed(lengths, "a split"))
    hints = [f"{step.hint}.{i}" for i in range(len(parts))]
    names = step.writer.nodes_out("Split", [step.use(x), sizes], hints, axis=dim)
    return [Value(n, shape_of(p), p.dtype) for n, p in zip(names, parts, strict=True)]


def _cat(step: Step, tensors: list[Operand], dim: int) -> Value:
    return step.emit("Concat", *tensors, axis=dim)


def _to(step: Step, x: Operand, *_: Any) -> Operand:
    if x.dtype == step.dtype:
        return x
    return step.value(step.cast(step.use(x), step.dtype))


def _copy(step: Step, into: Operand, source: Operand, *_: Any) -> Operand:
    """What an operator that wrote in place became."""
    name = step.use(source)
    if source.dtype != step.dtype:
        name = step.cast(name, step.dtype)
    if tuple(source.shape) != tuple(into.shape):
        name = _expand(step, Value(name, tuple(source.shape), step.dtype)).name
    return step.value(name)


def _unary(op: str, **attributes: Any) -> Callable[..., Value]:
    def emit(step: Step, x: Operand, *_: Any) -> Value:
        return step.emit(op, x, **attributes)

    return emit


def _binary(op: str) -> Callable[..., Value]:
    def emit(step: Step, a: Any, b: Any, alpha: float = 1) -> Value:
        dtype = torch.result_type(*(_sample(x) for x in (a, b)))
        names = [_typed(step, x, dtype) for x in (a, b)]
        if alpha != 1:
            names[1] = step.node("Mul", names[1], torch.tensor(alpha, dtype=dtype))
        return step.emit(op, *names)

    return emit


def _sample(x: Any) -> Any:
    return torch.empty((0,) * len(x.shape), dtype=x.dtype) if isinstance(x, Value) else x


def _typed(step: Step, x: Any, dtype: torch.dtype) -> str:
    if isinstance(x, Value):
        return x.name if x.dtype == dtype else step.cast(x.name, dtype)
    return step.use(torch.as_tensor(x).to(dtype))


def _clamp(step: Step, x: Operand, low: Any = None, high: Any = None) -> Value:
    """Bounds as numbers; those that are tensors go through Max and Min."""
    if isinstance(low, (Tensor, Value)) or isinstance(high, (Tensor, Value)):
        raise Unsupported("a clamp between tensors")
    bounds = ["" if b is None else step.use(torch.tensor(b, dtype=x.dtype)) for b in (low, high)]
    return step.emit("Clip", x, *bounds)


def _extreme(op: str, low: bool) -> Callable[..., Value]:
    """Max or Min; on codes Clip, since runtimes lack Max of uint8."""

    def emit(step: Step, a: Any, b: Any) -> Value:
        if step.dtype != torch.uint8:
            return step.emit(op, a, b)
        if isinstance(a, Tensor):
            a, b = b, a
        if not isinstance(b, Tensor) or b.numel() != 1:
            raise Unsupported("a maximum or minimum of two tensors of codes")
        bound = int(b)
        name = step.use(a)
        return step.value(
            step.clip_codes(name, bound, 255) if low else step.clip_codes(name, 0, bound)
        )

    return emit


def _hardsigmoid(step: Step, x: Operand) -> Value:
    return step.emit("HardSigmoid", x, alpha=1.0 / 6.0, beta=0.5)


def _leaky_relu(step: Step, x: Operand, slope: float) -> Value:
    return step.emit("LeakyRelu", x, alpha=float(slope))


def _elu(step: Step, x: Operand, alpha: float, scale: float, input_scale: float) -> Value:
    if scale != 1 or input_scale != 1:
        raise Unsupported("an ELU with scales")
    return step.emit("Elu", x, alpha=float(alpha))


def _gelu(step: Step, x: Operand, approximate: str) -> Value:
    if approximate == "tanh":
        cube = step.node("Mul", step.node("Mul", x, x), x)
        inner = step.node("Add", x, step.node("Mul", cube, 0.044715))
        bell = step.node("Tanh", step.node("Mul", inner, math.sqrt(2 / math.pi)))
    else:
        bell = step.node("Erf", step.node("Mul", x, math.sqrt(0.5)))
    return step.emit("Mul", step.node("Mul", x, 0.5), step.node("Add", bell, 1.0))


def _silu(step: Step, x: Operand) -> Value:
    return step.emit("Mul", x, step.node("Sigmoid", x))


def _softmax(op: str) -> Callable[..., Value]:
    def emit(step: Step, x: Operand, dim: int, *_: Any) -> Value:
        return step.emit(op, x, axis=dim)

    return emit


def _reduce(op: str) -> Callable[..., Value]:
    def emit(step: Step, x: Operand, dim: Sequence[int] | None, keepdim: bool, *_: Any) -> Value:
        axes = list(dim) if dim else list(range(len(x.shape)))
        return step.emit(op, x, step.writer.integers("axes", axes), keepdims=int(keepdim))

    return emit


def _linear(step: Step, x: Operand, weight: Operand, bias: Operand | None) -> Value:
    y = step.node("MatMul", x, _transposed(step, weight))
    return step.value(y if bias is None else step.node("Add", y, bias))


def _transposed(step: Step, weight: Operand) -> Operand | str:
    if isinstance(weight, Tensor):
        return weight.t()
    return step.node("Transpose", weight, perm=[1, 0])


def _addmm(
    step: Step, bias: Operand, a: Operand, b: Operand, beta: float = 1, alpha: float = 1
) -> Value:
    return step.emit("Gemm", a, b, bias, beta=float(beta), alpha=float(alpha))


def _batch_norm(
    step: Step,
    x: Operand,
    weight: Operand | None,
    bias: Operand | None,
    mean: Tensor,
    var: Tensor,
    momentum: float,
    eps: float,
) -> list[Value]:
    weight = torch.ones_like(mean) if weight is None else weight
    bias = torch.zeros_like(mean) if bias is None else bias
    return [step.emit("BatchNormalization", x, weight, bias, mean, var, epsilon=float(eps))]


def _layer_norm(
    step: Step, x: Operand, shape: list[int], weight: Any, bias: Any, eps: float
) -> list[Value]:
    weight = torch.ones(shape, dtype=x.dtype) if weight is None else weight
    inputs: list[Any] = [x, weight] if bias is None else [x, weight, bias]
    return [step.emit("LayerNormalization", *inputs, axis=-len(shape), epsilon=float(eps))]


def _where(step: Step, condition: Operand, a: Any, b: Any) -> Value:
    return step.emit("Where", condition, *(_typed(step, x, step.dtype) for x in (a, b)))


_RENAMED = {
    "Relu": "relu",
    "Sigmoid": "sigmoid",
    "Tanh": "tanh",
    "Exp": "exp",
    "Log": "log",
    "Sqrt": "sqrt",
    "Abs": "abs",
    "Neg": "neg",
    "Erf": "erf",
    "Sin": "sin",
    "Cos": "cos",
    "Floor": "floor",
    "Ceil": "ceil",
    "Round": "round",
    "Reciprocal": "reciprocal",
    "Sign": "sign",
    "HardSwish": "hardswish",
    "Mish": "mish",
    "Not": "logical_not",
}
_BINARY = {
    "Add": ("add", "Tensor Scalar"),
    "Sub": ("sub", "Tensor Scalar"),
    "Mul": ("mul", "Tensor Scalar"),
    "Div": ("div", "Tensor Scalar"),
    "Pow": ("pow", "Tensor_Tensor Tensor_Scalar"),
    "Greater": ("gt", "Tensor Scalar"),
    "GreaterOrEqual": ("ge", "Tensor Scalar"),
    "Less": ("lt", "Tensor Scalar"),
    "LessOrEqual": ("le", "Tensor Scalar"),
    "Equal": ("eq", "Tensor Scalar"),
}
_SAME = "alias.default clone.default detach.default contiguous.default lift_fresh_copy.default"
_VIEWS = "view.default _unsafe_view.default reshape.default unsqueeze.default"
_VIEWS += " squeeze.dim squeeze.dims squeeze.default flatten.using_ints"

#: "aten::relu.default" -> what writes it.
EMITTERS: dict[str, Callable[..., Any]] = {
    **_image_ops.EMITTERS,
    **{f"aten::{name}.default": _unary(op) for op, name in _RENAMED.items()},
    **{
        f"aten::{name}.{overload}": _binary(op)
        for op, (name, overloads) in _BINARY.items()
        for overload in overloads.split()
    },
    **{f"aten::{name}": _same for name in _SAME.split()},
    **{f"aten::{name}": _view for name in _VIEWS.split()},
    "aten::copy.default": _copy,
    "aten::permute.default": _permute,
    "aten::expand.default": _expand,
    "aten::slice.Tensor": _slice,
    "aten::select.int": _select,
    "aten::split.Tensor": _split,
    "aten::split_with_sizes.default": _split,
    "aten::cat.default": _cat,
    "aten::_to_copy.default": _to,
    "aten::clamp.default": _clamp,
    "aten::hardtanh.default": _clamp,
    "aten::maximum.default": _extreme("Max", True),
    "aten::minimum.default": _extreme("Min", False),
    "aten::hardsigmoid.default": _hardsigmoid,
    "aten::leaky_relu.default": _leaky_relu,
    "aten::elu.default": _elu,
    "aten::gelu.default": _gelu,
    "aten::silu.default": _silu,
    "aten::_softmax.default": _softmax("Softmax"),
    "aten::_log_softmax.default": _softmax("LogSoftmax"),
    "aten::mean.dim": _reduce("ReduceMean"),
    "aten::sum.dim_IntList": _reduce("ReduceSum"),
    "aten::amax.default": _reduce("ReduceMax"),
    "aten::amin.default": _reduce("ReduceMin"),
    "aten::linear.default": _linear,
    "aten::addmm.default": _addmm,
    "aten::mm.default": _binary("MatMul"),
    "aten::bmm.default": _binary("MatMul"),
    "aten::_native_batch_norm_legit_no_training.default": _batch_norm,
    "aten::native_layer_norm.default": _layer_norm,
    "aten::where.self": _where,
}
