"""What a state dict must hold before anything of it is written into a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from horizon_plugin.nn._layer import ConvertedLayer
from horizon_plugin.quantization.fake_quantize import FakeQuantize

Check = Callable[[Tensor], bool]
_SHOWN = 5
_KNOWN = {"torch", "horizon_plugin"}


def _finite(value: Tensor) -> bool:
    return bool(torch.isfinite(value).all())


def _positive(value: Tensor) -> bool:
    return _finite(value) and bool((value > 0).all())


def _between(low: int, high: int) -> tuple[str, Check]:
    text = f"in [{low}, {high}]" if low != high else f"{low}"
    return text, lambda value: bool(((value >= low) & (value <= high)).all())


_FINITE: tuple[str, Check] = ("finite", _finite)
_SCALE: tuple[str, Check] = ("finite and positive", _positive)
_COUNT: tuple[str, Check] = ("at least 0", lambda value: bool((value >= 0).all()))


def _rules(module: nn.Module) -> dict[str, tuple[str, Check]]:
    """Names of a layer's own tensors whose dtype is fixed, and what their values must be."""
    if isinstance(module, FakeQuantize):
        symmetric = module.quant_min < 0
        return {
            "min_val": _FINITE,
            "max_val": _FINITE,
            "observed": _COUNT,
            "scale": _SCALE,
            "zero_point": _between(0, 0) if symmetric else _between(0, 255),
        }
    if not isinstance(module, ConvertedLayer):
        return {}
    rules = {"scale": _SCALE, "zero_point": _between(0, 255)}
    if hasattr(module, "bn_scale"):
        rules |= {"bn_scale": _FINITE, "bias": _FINITE}
    if hasattr(module, "weight_scale"):
        rules |= {"weight_scale": _SCALE, "weight": _between(-127, 127)}
    return rules


def _shown(value: Tensor) -> str:
    if value.numel() == 1:
        return f"{value.item():g}"
    if not value.is_floating_point():
        return f"values in [{int(value.min())}, {int(value.max())}]"
    finite = value[torch.isfinite(value)]
    if finite.numel() < value.numel():
        return "nan or inf"
    return f"values from {finite.min().item():g}"


def _value_problem(module: nn.Module, key: str, name: str, value: Tensor) -> str | None:
    rule = _rules(module).get(name)
    own = module._buffers.get(name)
    if rule is None:
        return None
    if name == "weight" and value.dtype != torch.int8:
        return (
            f"'{key}' must be int8 codes, got {value.dtype}: this is a state dict of another "
            "stage (load it before convert)"
        )
    if own is not None and value.dtype != own.dtype:
        return f"'{key}' must be {own.dtype}, got {value.dtype}"
    if value.is_meta or value.numel() == 0 or rule[1](value):
        return None
    return f"'{key}' must be {rule[0]}, got {_shown(value)}"


def _problems(
    model: nn.Module, own: Mapping[str, Any], state_dict: Mapping[str, Any], prefix: str
) -> Iterator[str]:
    """What is wrong with the values and dtypes of what `state_dict` holds."""
    metadata = getattr(state_dict, "_metadata", {})
    for path, module in model.named_modules():
        place = f"{path}." if path else ""
        if isinstance(module, FakeQuantize):
            saved = metadata.get(f"{prefix}{path}", {}).get("backend", module.backend)
            if saved != module.backend:
                yield (
                    f"'{prefix}{path}' must be saved for backend {module.backend!r}, got "
                    f"{saved!r}: prepare the model with get_default_qat_qconfig(backend={saved!r})"
                )
                continue
        for name in _rules(module):
            key = f"{prefix}{place}{name}"
            value = state_dict.get(key)
            if isinstance(value, Tensor) and f"{place}{name}" in own:
                problem = _value_problem(module, key, name, value)
                if problem is not None:
                    yield problem
        low, high = (state_dict.get(f"{prefix}{place}{name}") for name in ("min_val", "max_val"))
        if isinstance(module, FakeQuantize) and _are_swapped(low, high):
            yield f"'{prefix}{place}min_val' must be at most max_val, got a larger one"
    for name, parameter in model.named_parameters():
        value = state_dict.get(prefix + name)
        if not isinstance(value, Tensor) or not parameter.is_floating_point():
            continue
        if not value.is_floating_point():
            yield f"'{prefix}{name}' must be floating-point, got {value.dtype}"


def _are_swapped(low: Any, high: Any) -> bool:
    if not (isinstance(low, Tensor) and isinstance(high, Tensor)):
        return False
    if low.is_meta or high.is_meta or low.numel() != 1 or high.numel() != 1:
        return False
    return bool((low > high).all())


def differences(
    own: Mapping[str, Any], given: Mapping[str, Any], optional: set[str], strict: bool
) -> list[str]:
    """Which keys are missing, left over, or of another shape: one text for each kind."""
    missing = [key for key in own if key not in given and key not in optional]
    unexpected = [key for key in given if key not in own]
    wrong = []
    for key, value in given.items():
        expected = own.get(key)
        if not isinstance(expected, Tensor):
            continue
        if not isinstance(value, Tensor):
            wrong.append(f"{key} {type(value).__name__} instead of a tensor")
        # torch reads a single entry as a number.
        elif value.shape != expected.shape and not (expected.dim() == 0 and value.shape == (1,)):
            wrong.append(f"{key} {list(value.shape)} instead of {list(expected.shape)}")
    kinds: list[tuple[str, list[str]]] = [("shapes", wrong)]
    if strict:
        kinds = [("missing", missing), ("unexpected", unexpected), *kinds]
    return [
        f"{what}: {', '.join(keys[:_SHOWN])}{' …' if len(keys) > _SHOWN else ''}"
        for what, keys in kinds
        if keys
    ]


def _renames_keys(model: nn.Module) -> bool:
    """Whether the user's own code may change the state dict while it is loaded."""
    for module in model.modules():
        methods = (c.__dict__.get("_load_from_state_dict") for c in type(module).__mro__)
        homes = {method.__module__.split(".")[0] for method in methods if method is not None}
        if module._load_state_dict_pre_hooks or not homes <= _KNOWN:
            return True
    return False


def check_state(model: nn.Module, state_dict: Any, prefix: str, strict: bool) -> None:
    """Refuse a state dict that does not fit a prepared or converted model, before it is loaded.

    Args:
        model: the root, or a part of it.
        state_dict: as for `nn.Module.load_state_dict`.
        prefix: of the model's keys in it.
        strict: whether missing and unexpected keys are refused.

    Raises:
        ValueError: a tensor of another dtype, stage or preset, or with values that no quantizer
            has (a scale that is not positive, a code outside its range, …).
        RuntimeError: missing or unexpected keys, other shapes.
    """
    if not isinstance(state_dict, Mapping):
        return
    own = model.state_dict()
    values = list(_problems(model, own, state_dict, prefix))
    if values:
        more = f"\n  … and {len(values) - _SHOWN} more" if len(values) > _SHOWN else ""
        raise ValueError("load_state_dict: " + "\n  ".join(values[:_SHOWN]) + more)
    if _renames_keys(model):
        return
    given = {k.removeprefix(prefix): v for k, v in state_dict.items() if k.startswith(prefix)}
    # Checkpoints of old torch releases lack it, and torch fills it in.
    optional = {key for key in own if key.endswith("num_batches_tracked")}
    found = differences(own, given, optional, strict)
    if found:
        text = "load_state_dict: 'state_dict' must be that of this model, got " + "; ".join(found)
        quantizers = [key for key in own if "activation_post_process." in key]
        if quantizers and not any(key in given for key in quantizers):
            text += " (load_float_state_dict takes that of the float model)"
        raise RuntimeError(text)
