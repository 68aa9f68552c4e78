"""Fuses groups for one run, to find those that change what a model computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from horizon_plugin.nn._pending import FusionError
from horizon_plugin.quantization import _replacements
from horizon_plugin.quantization._model_state import ModelState
from horizon_plugin.quantization._module_tree import ModuleTree
from horizon_plugin.quantization._preflight import Preflight
from horizon_plugin.quantization._replacements import Group, Replacement

Build = Callable[[list[Group]], list[Replacement]]

# What explains another output although nothing is fused yet.
_UNFUSED = {
    "fuse_fx": "its trace does not, or it gives another output at each call: use fuse, or make it "
    "depend on its inputs alone"
}
_UNFUSED_EAGER = (
    "it gives another output at each call: make it depend on its inputs and torch's random state "
    "alone, or fuse by names without example_inputs"
)


class Trial:
    """Runs of a model with groups fused, each undone afterwards.

    Args:
        preflight: what to run it on.
        output: what it must give, from before.
    """

    def __init__(self, preflight: Preflight, output: Any) -> None:
        self._preflight = preflight
        self._output = output

    def _difference(
        self, model: nn.Module, tree: ModuleTree, groups: list[Group], build: Build
    ) -> str | None:
        state = ModelState(model)
        try:
            _replacements.apply(tree, groups, build(groups))
            return self._preflight.difference(model, self._output)
        finally:
            state.restore()

    def harmful(
        self, model: nn.Module, tree: ModuleTree, groups: list[Group], build: Build
    ) -> list[tuple[Group, str]]:
        """The groups without which the fused model computes what it did, and what each changes.

        Takes one run if there are none, else about log2 of the number of groups for each.

        Raises:
            FusionError: the model computes something else without any group as well.
        """
        first = self._difference(model, tree, groups, build)
        if first is None:
            return []
        unfused = self._difference(model, tree, [], build) if groups else first
        if unfused is not None:
            call = self._preflight.call
            raise FusionError(
                f"{call}: the model must compute the same on 'example_inputs' again, but "
                f"{unfused}. Nothing was changed: {_UNFUSED.get(call, _UNFUSED_EAGER)}"
            )
        good: list[Group] = []
        bad: list[tuple[Group, str]] = []
        # Parts of the list still to be tried; the first is known to do harm as a whole.
        waiting = [(groups, first)]
        while waiting:
            part, difference = waiting.pop()
            if len(part) == 1:
                bad.append((part[0], difference))
                continue
            halves = part[: len(part) // 2], part[len(part) // 2 :]
            for half in halves:
                found = self._difference(model, tree, good + half, build)
                if found is None:
                    good += half
                else:
                    waiting.append((half, found))
        return bad

    def refuse_harmful(
        self, model: nn.Module, tree: ModuleTree, groups: list[Group], build: Build
    ) -> None:
        """As `harmful`, but every such group is an error. The model is as before then."""
        harmful = self.harmful(model, tree, groups, build)
        if harmful:
            names = " and ".join(str(group.names) for group, _ in harmful)
            raise FusionError(
                f"{self._preflight.call}: the fused model must compute what the model did on "
                f"'example_inputs', but {harmful[0][1]}. Nothing was changed: leave {names} out"
            )
