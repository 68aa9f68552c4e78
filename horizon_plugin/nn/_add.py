"""The methods of a group that ends in an add, after `prepare_qat`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from horizon_plugin.nn._operands import operand_output_size, resolve_operands


class AddMethods:
    """Mixin: finds the convolution's operand and runs the group of the stage it is mixed with."""

    if TYPE_CHECKING:
        conv_operand: int

        def __getattr__(self, name: str) -> Any:
            """What the body mixed with this one has."""

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """The group's result; either operand may be the convolution's."""
        return self._add(x, y, self.activation)

    def add_relu(self, x: Tensor, y: Tensor) -> Tensor:
        """As `add`, with a relu inside the group."""
        return self._add(x, y, self.activation if self.activation != 0 else 1)

    def _add(self, x: Tensor, y: Tensor, activation: int) -> Tensor:
        if torch.jit.is_scripting():
            if self.conv_operand == 2:
                return self._scripted(x, None, self.op_output_padding, activation, True)
            if self.conv_operand == 1:
                return self._scripted(y, x, self.op_output_padding, activation, False)
            return self._scripted(x, y, self.op_output_padding, activation, False)
        else:
            return self._add_eager(x, y, activation)

    @torch.jit.unused
    def _add_eager(self, x: Tensor, y: Tensor, activation: int) -> Tensor:
        if not torch.compiler.is_compiling() and "weight" in self.__dict__:
            raise RuntimeError(
                f"{self._path}: its weight is set by a hook (pruning, spectral norm), which does "
                "not run where a fused add is used: make it permanent "
                "(torch.nn.utils.prune.remove), or use torch.nn.utils.parametrize"
            )
        source, skip, operand = resolve_operands(self, x, y)
        if operand != self.conv_operand and not torch.compiler.is_compiling():
            self.conv_operand = operand
        size = operand_output_size(x, y)
        padding = self.op_output_padding if size is None else self.padding_for(source, size)
        return self._eager(source, skip, padding, activation, skip is None)

    def forward(self, input: Tensor) -> Tensor:
        """Refuses: the module is used through `add`."""
        raise RuntimeError("a fused add is used through its methods add and add_relu, not called")
