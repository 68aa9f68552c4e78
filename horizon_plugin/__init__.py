"""Fusion-aware quantization-aware training for PyTorch.

The usual way through it::

    model = Net().train()
    horizon_plugin.quantization.fuse_modules(model, [["conv", "bn", "relu"]], inplace=True)
    model.qconfig = horizon_plugin.quantization.get_default_qat_qconfig()
    horizon_plugin.quantization.prepare_qat(model, inplace=True)
    train(model)
    int8 = horizon_plugin.quantization.convert(model.eval())
    torch.jit.trace(int8, x).save("model.pt")
"""

from horizon_plugin._library import __version__, cmake_dir

# The order matters: the stages of `nn` are built on parts of `quantization`.
from horizon_plugin import quantization  # isort: skip
from horizon_plugin import export, fusion_patterns, jit, nn, ops, qat_mode  # isort: skip

__all__ = [
    "__version__",
    "cmake_dir",
    "export",
    "fusion_patterns",
    "jit",
    "nn",
    "ops",
    "qat_mode",
    "quantization",
]
