"""What becomes of the batch norm of a fused group."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import StrEnum

__all__ = ["QATMode", "get_qat_mode", "set_qat_mode"]


class QATMode(StrEnum):
    """How `fuse_modules` treats batch norms.

    ``Auto``: members in eval mode are folded, members in train mode keep a live batch norm.
    ``FuseBN``: always folded. ``WithBN`` and ``WithBNReverseFold``: always kept; the two coincide
    here, because the batch norm never scales the weights (docs/numerics.md).
    """

    Auto = "auto"
    FuseBN = "fuse_bn"
    WithBN = "with_bn"
    WithBNReverseFold = "with_bn_reverse_fold"


_global_mode = QATMode.Auto
_override: ContextVar[QATMode | None] = ContextVar("horizon_qat_mode", default=None)


def check_qat_mode(mode: QATMode | str, caller: str) -> QATMode:
    """The mode that `mode` names.

    Raises:
        ValueError: it names none.
    """
    try:
        return QATMode(mode)
    except ValueError:
        names = ", ".join(repr(str(m)) for m in QATMode)
        raise ValueError(f"{caller}: 'mode' must be one of {names}, got {mode!r}") from None


def set_qat_mode(mode: QATMode | str) -> None:
    """Set the mode of later `fuse_modules` calls, for the whole process."""
    global _global_mode
    _global_mode = check_qat_mode(mode, "set_qat_mode")


def get_qat_mode() -> QATMode:
    """The mode that `fuse_modules` goes by."""
    return _override.get() or _global_mode


@contextmanager
def override_qat_mode(mode: QATMode) -> Iterator[None]:
    """Within the context, `get_qat_mode` gives `mode` to this thread."""
    token = _override.set(mode)
    try:
        yield
    finally:
        _override.reset(token)
