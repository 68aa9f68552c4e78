"""Fusion-aware quantization-aware training for PyTorch."""

from horizon_plugin._library import __version__

__all__ = ["__version__"]
