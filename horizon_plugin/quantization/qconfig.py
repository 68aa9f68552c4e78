"""Which quantizers a module gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import nn

from horizon_plugin.quantization.fake_quantize import (
    FakeQuantize,
    WeightFakeQuantize,
    preset_of,
)


class QConfig(NamedTuple):
    """Two factories of quantizers, for a module's output and for its weight.

    ``activation=None``: the output stays at high precision. ``weight=None``: the weight of a
    convolution or linear layer cannot be quantized, so the module stays float.
    """

    activation: Callable[[], nn.Module] | None
    weight: Callable[[], nn.Module] | None


_DTYPES = {"horizon": "qint8", "tensorrt": "qint8", "x86": "quint8"}


def _check(
    dtype: str, weight_dtype: str, activation: str | None, weight: str | None, backend: str
) -> None:
    preset_of(backend)
    name = backend or "horizon"
    if dtype not in ("qint8", "quint8"):
        raise ValueError(f"qconfig: 'dtype' must be 'qint8' or 'quint8', got {dtype!r}")
    # The default, qint8, follows the backend; only a quint8 can contradict it.
    if dtype == "quint8" and _DTYPES[name] != "quint8":
        raise ValueError(
            f"qconfig: 'dtype' must be {_DTYPES[name]!r} for backend {name!r}, got {dtype!r}"
        )
    if weight_dtype != "qint8":
        raise ValueError(f"qconfig: 'weight_dtype' must be 'qint8', got {weight_dtype!r}")
    for argument, value in (("activation_fake_quant", activation), ("weight_fake_quant", weight)):
        if value not in ("fake_quant", None):
            raise ValueError(f"qconfig: '{argument}' must be 'fake_quant' or None, got {value!r}")


def get_default_qat_qconfig(
    dtype: str = "qint8",
    weight_dtype: str = "qint8",
    activation_fake_quant: str | None = "fake_quant",
    weight_fake_quant: str | None = "fake_quant",
    activation_qkwargs: dict[str, Any] | None = None,
    weight_qkwargs: dict[str, Any] | None = None,
    backend: str = "",
) -> QConfig:
    """The usual quantizers for training.

    Args:
        dtype: of activations; left at its default it follows `backend`.
        weight_dtype: ``"qint8"``.
        activation_fake_quant: ``"fake_quant"``, or None for a high-precision output.
        weight_fake_quant: ``"fake_quant"``, or None for float weights.
        activation_qkwargs: further arguments of `FakeQuantize`.
        weight_qkwargs: further arguments of `WeightFakeQuantize`.
        backend: ``"horizon"`` (also ``""``), ``"tensorrt"`` or ``"x86"``.

    Raises:
        ValueError: a dtype that contradicts the backend, or an unknown name.
    """
    _check(dtype, weight_dtype, activation_fake_quant, weight_fake_quant, backend)
    activation = None
    if activation_fake_quant is not None:
        activation = FakeQuantize.with_args(
            **{"backend": backend or "horizon", **(activation_qkwargs or {})}
        )
        activation()
    weight = None
    if weight_fake_quant is not None:
        weight = WeightFakeQuantize.with_args(**(weight_qkwargs or {}))
        weight()
    return QConfig(activation=activation, weight=weight)


def get_default_qat_out_qconfig(
    dtype: str = "qint8",
    weight_dtype: str = "qint8",
    weight_fake_quant: str | None = "fake_quant",
    weight_qkwargs: dict[str, Any] | None = None,
    backend: str = "",
) -> QConfig:
    """For the last layer: quantized input and weight, high-precision (fp32) output."""
    return get_default_qat_qconfig(
        dtype=dtype,
        weight_dtype=weight_dtype,
        activation_fake_quant=None,
        weight_fake_quant=weight_fake_quant,
        weight_qkwargs=weight_qkwargs,
        backend=backend,
    )


def get_default_calib_qconfig(
    dtype: str = "qint8",
    weight_dtype: str = "qint8",
    activation_qkwargs: dict[str, Any] | None = None,
    weight_qkwargs: dict[str, Any] | None = None,
    backend: str = "",
) -> QConfig:
    """For calibration without training: running minimum and maximum."""
    return get_default_qat_qconfig(
        dtype=dtype,
        weight_dtype=weight_dtype,
        activation_qkwargs={"observer": "min_max", **(activation_qkwargs or {})},
        weight_qkwargs=weight_qkwargs,
        backend=backend,
    )
