"""Passes over TorchScript: the partition into quantizable groups, and what is done with them."""

from horizon_plugin.jit._files import load, save
from horizon_plugin.jit._groups import Group, delegate, groups
from horizon_plugin.jit._partition import (
    ConvolutionReport,
    PartitionReport,
    dump,
    partition,
    report,
    strip,
)
from horizon_plugin.jit._quantize import quantize

__all__ = [
    "ConvolutionReport",
    "Group",
    "PartitionReport",
    "delegate",
    "dump",
    "groups",
    "load",
    "partition",
    "quantize",
    "report",
    "save",
    "strip",
]
