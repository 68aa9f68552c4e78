from collections.abc import Sequence
from typing import Any

def cpu_capability() -> str: ...
def fusion_patterns() -> list[tuple[tuple[str, ...], tuple[int, bool, bool, int], str]]: ...
def plan_fusion(
    nodes: list[tuple[Any, ...]],
    groups: Sequence[Sequence[str]],
    lists: Sequence[Sequence[str]],
    mode: str,
    allow_inner_hooks: bool,
    match_patterns: bool,
    custom_patterns: Sequence[Sequence[int]],
) -> tuple[list[tuple[Any, ...]], list[str]]: ...
def find_fusions(
    nodes: list[tuple[Any, ...]],
    groups: Sequence[Sequence[str]],
    record: tuple[Any, ...],
    mode: str,
    allow_inner_hooks: bool,
    custom_patterns: Sequence[Sequence[int]],
) -> tuple[list[tuple[Any, ...]], list[str], list[tuple[int, str, str, bool]]]: ...
def check_fusions(
    nodes: list[tuple[Any, ...]],
    groups: Sequence[Sequence[str]],
    record: tuple[Any, ...],
    planned: Sequence[tuple[Sequence[int], Sequence[str]]],
) -> list[str]: ...
