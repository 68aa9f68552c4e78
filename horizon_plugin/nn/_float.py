"""Bodies of the float stage: the fused modules that `fuse_modules` puts into a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.fx
import torch.nn.functional as F
from torch import Tensor, nn

from horizon_plugin.nn import _family
from horizon_plugin.nn._operands import operand_output_size, resolve_operands
from horizon_plugin.nn._pending import OTHER_FUNCTIONALS, refuse_functional


def check_two_dimensional(z: Tensor, name: str) -> Tensor:
    """Refuse what a linear layer with a batch norm cannot normalize by feature."""
    if z.dim() != 2:
        raise ValueError(
            f"{name}: 'input' must be 2-D, [N, features], for a linear layer fused with "
            f"BatchNorm1d, got {z.dim()} dimensions"
        )
    return z


# One node of a symbolic trace, which cannot branch on a shape.
torch.fx.wrap("check_two_dimensional")


_CONSTANTS = {"has_bn", "has_add", "activation", "base"}


class FloatBody:
    """What every float fused module has besides its base.

    Attributes:
        bn: the batch norm, the user's own module object, or None.
        bn_frozen: the batch norm stays in eval mode through `train()` calls.
        bn_folded: a batch norm was folded into weight and bias.
        fused_name: the path of the module in its model, for messages.
    """

    if TYPE_CHECKING:  # torch.jit would read annotations of attributes as types
        variant: ClassVar[_family.Variant]
        has_bn: bool
        has_add: bool
        activation: int
        base: int
        weight: Any
        bias: Any
        bn: Any
        bn_frozen: bool
        bn_folded: bool
        fused_name: Any

        def _base(self, input: Tensor, output_size: list[int] | None) -> Tensor: ...

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Joins the constants of the base layer and of the fused part."""
        super().__init_subclass__(**kwargs)
        inherited = {n for base in cls.__mro__ for n in base.__dict__.get("__constants__", ())}
        cls.__constants__ = sorted(inherited | _CONSTANTS)  # type: ignore[attr-defined]

    def __init__(self, base: nn.Module, bn: nn.Module | None = None) -> None:
        """Fuse `base` and `bn`, whose parameters are taken over, not copied."""
        if (bn is not None) != self.has_bn:
            need = "be a batch norm" if self.has_bn else "be None"
            raise ValueError(f"{type(self).__name__}: 'bn' must {need}, got {bn}")
        assert isinstance(self, nn.Module)
        _family.adopt(self, base)
        if bn is None:
            self.__dict__["bn"] = None
        else:
            self._modules["bn"] = bn
        # Written past nn.Module.__setattr__, which takes most of the time of fusing a large model.
        self.__dict__.update(
            bn_frozen=bn is not None and base.training and not bn.training,
            bn_folded=False,
            fused_name=type(self).__name__,
        )

    def train(self, mode: bool = True):  # type: ignore[no-untyped-def]
        """As `nn.Module.train`, except that a frozen batch norm stays in eval mode."""
        super().train(mode)  # type: ignore[misc]
        if self.bn is not None and self.bn_frozen:
            self.bn.eval()
        return self

    def _normalize(self, z: Tensor) -> Tensor:
        if self.bn is not None:
            z = self.bn(z)
        return z

    def _activate(self, y: Tensor) -> Tensor:
        if self.activation == 1:
            return F.relu(y)
        if self.activation == 2:
            return F.relu6(y)
        return y

    def extra_repr(self) -> str:
        """Base arguments, then what is fused."""
        parts = [super().extra_repr()]  # type: ignore[misc]
        if self.bn_frozen:
            parts.append("bn_frozen=True")
        if self.bn_folded:
            parts.append("batch norm folded into weight and bias")
        return ", ".join(parts)


class FloatAddBody(FloatBody):
    """Groups that end in an add: they stand in the FloatFunctional's place.

    Attributes:
        conv_operand: which operand the last eager `add` found to be the convolution's (0 first,
            1 second, 2 both); what a script goes by.
    """

    takes_output_size = True

    def __init__(self, base: nn.Module, bn: nn.Module | None = None) -> None:
        """As for every fused module; `fuse_modules` ties it to its convolution's slot."""
        super().__init__(base, bn)
        self.conv_operand = 0

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """The group's result; either operand may be the convolution's."""
        return self._activate(self._sum(x, y))

    def add_relu(self, x: Tensor, y: Tensor) -> Tensor:
        """As `add`, with a relu inside the group."""
        z = self._sum(x, y)
        if self.activation == 0:
            return F.relu(z)
        return self._activate(z)

    def _sum(self, x: Tensor, y: Tensor) -> Tensor:
        if torch.jit.is_scripting():
            source = x
            skip = y
            if self.conv_operand == 1:
                source = y
                skip = x
            z = self._normalize(self._base(source, None))
            if self.conv_operand == 2:
                return z + z
            return z + skip
        else:
            return self._sum_eager(x, y)

    @torch.jit.unused
    def _sum_eager(self, x: Tensor, y: Tensor) -> Tensor:
        source, skip, operand = resolve_operands(self, x, y)
        if operand != self.conv_operand and not torch.compiler.is_compiling():
            self.conv_operand = operand
        z = self._normalize(self._base(source, operand_output_size(x, y)))
        return z + (z if skip is None else skip)

    def forward(self, input: Tensor) -> Tensor:
        """Refuses: the module is used through `add`."""
        raise RuntimeError(
            f"{self.fused_name} is a fused add: use its methods add(x, y) and add_relu(x, y)"
        )


def _refusal(name: str) -> Callable[..., Any]:
    @torch.jit.unused
    def method(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        refuse_functional(getattr(self, "_pending_token", None), name)

    method.__name__ = name
    method.__doc__ = f"Refuses: a fused add has no `{name}`."
    return method


for _name in OTHER_FUNCTIONALS:
    setattr(FloatAddBody, _name, _refusal(_name))


class FloatConv2d(FloatBody, nn.Conv2d):
    """Float conv2d groups without an add."""

    def forward(self, input: Tensor) -> Tensor:
        """``[N, C, H, W]`` or ``[C, H, W]`` to the same."""
        z = self._conv_forward(input, self.weight, self.bias)
        return self._activate(self._normalize(z))


class FloatConv2dAdd(FloatAddBody, nn.Conv2d):
    """Float conv2d groups with an add."""

    def _base(self, input: Tensor, output_size: list[int] | None) -> Tensor:
        return self._conv_forward(input, self.weight, self.bias)


class _Transposed(nn.ConvTranspose2d):
    def _base(self, input: Tensor, output_size: list[int] | None) -> Tensor:
        output_padding = self._output_padding(
            input,
            output_size,
            self.stride,  # type: ignore[arg-type]
            self.padding,  # type: ignore[arg-type]
            self.kernel_size,  # type: ignore[arg-type]
            2,
            self.dilation,  # type: ignore[arg-type]
        )
        return F.conv_transpose2d(
            input,
            self.weight,
            self.bias,
            self.stride,
            self.padding,  # type: ignore[arg-type]
            output_padding,
            self.groups,
            self.dilation,
        )


class FloatConvTranspose2d(FloatBody, _Transposed):
    """Float conv_transpose2d groups without an add."""

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        """As `nn.ConvTranspose2d.forward`, then the rest of the group."""
        return self._activate(self._normalize(self._base(input, output_size)))


class FloatConvTranspose2dAdd(FloatAddBody, _Transposed):  # type: ignore[misc]
    """Float conv_transpose2d groups with an add."""


class _Linear(nn.Linear):
    if TYPE_CHECKING:
        bn: Any
        bn_folded: bool
        fused_name: Any

    def _base(self, input: Tensor, output_size: list[int] | None) -> Tensor:
        z = F.linear(input, self.weight, self.bias)
        if self.bn is not None or self.bn_folded:
            z = check_two_dimensional(z, self.fused_name)
        return z


class FloatLinear(FloatBody, _Linear):
    """Float linear groups without an add."""

    def forward(self, input: Tensor) -> Tensor:
        """``[*, in_features]`` to ``[*, out_features]``; 2-D with a batch norm."""
        return self._activate(self._normalize(self._base(input, None)))


class FloatLinearAdd(FloatAddBody, _Linear):
    """Float linear groups with an add."""


BODIES: dict[tuple[int, bool], type] = {
    (_family.BASE_CONV2D, False): FloatConv2d,
    (_family.BASE_CONV2D, True): FloatConv2dAdd,
    (_family.BASE_CONV_TRANSPOSE2D, False): FloatConvTranspose2d,
    (_family.BASE_CONV_TRANSPOSE2D, True): FloatConvTranspose2dAdd,
    (_family.BASE_LINEAR, False): FloatLinear,
    (_family.BASE_LINEAR, True): FloatLinearAdd,
}
