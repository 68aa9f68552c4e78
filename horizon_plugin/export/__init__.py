"""Files and graphs for others: ONNX, and the partition of `torch.export` programs."""

from horizon_plugin.export._onnx import to_onnx
from horizon_plugin.export._partition import ProgramGroup, ProgramPartition, partition

__all__ = ["ProgramGroup", "ProgramPartition", "partition", "to_onnx"]
