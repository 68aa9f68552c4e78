"""Bodies of the converted stage: conv / conv-transpose / linear groups on uint8 codes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from horizon_plugin import _carry
from horizon_plugin.nn import _family
from horizon_plugin.nn._add import AddMethods
from horizon_plugin.nn._layer import ConvertedLayer, adopt_hooks

_GEOMETRY = (
    "in_channels out_channels in_features out_features kernel_size stride padding dilation "
    "output_padding groups padding_mode op_padding pad_amounts pad_mode "
    "pads_first op_stride op_dilation op_output_padding op_groups conv_operand _pending_token"
).split()


class ConvertedBody(ConvertedLayer, nn.Module):
    """A fused group as one integer op: the batch norm is part of its constants.

    State: ``weight`` int8 in the float weight's shape; ``weight_scale`` fp32, ``bn_scale`` fp64
    (gamma / sigma) and ``bias`` fp64 (after the batch norm), one per output channel; ``scale``
    and stored ``zero_point`` of the output, absent for a high-precision (fp32) output.

    In memory, and in TorchScript and exported programs, the weight is ``packed_weight``, laid out
    as the kernels read it, on every machine the same. ``weight`` unpacks it.
    """

    _version = 1
    if TYPE_CHECKING:  # torch.jit would read annotations of attributes as types
        variant: ClassVar[_family.Variant]
        has_bn: bool
        has_add: bool
        activation: int
        base: int
        conv_operand: int

    __constants__ = ("activation", "base")
    __jit_unused_properties__ = ("weight",)

    @classmethod
    def from_prepared(cls, source: Any) -> nn.Module:
        """The integer form of a prepared group, with the scales that its eval mode uses."""
        self: Any = cls.__new__(cls)
        nn.Module.__init__(self)
        adopt_hooks(self, source)
        for name in _GEOMETRY:
            if hasattr(source, name):
                setattr(self, name, getattr(source, name))
        self.init_layer(source._path)
        self.take_records(source)
        self.training = False
        bn = source.bn
        if bn is not None and bn.running_mean is None:
            raise ValueError(
                f"convert: {source._path}: its batch norm has no running statistics "
                "(track_running_stats=False), so there is nothing to deploy"
            )
        with torch.no_grad():
            weight = source.weight.detach()
            scale = torch.ops.horizon.weight_scale(weight, cls.base, source.op_groups)
            codes = torch.ops.horizon.quantize_weight(weight, scale, cls.base, source.op_groups)
            factor, offset = torch.ops.horizon.fold_batch_norm(
                source.bias,
                None if bn is None else bn.weight,
                None if bn is None else bn.bias,
                None if bn is None else bn.running_mean,
                None if bn is None else bn.running_var,
                0.0 if bn is None else bn.eps,
                scale.numel(),
            )
        self.output_dtype = weight.dtype
        self.weight_size = list(codes.shape)
        self.register_buffer("packed_weight", self._packed(codes), persistent=False)
        self.register_buffer("weight_scale", scale)
        self.register_buffer("bn_scale", factor.detach())
        self.register_buffer("bias", offset.detach())
        self.take_grid(source.activation_post_process)
        return self

    def _group(
        self,
        x: Tensor,
        x_scale: Tensor,
        x_zero_point: Tensor,
        skip: Tensor | None,
        skip_scale: Tensor | None,
        skip_zero_point: Tensor | None,
        output_padding: list[int],
        activation: int,
        doubled: bool,
    ) -> Tensor:
        if torch.jit.is_scripting():
            packed, weight_scale = self.packed_weight, self.weight_scale
            factor, offset = self.bn_scale, self.bias
            scale, zero_point = self.scale, self.zero_point
        else:
            packed, weight_scale, factor, offset, scale, zero_point = self._tensors()
        if doubled:
            factor, offset = factor * 2.0, offset * 2.0
        if self.pads_first:
            x = F.pad(x, self.pad_amounts, mode=self.pad_mode)
        y = torch.ops.horizon.quantized_conv_packed(
            x,
            x_scale,
            x_zero_point,
            packed,
            self.weight_size,
            weight_scale,
            factor,
            offset,
            skip,
            skip_scale,
            skip_zero_point,
            scale,
            zero_point,
            self.base,
            self.op_stride,
            self.op_padding,
            self.op_dilation,
            output_padding,
            self.op_groups,
            activation,
        )
        if scale is None and y.dtype != self.output_dtype:
            y = y.to(self.output_dtype)
        return y

    @torch.jit.unused
    def _tensors(self) -> tuple[Any, ...]:
        # As attributes they would cost as much as the op's call: torch looks them up in Python.
        b = self._buffers
        names = ("packed_weight", "weight_scale", "bn_scale", "bias", "scale", "zero_point")
        return tuple([b[name] for name in names])

    def _scripted(
        self,
        x: Tensor,
        skip: Tensor | None,
        output_padding: list[int],
        activation: int,
        doubled: bool,
    ) -> Tensor:
        skip_scale: Tensor | None = None
        skip_zero_point: Tensor | None = None
        if skip is not None:
            skip_scale, skip_zero_point = self.skip_scale, self.skip_zero_point
            skip = self.scripted_codes(skip, self.skip_scale, self.skip_zero_point)
        return self._group(
            self.scripted_codes(x, self.input_scale, self.input_zero_point),
            self.input_scale,
            self.input_zero_point,
            skip,
            skip_scale,
            skip_zero_point,
            output_padding,
            activation,
            doubled,
        )

    @torch.jit.unused
    def _eager(
        self,
        x: Tensor,
        skip: Tensor | None,
        output_padding: list[int],
        activation: int,
        doubled: bool,
    ) -> Tensor:
        with torch._C.DisableTorchFunction():
            x = self.from_island(x, "input")
            x_scale, x_zero_point = self.operand_codes(x, "input")
            skip_scale = skip_zero_point = None
            if skip is not None:
                skip = self.from_island(skip, "skip")
                skip_scale, skip_zero_point = self.operand_codes(skip, "skip")
            try:
                y = self._group(
                    x,
                    x_scale,
                    x_zero_point,
                    skip,
                    skip_scale,
                    skip_zero_point,
                    output_padding,
                    activation,
                    doubled,
                )
            except (ValueError, TypeError, RuntimeError, IndexError) as error:
                raise self.named(error) from None
            scale = self._buffers["scale"]
            if scale is None:
                return y
            tag = ("codes", scale, self._buffers["zero_point"], 0, self._path)
            return _carry.set_tag(y, tag)

    @property
    def weight(self) -> Tensor:
        """The int8 codes in the float weight's shape: a copy of the packed ones."""
        return torch.ops.horizon.unpack_weight(
            self.packed_weight, self.weight_size, *self._layout()
        )

    def _packed(self, codes: Tensor) -> Tensor:
        return torch.ops.horizon.pack_weight(codes, *self._layout())

    @torch.jit.unused
    def _layout(self) -> tuple[int, list[int], list[int], int]:
        return self.base, self.op_stride, self.op_dilation, self.op_groups

    def _save_to_state_dict(self, destination, prefix, keep_vars):  # type: ignore[no-untyped-def]
        destination[prefix + "weight"] = self.weight
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def _load_from_state_dict(  # type: ignore[no-untyped-def]
        self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, errors
    ):
        key = prefix + "weight"
        weight = state_dict.get(key)
        if weight is not None and weight.dtype != torch.int8:
            raise ValueError(
                f"load_state_dict: '{key}' must be int8 codes, got {weight.dtype}: "
                "this is a state dict of another stage (load it before convert)"
            )
        if weight is None:
            if strict:
                missing_keys.append(key)
        elif list(weight.shape) != self.weight_size:
            errors.append(
                f"size mismatch for {key}: copying a param with shape {weight.shape} from "
                f"checkpoint, the shape in current model is {torch.Size(self.weight_size)}."
            )
        else:
            self.packed_weight.copy_(self._packed(weight))
        rest = {name: value for name, value in state_dict.items() if name != key}
        super()._load_from_state_dict(
            rest, prefix, local_metadata, strict, missing_keys, unexpected_keys, errors
        )

    def extra_repr(self) -> str:
        """Sizes and geometry."""
        names = ("in_channels", "out_channels", "in_features", "out_features", "kernel_size")
        parts = [f"{n}={getattr(self, n)}" for n in names if hasattr(self, n)]
        parts += [f"{n}={getattr(self, n)}" for n in ("stride", "padding") if hasattr(self, n)]
        output = "float32" if self.scale is None else "uint8 codes"
        return ", ".join([*parts, f"output={output}"])


class ConvertedConv2d(ConvertedBody):
    """Integer conv2d groups without an add."""

    def forward(self, input: Tensor) -> Tensor:
        """uint8 codes ``[N, C, H, W]`` or ``[C, H, W]`` to codes, or fp32 (high precision)."""
        if torch.jit.is_scripting():
            return self._scripted(input, None, self.op_output_padding, self.activation, False)
        else:
            return self._eager(input, None, self.op_output_padding, self.activation, False)


class _Transposed(ConvertedBody):
    def padding_for(self, input: Tensor, output_size: list[int]) -> list[int]:
        """The output padding that gives `output_size`."""
        size = output_size[-2:]
        padding: list[int] = []
        for i in range(2):
            smallest = (
                (input.size(input.dim() - 2 + i) - 1) * self.op_stride[i]
                - 2 * self.op_padding[i]
                + self.op_dilation[i] * (self.weight_size[2 + i] - 1)
                + 1
            )
            if size[i] < smallest or size[i] >= smallest + self.op_stride[i]:
                raise ValueError(
                    f"conv_transpose2d: 'output_size' must be in [{smallest}, "
                    f"{smallest + self.op_stride[i] - 1}] in dimension {i}, got {size[i]}"
                )
            padding.append(size[i] - smallest)
        return padding


class ConvertedConvTranspose2d(_Transposed):
    """Integer conv_transpose2d groups without an add."""

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        """As `nn.ConvTranspose2d.forward`, on uint8 codes."""
        padding = self.op_output_padding
        if output_size is not None:
            padding = self.padding_for(input, output_size)
        if torch.jit.is_scripting():
            return self._scripted(input, None, padding, self.activation, False)
        else:
            return self._eager(input, None, padding, self.activation, False)


class ConvertedLinear(ConvertedBody):
    """Integer linear groups without an add."""

    def forward(self, input: Tensor) -> Tensor:
        """uint8 codes ``[*, in_features]`` to codes or fp32 ``[*, out_features]``."""
        if torch.jit.is_scripting():
            return self._scripted(input, None, self.op_output_padding, self.activation, False)
        else:
            return self._eager(input, None, self.op_output_padding, self.activation, False)


class ConvertedAdd(AddMethods, ConvertedBody):
    """Integer groups that end in an add."""


class ConvertedConvTranspose2dAdd(ConvertedAdd, _Transposed):
    """Integer conv_transpose2d groups that end in an add."""

    takes_output_size = True


BODIES = {
    (_family.BASE_CONV2D, False): ConvertedConv2d,
    (_family.BASE_CONV2D, True): ConvertedAdd,
    (_family.BASE_CONV_TRANSPOSE2D, False): ConvertedConvTranspose2d,
    (_family.BASE_CONV_TRANSPOSE2D, True): ConvertedConvTranspose2dAdd,
    (_family.BASE_LINEAR, False): ConvertedLinear,
    (_family.BASE_LINEAR, True): ConvertedAdd,
}
