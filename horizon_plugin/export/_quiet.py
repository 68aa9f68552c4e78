"""Silence about torch's own use of what it deprecates."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet() -> Iterator[None]:
    """Around calls of torch.export: its copies of tree specs warn about their own class."""
    with warnings.catch_warnings():
        for category in (DeprecationWarning, FutureWarning):
            warnings.filterwarnings("ignore", r".*(treespec|LeafSpec)", category)
        yield
