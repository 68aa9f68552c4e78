"""Fused modules: `intrinsic` (float), `qat` (prepared), `quantized` (converted)."""

from horizon_plugin.nn import intrinsic

__all__ = ["intrinsic", "qat", "quantized"]
