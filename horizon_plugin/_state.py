"""State that keeps its precision when the model around it changes its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor


class FixedDtypes:
    """Mixin of modules whose buffers keep their dtype under `.half()`, `.to(dtype)`, `.float()`.

    Ranges, scales and integer constants are what the arithmetic is defined on: a model of another
    dtype has the same ones. Moves to other devices are honoured.
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        def keep(t: Tensor) -> Tensor:
            out = fn(t)
            return out if out.dtype == t.dtype else t.to(out.device)

        return super()._apply(keep, recurse)  # type: ignore[misc]
