"""Loading a float checkpoint into a model that has been fused or prepared since."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from horizon_plugin.nn._island import Island
from horizon_plugin.nn._layer import ConvertedLayer
from horizon_plugin.quantization import _modules
from horizon_plugin.quantization._module_tree import GROUP
from horizon_plugin.quantization._state_check import differences


def _float_path(path: str, islands: list[str]) -> str:
    """The path of a module in the float model, where no island stands around it."""
    for island in islands:
        inner = f"{island}.module"
        if path == inner or path.startswith(f"{inner}."):
            return island + path.removeprefix(inner)
    return path


def _renames(model: nn.Module) -> dict[str, str]:
    """Prefix of a float model's keys -> prefix in `model`, for the members of fused groups."""
    found: dict[str, str] = {}
    islands: list[str] = []
    for path, module in model.named_modules():
        if isinstance(module, Island):
            islands.append(path)
            found[f"{path}."] = f"{path}.module."
        group: Any = module.__dict__.get(GROUP)
        if group is None or not hasattr(module, "variant"):
            continue
        slot = group.names[group.add] if group.add >= 0 else group.names[0]
        # Names are relative to the model that was fused, which may be a part of this one.
        outer = _float_path(path, islands).removesuffix(slot)
        if getattr(module, "bn_folded", False):
            raise ValueError(
                f"load_float_state_dict: the batch norm of '{path}' has been folded away, so a "
                "float state dict no longer fits: load it before fuse_modules, or fuse in "
                "training mode"
            )
        found[f"{outer}{group.names[0]}."] = f"{path}."
        if getattr(module, "bn", None) is not None:
            found[f"{outer}{group.names[1]}."] = f"{path}.bn."
    return found


def load_float_state_dict(model: nn.Module, state_dict: Mapping[str, Tensor]) -> nn.Module:
    """Load the state dict of the float model, as it was before fusion, into `model`.

    Keys are mapped onto the fused modules. Quantizers keep their ranges, which a float state dict
    does not hold.

    Args:
        model: fused with `fuse_modules`, possibly prepared; not converted, no folded batch norm.
        state_dict: of the float model, complete.

    Returns:
        `model`.

    Raises:
        ValueError: keys are missing or left over, or shapes differ; nothing is loaded then.
    """
    _modules.check_model("load_float_state_dict", model)
    if any(isinstance(m, ConvertedLayer) for m in model.modules()):
        raise ValueError(
            "load_float_state_dict: 'model' must be fused or prepared, got a converted one: load "
            "before convert"
        )
    if not isinstance(state_dict, Mapping) or not all(
        isinstance(value, Tensor) for value in state_dict.values()
    ):
        raise TypeError(
            "load_float_state_dict: 'state_dict' must map names to tensors, got "
            f"{type(state_dict).__name__}"
        )
    renames = _renames(model)
    mapped: dict[str, Tensor] = {}
    for key, value in state_dict.items():
        prefix = max((p for p in renames if key.startswith(p)), key=len, default="")
        mapped[renames.get(prefix, "") + key.removeprefix(prefix)] = value
    own = model.state_dict()
    quantizers = {key for key in own if "activation_post_process." in key}
    problems = differences(own, mapped, quantizers, strict=True)
    if problems:
        raise ValueError(
            "load_float_state_dict: 'state_dict' must be that of the float model, got "
            + "; ".join(problems)
        )
    model.load_state_dict(mapped, strict=False)
    return model
