"""What prepared and converted modules share: reading tags, naming themselves in errors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from horizon_plugin import _carry
from horizon_plugin._carry import Tag
from horizon_plugin._state import FixedDtypes

#: What a tag names as the "op" of a layer without an output quantizer.
HIGH_PRECISION = "high-precision output"


class Layer:
    """Mixin of every module that reads or sets a tag.

    Plain attributes (never in state dicts):
        _path: the module's name in its root, for messages and tags.
        _inputs: operand name -> the tag it had at the last forward.
        _producers: operand name -> names of the modules it came from so far.
        input_scale, input_zero_point, skip_scale, skip_zero_point: the recorded grids, for
            TorchScript, which sees no tags; filled by `__prepare_scriptable__`.
        output_dtype: of a result that stays float.
    """

    if TYPE_CHECKING:  # torch.jit would read annotations of attributes as types
        _path: str
        training: bool

        def __getattr__(self, name: str) -> Any:
            """What the module mixed with this one has."""

    def init_layer(self, path: str) -> None:
        """Give the module its name and empty records."""
        self._path = path
        self._inputs: dict[str, Tag | None] = {}
        self._producers: dict[str, list[str]] = {}
        self.input_scale = torch.empty(0)
        self.input_zero_point = torch.empty(0, dtype=torch.int32)
        self.skip_scale = torch.empty(0)
        self.skip_zero_point = torch.empty(0, dtype=torch.int32)
        self.script_quantized = True
        self.output_dtype = torch.float32

    def record(self, operand: str, tag: Tag | None) -> None:
        """Remember where an operand came from and on which grid."""
        if torch.compiler.is_compiling():
            return
        self._inputs[operand] = tag
        if _carry.is_quantized(tag):
            producers = self._producers.setdefault(operand, [])
            if tag[4] not in producers:  # type: ignore[index]
                producers.append(tag[4])  # type: ignore[index]

    def check_version(self, x: Tensor, tag: Tag, operand: str) -> None:
        """Refuse a tensor that was changed in place behind the tag's back."""
        if _carry.version_of(x) != tag[3] and not torch.compiler.is_compiling():
            raise RuntimeError(
                f"{self._path}: '{operand}' (the result of {tag[4]}) was changed in place after it "
                "was quantized: use an out-of-place op, or a FloatFunctional"
            )

    def problem(self, operand: str) -> str | None:
        """Why an operand was not quantized at the last forward; None if it was."""
        tag = self._inputs.get(operand)
        if tag is None:
            if operand in self._inputs:
                return f"'{operand}' is not quantized: put a QuantStub before {self._path}"
            return None
        if tag[0] == "lost" and tag[1] == HIGH_PRECISION:
            return (
                f"'{operand}' is the high-precision (fp32) output of {tag[2]}: give {tag[2]} the "
                f"ordinary qconfig, or put a QuantStub before {self._path}"
            )
        if tag[0] == "lost":
            return (
                f"'{operand}' comes from '{tag[1]}', a float op on the result of {tag[2]}: "
                f"{_carry.remedy_for(tag[1])}"
            )
        return None

    def problems(self) -> list[str]:
        """All operands' problems, each naming this module."""
        found = (self.problem(operand) for operand in self._inputs)
        return [f"{self._path}: {text}" for text in found if text is not None]

    def __prepare_scriptable__(self) -> Layer:
        """Fix the recorded grids as constants before `torch.jit.script` compiles the module."""
        if getattr(self, "training", False):
            raise RuntimeError(
                f"torch.jit.script: {self._path} is in training mode: call model.eval() first"
            )
        for operand in ("input", "skip"):
            tag = self._inputs.get(operand)
            if len(self._producers.get(operand, [])) > 1 and self.needs_one_scale():
                raise RuntimeError(
                    f"torch.jit.script: {self._path} is called with results of "
                    f"{' and '.join(self._producers[operand])}, whose scales may differ: use "
                    "torch.jit.trace"
                )
            if _carry.is_quantized(tag):
                setattr(self, f"{operand}_scale", tag[1].detach().clone())  # type: ignore[index]
                setattr(self, f"{operand}_zero_point", tag[2].detach().clone())  # type: ignore[index]
        self.script_quantized = all(_carry.is_quantized(t) for t in self._inputs.values())
        if self.needs_input_grid() and not self._inputs:
            raise RuntimeError(
                f"torch.jit.script: {self._path} has not seen an input: run one forward in eval "
                "mode first, so that the scale of its input is known (and remove it if forward "
                "never calls it)"
            )
        return self

    def needs_one_scale(self) -> bool:
        """Whether a scripted forward is wrong if the operands' scales differ between calls."""
        return True

    def needs_input_grid(self) -> bool:
        """Whether a scripted forward needs recorded grids."""
        return True

    def named(self, error: Exception) -> Exception:
        """The same kind of error with the module's name in front."""
        return _named(self._path, error)


_PLAIN_ERRORS = (ValueError, TypeError, RuntimeError, NotImplementedError, IndexError)
#: Where the arguments of `quantize_activation` after the tensor say whether it fake-quantizes.
_FAKE_QUANTIZES = 9


def _named(what: str, error: Exception) -> Exception:
    text = str(error).split("\nException raised from")[0]
    kind = type(error) if type(error) in _PLAIN_ERRORS else RuntimeError
    return kind(f"{what}: {text}")


def wants_surrogate(tensors: Iterable[Tensor]) -> bool:
    """Whether an integer forward also needs its float simulation, for gradients to pass.

    Never in a trace, which would hold either, by the grad mode that it was made in; a script holds
    no simulation either.
    """
    if not torch.is_grad_enabled() or torch.jit.is_tracing():
        return False
    return any(t.requires_grad for t in tensors)


class PreparedLayer(Layer):
    """A module between `prepare_qat` and `convert`: floats on a grid."""

    def operand_grid(self, x: Tensor, operand: str) -> tuple[Tensor | None, Tensor | None]:
        """Scale and stored zero point of an operand, or Nones if it is not quantized.

        Raises:
            RuntimeError: it was quantized before and carries no tag now.
        """
        tag = _carry.get_tag(x)
        if tag is not None and tag[0] == "grid":
            self.check_version(x, tag, operand)
            self.record(operand, tag)
            return tag[1], tag[2]
        if tag is None and self._producers.get(operand) and not torch.compiler.is_compiling():
            raise RuntimeError(
                f"{self._path}: '{operand}' was quantized at an earlier call and is not now: a "
                "direct call of a submodule, or a recomputed block, runs outside the prepared "
                "model; wrap it in horizon_plugin.quantization.carry(), or give checkpoint "
                "use_reentrant=False and context_fn=carry"
            )
        if tag is not None and tag[0] == "codes":
            raise TypeError(
                f"{self._path}: '{operand}' must be float, got codes of {tag[4]}: "
                "convert the model as a whole"
            )
        self.record(operand, tag)
        return None, None

    def named(self, error: Exception) -> Exception:
        """As for any layer; of a NaN also the producer, whose fake quantization let it pass."""
        named = super().named(error)
        sources = [tag[4] for tag in self._inputs.values() if _carry.is_quantized(tag)]  # type: ignore[index]
        if "must be free of NaN" not in str(named) or not sources:
            return named
        return type(named)(f"{named}, in the result of {' or '.join(dict.fromkeys(sources))}")

    def record_dtype(self, x: Tensor) -> None:
        """Remember in which dtype the model runs, for a result that stays float.

        Under autocast that is not the dtype of `x`: it is of the region.
        """
        if torch.compiler.is_compiling() or torch._C._is_any_autocast_enabled():
            return
        if x.is_floating_point():
            self.output_dtype = x.dtype

    def from_island(self, x: Any, operand: str) -> Any:
        """`x`, observed and fake-quantized if it is the float result of an island."""
        tag = _carry.get_tag(x)
        if tag is None or tag[0] != "island":
            return x
        state = tag[5]
        try:
            y, scale, zero_point = torch.ops.horizon.quantize_activation(x, *state)
        except (ValueError, TypeError, RuntimeError) as error:
            raise _named(f"{self._path}: '{operand}', the result of {tag[4]}", error) from None
        if state[_FAKE_QUANTIZES]:
            return _carry.set_tag(y, ("grid", scale, zero_point, 0, tag[4]))
        return _carry.set_tag(y, ("off", tag[4]))


class ConvertedLayer(FixedDtypes, Layer):
    """A module after `convert`: uint8 codes."""

    def take_records(self, source: Layer) -> None:
        """Copy what the prepared module recorded of its operands."""
        self.output_dtype = source.output_dtype
        self._inputs = dict(source._inputs)
        self._producers = {k: list(v) for k, v in source._producers.items()}

    def take_grid(self, quantizer: Any) -> None:
        """Register the output's ``scale`` and stored ``zero_point``; None where it stays fp32."""
        scale = zero_point = None
        if quantizer is not None:
            scale = quantizer.scale.detach().clone()
            zero_point = quantizer.stored_zero_point().detach().clone()
        self.register_buffer("scale", scale)
        self.register_buffer("zero_point", zero_point)

    def from_island(self, x: Any, operand: str) -> Any:
        """`x`, as codes if it is the float result of an island."""
        tag = _carry.get_tag(x)
        if tag is None or tag[0] != "island":
            return x
        try:
            codes = torch.ops.horizon.quantize(x.detach(), tag[1], tag[2])
        except (ValueError, TypeError, RuntimeError) as error:
            raise _named(f"{self._path}: '{operand}', the result of {tag[4]}", error) from None
        return _carry.set_tag(codes, ("codes", tag[1], tag[2], 0, tag[4]))

    def scripted_codes(self, x: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
        """The same in a script, where `x` says by its dtype whether an island made it."""
        if x.is_floating_point():
            return torch.ops.horizon.quantize(x, scale, zero_point)
        return x

    def operand_codes(self, x: Any, operand: str) -> tuple[Tensor, Tensor]:
        """Scale and stored zero point of an operand.

        Raises:
            RuntimeError: it carries no tag, so it was not quantized.
        """
        tag = _carry.get_tag(x)
        if tag is None or tag[0] != "codes":
            got = str(x.dtype) if isinstance(x, Tensor) else type(x).__name__
            if tag is not None and tag[0] == "grid":
                raise RuntimeError(
                    f"{self._path}: '{operand}' must be codes, got floats of {tag[4]}, which is "
                    "prepared: convert the model as a whole"
                )
            raise RuntimeError(
                f"{self._path}: '{operand}' must be quantized, got {got} without a scale: put a "
                "QuantStub before it, and call the converted model as a whole"
            )
        self.check_version(x, tag, operand)
        self.record(operand, tag)
        return tag[1], tag[2]


def adopt_hooks(target: nn.Module, source: nn.Module) -> None:
    """Give `target` every hook of `source`, the module that it replaces.

    The dictionaries themselves move, so that the user's handles still remove their hooks.
    """
    for name, value in source.__dict__.items():
        if "hook" in name and isinstance(value, dict):
            target.__dict__[name] = value
