"""Quantizers: the state of a range, and fake quantization on it."""

from __future__ import annotations

import functools
import math
import warnings
from enum import Enum
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from horizon_plugin import _carry
from horizon_plugin._state import FixedDtypes

PRESETS = {"horizon": 0, "tensorrt": 1, "x86": 2}
_OBSERVERS = {"moving_average": 0, "min_max": 1, "fixed": 2}
_NAN_POLICIES = ("raise", "skip")


class FakeQuantState(Enum):
    """What quantizers do; see `set_fake_quantize`.

    * ``QAT``: in training, ranges move and fake-quant is on; in eval, ranges are frozen.
    * ``VALIDATION``: ranges are frozen, fake-quant is on.
    * ``CALIBRATION``: ranges move, also in eval mode; fake-quant is off.
    """

    QAT = "qat"
    CALIBRATION = "calibration"
    VALIDATION = "validation"


class Factory(functools.partial):
    """A picklable constructor with arguments, comparable by value."""

    def with_args(self, **kwargs: Any) -> Factory:
        """The same constructor with further arguments."""
        return Factory(self.func, *self.args, **{**self.keywords, **kwargs})

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, functools.partial)
            and self.func is other.func
            and self.args == other.args
            and self.keywords == other.keywords
        )

    def __hash__(self) -> int:
        return hash((self.func, self.args, tuple(sorted(self.keywords))))


def preset_of(backend: str) -> int:
    """The preset number of a backend name; ``""`` is ``"horizon"``."""
    name = backend or "horizon"
    if name not in PRESETS:
        raise ValueError(
            f"qconfig: 'backend' must be one of {', '.join(map(repr, PRESETS))}, got {backend!r}"
        )
    return PRESETS[name]


class FakeQuantize(FixedDtypes, nn.Module):
    """Observes the range of an activation and quantizes on it.

    State: ``min_val``, ``max_val``, ``observed`` (batches seen), ``scale``, ``zero_point``, all
    0-d buffers updated in place. Never observed: scale 1, zero point 0.

    Args:
        backend: ``"horizon"`` (int8, scale = max|x| / 127.5), ``"tensorrt"`` (int8, max|x| / 127)
            or ``"x86"`` (uint8, affine).
        observer: ``"moving_average"``, ``"min_max"`` or ``"fixed"``.
        averaging_constant: weight of the newest batch in the moving average, in (0, 1].
        nan_policy: ``"raise"`` on a batch with NaN or inf, or ``"skip"`` it with one warning.
        scale, zero_point: a fixed grid (implies ``observer="fixed"``).
    """

    _version = 1
    if TYPE_CHECKING:  # torch.jit would read annotations of attributes as types
        min_val: Tensor
        max_val: Tensor
        observed: Tensor
        scale: Tensor
        zero_point: Tensor

    def __init__(
        self,
        backend: str = "horizon",
        *,
        observer: str = "moving_average",
        averaging_constant: float = 0.01,
        nan_policy: str = "raise",
        scale: float | None = None,
        zero_point: int | None = None,
    ) -> None:
        super().__init__()
        if scale is not None:
            observer = "fixed"
        if observer not in _OBSERVERS:
            raise ValueError(
                f"FakeQuantize: 'observer' must be one of {', '.join(map(repr, _OBSERVERS))}, "
                f"got {observer!r}"
            )
        if not 0.0 < averaging_constant <= 1.0:
            raise ValueError(
                f"FakeQuantize: 'averaging_constant' must be in (0, 1], got {averaging_constant}"
            )
        if nan_policy not in _NAN_POLICIES:
            raise ValueError(
                f"FakeQuantize: 'nan_policy' must be 'raise' or 'skip', got {nan_policy!r}"
            )
        self.preset = preset_of(backend)
        self.backend = backend or "horizon"
        self.quant_min, self.quant_max = (0, 255) if self.preset == 2 else (-128, 127)
        if scale is not None and not (math.isfinite(scale) and scale > 0):
            raise ValueError(f"FakeQuantize: 'scale' must be finite and positive, got {scale}")
        zero = zero_point or 0
        if self.preset != 2 and zero != 0:
            raise ValueError(
                f"FakeQuantize: 'zero_point' must be 0 on the symmetric grid of "
                f"{self.backend!r}, got {zero}"
            )
        if not self.quant_min <= zero <= self.quant_max:
            raise ValueError(
                f"FakeQuantize: 'zero_point' must be in [{self.quant_min}, {self.quant_max}], "
                f"got {zero}"
            )
        self.observer = _OBSERVERS[observer]
        self.averaging_constant = averaging_constant
        self.skip_nonfinite = nan_policy == "skip"
        self.observer_enabled = True
        self.fake_quant_enabled = True
        self.calibrating = False
        self.warned = False
        self.register_buffer("min_val", torch.zeros(()))
        self.register_buffer("max_val", torch.zeros(()))
        self.register_buffer("observed", torch.zeros((), dtype=torch.int64))
        self.register_buffer("scale", torch.tensor(1.0 if scale is None else float(scale)))
        self.register_buffer("zero_point", torch.tensor(zero, dtype=torch.int32))

    @classmethod
    def with_args(cls, **kwargs: Any) -> Factory:
        """A picklable factory of quantizers with these arguments."""
        return Factory(cls, **kwargs)

    @property
    def dtype(self) -> str:
        """``"qint8"`` or ``"quint8"``."""
        return "quint8" if self.preset == 2 else "qint8"

    def moves(self) -> bool:
        """Whether a forward now moves the range."""
        if not (self.observer_enabled and (self.training or self.calibrating)):
            return False
        if torch.compiler.is_compiling():
            return True
        # A forward recomputed inside backward (activation checkpointing) saw this batch already.
        return torch._C._current_graph_task_id() == -1

    def never_observed(self) -> bool:
        """Whether the grid is the initial one although it should follow the data."""
        return self.observer != 2 and int(self.observed) == 0

    def stored_zero_point(self) -> Tensor:
        """The zero point of the uint8 codes."""
        return self.zero_point - self.quant_min

    def watch(self, observe: bool) -> int:
        """The batches seen so far, if a skipped one is to be noticed; else -1."""
        if not (observe and self.skip_nonfinite) or torch.compiler.is_compiling():
            return -1
        # On a GPU reading the count would stop the queue: the range just stays.
        return -1 if self.observed.is_cuda else int(self.observed)

    def warn_if_skipped(self, x: Tensor, seen: int, producer: str) -> None:
        """Say once that a batch with NaN or inf did not move the range."""
        if seen < 0 or x.numel() == 0 or int(self.observed) != seen or self.warned:
            return
        self.warned = True
        warnings.warn(
            f"{producer}: a batch with nan or inf was skipped, its range stays (nan_policy='skip'; "
            "said once)",
            UserWarning,
            stacklevel=4,
        )

    def quantize(self, x: Tensor, observe: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Observe if asked, then fake-quantize: result, scale, stored zero point."""
        return torch.ops.horizon.quantize_activation(
            x,
            self.min_val,
            self.max_val,
            self.observed,
            self.scale,
            self.zero_point,
            self.preset,
            self.observer,
            self.averaging_constant,
            observe,
            self.fake_quant_enabled,
            self.skip_nonfinite,
        )

    @torch.jit.unused
    def quantize_and_tag(self, x: Tensor, producer: str) -> Tensor:
        """`quantize`, with the tag that the consumer reads."""
        with torch._C.DisableTorchFunction():
            if not self.fake_quant_enabled and not self.moves():
                y = torch.ops.aten.alias(x)
                return _carry.set_tag(y, ("off", producer))
            moves = self.moves()
            seen = self.watch(moves)
            y, scale, zero_point = self.quantize(x, moves)
            self.warn_if_skipped(x, seen, producer)
            if self.fake_quant_enabled:
                return _carry.set_tag(y, ("grid", scale, zero_point, 0, producer))
            return _carry.set_tag(y, ("off", producer))

    def forward(self, x: Tensor) -> Tensor:
        """Observe (in training or calibration) and fake-quantize `x`."""
        if torch.jit.is_scripting():
            return self.quantize(x, False)[0]
        else:
            return self.quantize_and_tag(x, "FakeQuantize")

    def _save_to_state_dict(self, destination, prefix, keep_vars):  # type: ignore[no-untyped-def]
        super()._save_to_state_dict(destination, prefix, keep_vars)
        metadata = getattr(destination, "_metadata", {}).get(prefix[:-1])
        if metadata is not None:
            metadata["backend"] = self.backend

    def _load_from_state_dict(  # type: ignore[no-untyped-def]
        self, state_dict, prefix, local_metadata, *args
    ):
        saved = local_metadata.get("backend", self.backend)
        if saved != self.backend:
            raise ValueError(
                f"load_state_dict: '{prefix[:-1]}' must be saved for backend {self.backend!r}, got "
                f"{saved!r}: prepare the model with get_default_qat_qconfig(backend={saved!r})"
            )
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)

    def extra_repr(self) -> str:
        """Grid, observer and switches."""
        observer = next(name for name, value in _OBSERVERS.items() if value == self.observer)
        return (
            f"backend={self.backend!r}, dtype={self.dtype}, observer={observer}, "
            f"fake_quant={self.fake_quant_enabled}, observe={self.observer_enabled}"
        )


class WeightFakeQuantize(nn.Module):
    """Per-output-channel abs-max quantization of a weight, to [-127, 127].

    The scale is a function of the weight as it is now: there is no state to save or to observe.

    Args:
        base: 0 conv2d ``[out, in/g, kh, kw]``, 1 conv_transpose2d ``[in, out/g, kh, kw]``,
            2 linear ``[out, in]``; `prepare_qat` sets it.
        groups: groups of the layer.
    """

    quant_min, quant_max = -127, 127

    def __init__(self, *, base: int = 0, groups: int = 1) -> None:
        super().__init__()
        self.base = base
        self.groups = groups
        self.fake_quant_enabled = True

    @classmethod
    def with_args(cls, **kwargs: Any) -> Factory:
        """A picklable factory of weight quantizers with these arguments."""
        return Factory(cls, **kwargs)

    def scale_of(self, weight: Tensor) -> Tensor:
        """fp32 scales, one per output channel."""
        return torch.ops.horizon.weight_scale(weight, self.base, self.groups)

    def forward(self, weight: Tensor) -> Tensor:
        """The weight on its grid; the gradient is the identity."""
        if not self.fake_quant_enabled:
            return weight
        return torch.ops.horizon.fake_quantize_weight(weight, self.base, self.groups)

    def extra_repr(self) -> str:
        """Range and switch."""
        return f"qint8 per channel [-127, 127], fake_quant={self.fake_quant_enabled}"


def disable_fake_quant(module: nn.Module) -> None:
    """For ``model.apply``: stop quantizing activations and weights."""
    if isinstance(module, (FakeQuantize, WeightFakeQuantize)):
        module.fake_quant_enabled = False


def enable_fake_quant(module: nn.Module) -> None:
    """For ``model.apply``: quantize activations and weights again."""
    if isinstance(module, (FakeQuantize, WeightFakeQuantize)):
        module.fake_quant_enabled = True


def disable_observer(module: nn.Module) -> None:
    """For ``model.apply``: freeze ranges. Weight scales still follow the weights."""
    if isinstance(module, FakeQuantize):
        module.observer_enabled = False


def enable_observer(module: nn.Module) -> None:
    """For ``model.apply``: let ranges move in training again."""
    if isinstance(module, FakeQuantize):
        module.observer_enabled = True


def set_fake_quantize(model: nn.Module, state: FakeQuantState) -> None:
    """Put every quantizer of `model` into `state`."""
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"set_fake_quantize: 'model' must be an nn.Module, got {type(model).__name__}"
        )
    if not isinstance(state, FakeQuantState):
        raise TypeError(f"set_fake_quantize: 'state' must be a FakeQuantState, got {state!r}")
    if not any(isinstance(m, (FakeQuantize, WeightFakeQuantize)) for m in model.modules()):
        raise ValueError(
            "set_fake_quantize: 'model' must be prepared, got one without quantizers: call "
            "prepare_qat first (a converted model has no states)"
        )
    quantizing = state is not FakeQuantState.CALIBRATION
    for module in model.modules():
        if isinstance(module, (FakeQuantize, WeightFakeQuantize)):
            module.fake_quant_enabled = quantizing
        if isinstance(module, FakeQuantize):
            module.observer_enabled = state is not FakeQuantState.VALIDATION
            module.calibrating = state is FakeQuantState.CALIBRATION
