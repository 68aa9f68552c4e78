"""Float islands: modules with ``qconfig = None`` between quantized ones.

An island runs on the real values of its operands. Its result is float, and is quantized only where
a quantized layer consumes it (`Layer.from_island`), by the island's own quantizer: the result of a
head that leaves the model stays as it is.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from horizon_plugin import _carry
from horizon_plugin.nn._layer import HIGH_PRECISION, ConvertedLayer, Layer, PreparedLayer


def _map(value: Any, function: Any) -> Any:
    """`value` with `function` applied to its tensors; what does not change stays the object."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, dict):
        items = {key: _map(item, function) for key, item in value.items()}
        return items if any(items[key] is not value[key] for key in items) else value
    if isinstance(value, (tuple, list)):
        mapped = [_map(item, function) for item in value]
        if all(new is old for new, old in zip(mapped, value, strict=True)):
            return value
        # A named tuple takes its fields one by one.
        return type(value)(*mapped) if hasattr(value, "_fields") else type(value)(mapped)
    return value


class Island(Layer):
    """What the prepared and the converted island share. The user's module is ``module``."""

    def init_island(self, module: nn.Module, path: str) -> None:
        """Hold `module`, which runs in float."""
        self.module = module
        self.init_layer(path)
        self.takes_one_tensor = True

    def _enter(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def _leave(self, y: Tensor) -> Tensor:
        raise NotImplementedError

    def _named_operand(self) -> str:
        return "input" if self._seen == 0 else f"input {self._seen}"

    @torch.jit.unused
    def _eager(self, args: Any, kwargs: Any) -> Any:
        self._seen = 0
        if not torch.compiler.is_compiling():
            one = len(args) == 1 and not kwargs and isinstance(args[0], Tensor)
            self.takes_one_tensor = one
        with torch._C.DisableTorchFunction():
            args, kwargs = _map(args, self._enter), _map(kwargs, self._enter)
        result = self.module(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            return _map(result, self._leave)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's result on the real values of quantized arguments."""
        return self._eager(args, kwargs)

    def problem(self, operand: str) -> str | None:
        """None: an island takes whatever comes."""
        return None

    def check_scriptable(self) -> None:
        """A script needs a signature: only islands of one tensor have one."""
        if not self.takes_one_tensor:
            raise RuntimeError(
                f"torch.jit.script: {self._path} is a float island that takes more than one "
                "tensor: use torch.jit.trace"
            )

    def __getattr__(self, name: str) -> Any:
        """What the module holds: code that reads its attributes or calls its methods runs on."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module" or "module" not in self.__dict__.get("_modules", {}):
                raise
            return getattr(self.module, name)

    def __getitem__(self, index: Any) -> Any:
        """A member of a Sequential."""
        return self.module[index]  # type: ignore[index]


class PreparedIsland(Island, PreparedLayer, nn.Module):
    """A float module among fake-quantized ones."""

    @classmethod
    def from_float(cls, source: nn.Module, qconfig: Any, path: str) -> nn.Module:
        """Wrap `source`; `qconfig`, of the modules around it, makes the result's quantizer."""
        self: Any = cls()
        self.init_island(source, path)
        self.training = source.training
        self.activation_post_process = None
        if qconfig.activation is not None:
            quantizer = qconfig.activation()
            for tensor in [*source.parameters(), *source.buffers()][:1]:
                quantizer = quantizer.to(tensor.device)
            self.activation_post_process = quantizer.train(self.training)
        return self

    def _enter(self, x: Tensor) -> Tensor:
        tag = _carry.get_tag(x)
        operand = self._named_operand()
        self._seen += 1
        if tag is not None and tag[0] == "grid":
            self.check_version(x, tag, operand)
        self.record(operand, ("off", self._path) if tag is None else tag)
        self.record_dtype(x)
        return x if tag is None else torch.ops.aten.alias(x)

    def _leave(self, y: Tensor) -> Tensor:
        if not y.is_floating_point():
            return y
        if isinstance(y, nn.Parameter):
            y = torch.ops.aten.alias(y)
        quantizer = self.activation_post_process
        if quantizer is None:
            return _carry.set_tag(y, ("lost", HIGH_PRECISION, self._path))
        state = (
            quantizer.min_val,
            quantizer.max_val,
            quantizer.observed,
            quantizer.scale,
            quantizer.zero_point,
            quantizer.preset,
            quantizer.observer,
            quantizer.averaging_constant,
            quantizer.moves(),
            quantizer.fake_quant_enabled,
            quantizer.skip_nonfinite,
        )
        return _carry.set_tag(y, ("island", None, None, 0, self._path, state))

    def needs_input_grid(self) -> bool:
        """Not in the prepared stage: data is float already."""
        return False

    def needs_one_scale(self) -> bool:
        """Likewise."""
        return False

    def __prepare_scriptable__(self) -> Any:
        """The form whose forward has a signature."""
        self.check_scriptable()
        super().__prepare_scriptable__()
        self.__class__ = ScriptablePreparedIsland
        return self


class ScriptablePreparedIsland(PreparedIsland):
    """The form that `torch.jit.script` compiles."""

    # Without an annotation the script takes the type that the module returns.
    def forward(self, input: Tensor):  # type: ignore[no-untyped-def]
        """The module's result."""
        if torch.jit.is_scripting():
            return self.module(input)
        else:
            return self._eager((input,), {})


class ConvertedIsland(Island, ConvertedLayer, nn.Module):
    """A float module among integer ones: dequantize, the module, quantize where it is consumed.

    State: the module's own, and ``scale`` and stored ``zero_point`` of the result.
    """

    @classmethod
    def from_prepared(cls, source: Any) -> nn.Module:
        """With the scale that the prepared island uses."""
        self: Any = cls()
        self.init_island(source.module, source._path)
        for name, value in source.__dict__.items():
            if "hook" in name and isinstance(value, dict):
                self.__dict__[name] = value
        self.takes_one_tensor = source.takes_one_tensor
        self.take_records(source)
        self.take_grid(source.activation_post_process)
        self.training = False
        return self

    def _enter(self, x: Tensor) -> Tensor:
        tag = _carry.get_tag(x)
        operand = self._named_operand()
        self._seen += 1
        if tag is None or tag[0] != "codes":
            self.record(operand, ("off", self._path))
            return x if tag is None else torch.ops.aten.alias(x)
        self.check_version(x, tag, operand)
        self.record(operand, tag)
        return torch.ops.horizon.dequantize(x, tag[1], tag[2], self.output_dtype)

    def _leave(self, y: Tensor) -> Tensor:
        if self.scale is None or not y.is_floating_point():
            return y
        if isinstance(y, nn.Parameter):
            y = torch.ops.aten.alias(y)
        return _carry.set_tag(y, ("island", self.scale, self.zero_point, 0, self._path))

    def needs_input_grid(self) -> bool:
        """A float input passes."""
        return False

    def __prepare_scriptable__(self) -> Any:
        """The form whose forward has a signature."""
        self.check_scriptable()
        super().__prepare_scriptable__()
        self.__class__ = ScriptableConvertedIsland
        return self


class ScriptableConvertedIsland(ConvertedIsland):
    """The form that `torch.jit.script` compiles."""

    # Without an annotation the script takes the type that the module returns.
    def forward(self, input: Tensor):  # type: ignore[no-untyped-def]
        """The module's result on the real values of codes."""
        if torch.jit.is_scripting():
            if self.script_quantized:
                x = torch.ops.horizon.dequantize(
                    input, self.input_scale, self.input_zero_point, self.output_dtype
                )
                return self.module(x)
            return self.module(input)
        else:
            return self._eager((input,), {})
