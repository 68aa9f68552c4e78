"""What was fused in a model, and what was left alone and why."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import nn

from horizon_plugin.quantization._module_tree import GROUP, POSITION

#: Attribute of a root that `fuse` or `fuse_fx` has been through: its `FusionNotes`.
NOTES = "_fusion_notes"


@dataclass(frozen=True)
class FusedGroup:
    """One group: its members' names, the class of the fused module, and why it goes no further."""

    names: tuple[str, ...]
    kind: str
    hint: str = ""


@dataclass(frozen=True)
class UnfusedModule:
    """A module that stays as it is: name, class, reason."""

    name: str
    kind: str
    reason: str


class FusionNotes:
    """What `fuse` remembers on the model: builtin types only, so that it copies and pickles.

    Attributes:
        left: (name, class, reason) of every module left alone.
        hints: members' names -> why the group goes no further.
    """

    def __init__(self, left: list[tuple[str, str, str]], hints: dict[tuple[str, ...], str]) -> None:
        self.left = left
        self.hints = hints


@dataclass
class FusionReport:
    """What `fusion_report` returns; print it for a table.

    Attributes:
        fused: the groups.
        left: modules of the pattern table that are in no group, with reasons; only known after
            `fuse` and `fuse_fx`.
    """

    fused: list[FusedGroup] = field(default_factory=list)
    left: list[UnfusedModule] = field(default_factory=list)
    is_searched: bool = False

    def __str__(self) -> str:
        """Groups, then what is left alone."""
        lines = [f"fused: {len(self.fused)}"]
        for group in self.fused:
            lines.append(f"  {', '.join(group.names)} -> {group.kind}")
            if group.hint:
                lines.append(f"    {group.hint}")
        if not self.is_searched:
            return "\n".join([*lines, "left alone: not searched (fuse and fuse_fx do)"])
        lines.append(f"left alone: {len(self.left)}")
        lines += [f"  {row.name} ({row.kind}): {row.reason}" for row in self.left]
        return "\n".join(lines)


def add_notes(
    model: nn.Module,
    left: list[tuple[str, str, str]],
    hints: dict[tuple[str, ...], str],
) -> None:
    """Remember on `model` what a search has found, instead of what an earlier one did."""
    known = model.__dict__.get(NOTES)
    if known is not None:
        hints = {**known.hints, **hints}
    model.__dict__[NOTES] = FusionNotes(left, hints)


def _groups(model: nn.Module) -> list[FusedGroup]:
    """The fused groups by the marks on their modules, with the names that these have now."""
    marks: dict[int, tuple[Any, dict[int, str]]] = {}
    for path, module in model.named_modules():
        token = module.__dict__.get(GROUP)
        if token is not None:
            _, names = marks.setdefault(id(token), (token, {}))
            names.setdefault(module.__dict__.get(POSITION, 0), path)
    notes = model.__dict__.get(NOTES)
    hints = {} if notes is None else notes.hints
    return [_group(model, token, names, hints) for token, names in marks.values()]


def _group(
    model: nn.Module, token: Any, marked: dict[int, str], hints: dict[tuple[str, ...], str]
) -> FusedGroup:
    position, path = next(iter(marked.items()))
    # The model may have become a part of another one since.
    prefix = (
        path.removesuffix(token.names[position]) if path.endswith(token.names[position]) else ""
    )
    names = tuple(marked.get(i, prefix + name) for i, name in enumerate(token.names))
    # A converted module bears no mark; what stands in the slot of one is what it was fused into.
    kind = ""
    for name in (names[token.add if token.add >= 0 else 0], *names):
        try:
            module = model.get_submodule(name)
        except AttributeError:
            continue
        if not isinstance(module, nn.Identity):
            kind = type(module).__name__
            break
    return FusedGroup(names, kind, hints.get(token.names, ""))


def fusion_report(model: nn.Module) -> FusionReport:
    """What was fused in `model`, at whatever stage it is, and what was left alone and why.

    Args:
        model: after `fuse_modules`, `fuse` or `fuse_fx`, also prepared or converted.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"fusion_report: 'model' must be a module, got {type(model).__name__}")
    notes = model.__dict__.get(NOTES)
    fused = _groups(model)
    report = FusionReport(fused, is_searched=notes is not None)
    if notes is not None:
        taken = {name for group in fused for name in group.names}
        report.left = [UnfusedModule(*row) for row in notes.left if row[0] not in taken]
    return report
