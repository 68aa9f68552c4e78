"""Freezing the statistics of batch norms."""

from __future__ import annotations

from typing import Any

from torch import nn

from horizon_plugin.nn._unary import BatchNormOps

_BATCH_NORMS = (nn.modules.batchnorm._BatchNorm,)


def _freeze(module: nn.Module, frozen: bool) -> None:
    child: Any
    for child in module.modules():
        if hasattr(child, "bn_frozen") and getattr(child, "bn", None) is not None:
            child.bn_frozen = frozen
            child.bn.train(child.training and not frozen)
        elif isinstance(child, BatchNormOps):
            child.bn_frozen = frozen
        elif isinstance(child, _BATCH_NORMS):
            child.train(child.training and not frozen)


def freeze_bn_stats(module: nn.Module) -> None:
    """Stop running statistics from moving; gamma and beta still train.

    Prepared batch norms and those inside fused modules stay frozen through ``train()`` calls. A
    float one on its own is put into eval mode, which a later ``train()`` of the model undoes: call
    this again then.
    """
    _freeze(module, True)


def unfreeze_bn_stats(module: nn.Module) -> None:
    """Undo `freeze_bn_stats` (statistics move again where the model is in training mode)."""
    child: Any
    for child in module.modules():
        if hasattr(child, "bn_frozen") and getattr(child, "bn", None) is not None:
            child.bn_frozen = False
            child.bn.train(child.training)
        elif isinstance(child, BatchNormOps):
            child.bn_frozen = False
    if module.training:
        for child in module.modules():
            if isinstance(child, _BATCH_NORMS):
                child.train(True)
