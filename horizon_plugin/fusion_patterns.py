"""The pattern table of `fuse_modules`, as read from C++.

``print(fusion_patterns.table())`` shows it.
"""

from __future__ import annotations

from typing import NamedTuple

from horizon_plugin import _C
from horizon_plugin.nn._family import Variant

__all__ = ["PATTERNS", "Pattern", "table"]


class Pattern(NamedTuple):
    """A sequence of modules and what it fuses into.

    Attributes:
        kinds: class names, such as ``("Conv2d", "BatchNorm2d", "ReLU")``. SyncBatchNorm counts as
            the batch norm, Hardtanh(0, 6) as ReLU6.
        variant: base, batch norm, add and activation.
        class_name: the fused class in `nn.intrinsic`, `nn.qat` and `nn.quantized`.
    """

    kinds: tuple[str, ...]
    variant: Variant
    class_name: str


PATTERNS: tuple[Pattern, ...] = tuple(
    Pattern(kinds, Variant(*variant), name) for kinds, variant, name in _C.fusion_patterns()
)


def table() -> str:
    """One line a pattern: the sequence and its class."""
    lines = [(f"({', '.join(pattern.kinds)})", pattern.class_name) for pattern in PATTERNS]
    width = max(len(sequence) for sequence, _ in lines)
    return "\n".join(f"{sequence:<{width}}  {name}" for sequence, name in lines)
