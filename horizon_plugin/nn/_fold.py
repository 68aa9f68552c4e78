"""Folding a batch norm into the layer before it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from horizon_plugin.nn._pending import FusionError


def _per_output_channel(factor: Tensor, base: Any) -> Tensor:
    """`factor` in a shape that broadcasts over the weight of `base`."""
    if isinstance(base, nn.Linear):
        return factor.view(-1, 1)
    if not isinstance(base, nn.ConvTranspose2d):
        return factor.view(-1, 1, 1, 1)
    # Weights are [in, out / groups, kh, kw], and channel c of group g is g * (out / groups) + c.
    per_group = factor.view(base.groups, 1, -1)
    rows = per_group.expand(-1, base.in_channels // base.groups, -1)
    return rows.reshape(base.in_channels, -1, 1, 1)


def _parameter(value: Tensor, like: Tensor, requires_grad: bool) -> nn.Parameter:
    kept = torch.empty_like(like) if value.shape == like.shape else like.new_empty(value.shape)
    return nn.Parameter(kept.copy_(value), requires_grad=requires_grad)


def folded_parameters(base: Any, bn: Any) -> tuple[nn.Parameter, nn.Parameter]:
    """Fresh weight and bias of `base` that make up for its batch norm in eval mode.

    Computed in float64; dtype, device, memory format and `requires_grad` are those of the layer.

    Raises:
        FusionError: the two stand on different devices.
    """
    weight = base.weight
    if bn.running_mean.device != weight.device:
        raise FusionError(
            f"fuse_modules: a batch norm must be on the device of its layer to be folded, got "
            f"{bn.running_mean.device} and {weight.device}"
        )
    # Parameters made in inference mode could never be trained.
    with torch.inference_mode(False), torch.no_grad():
        factor, offset = torch.ops.horizon.fold_batch_norm(
            base.bias,
            bn.weight,
            bn.bias,
            bn.running_mean,
            bn.running_var,
            bn.eps,
            bn.num_features,
        )
        folded = weight.to(factor.dtype) * _per_output_channel(factor, base)
        source = base.bias if base.bias is not None else bn.bias
        trains = weight.requires_grad if source is None else source.requires_grad
        return (
            _parameter(folded, weight, weight.requires_grad),
            _parameter(offset, weight, trains),
        )
