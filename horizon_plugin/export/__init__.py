"""Files and graphs for others: ONNX, and the partition of `torch.export` programs."""

from horizon_plugin.export._onnx import to_onnx

__all__ = ["to_onnx"]
