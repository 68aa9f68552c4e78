"""`convert`: from a prepared model to int8."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from horizon_plugin import _carry
from horizon_plugin._traced import copy_model
from horizon_plugin.nn import _layer
from horizon_plugin.nn._island import Island
from horizon_plugin.quantization import _modules
from horizon_plugin.quantization._comparison import compare
from horizon_plugin.quantization._prepare import check_mapping, check_weight
from horizon_plugin.quantization.fake_quantize import FakeQuantize, WeightFakeQuantize


def _check_prepared(model: nn.Module) -> None:
    prepared = [m for m in model.modules() if isinstance(m, _layer.PreparedLayer)]
    if not prepared:
        if any(isinstance(m, _layer.ConvertedLayer) for m in model.modules()):
            raise ValueError("convert: 'model' must be prepared, got one already converted")
        raise ValueError(
            "convert: 'model' must be prepared, got a float model: call prepare_qat first"
        )
    for module in prepared:
        if hasattr(module, "weight_fake_quant"):
            check_weight("convert", module._path, module)
    problems = [text for m in prepared for text in m.problems()]
    for op, producer in model.__dict__.get("_horizon_lost", {}):
        if not any(f"'{op}'" in text and producer in text for text in problems):
            problems.append(
                f"'{op}' runs on the quantized result of {producer}: {_carry.remedy_for(op)}"
            )
    if problems:
        raise ValueError(
            "convert: 'model' must be quantized throughout, got:\n  " + "\n  ".join(problems)
        )


def _warn(model: nn.Module) -> None:
    off, unseen = [], []
    taken = _modules.producers(model)
    for path, module in _modules.layers(model):
        # What no quantized layer takes is never quantized.
        if isinstance(module, Island) and path not in taken:
            continue
        for child in module.children() if isinstance(module, _layer.PreparedLayer) else ():
            if isinstance(child, (FakeQuantize, WeightFakeQuantize)):
                if not child.fake_quant_enabled:
                    off.append(path)
                if isinstance(child, FakeQuantize) and child.never_observed():
                    unseen.append(path)
    if off:
        warnings.warn(
            f"convert: fake-quant is off in {', '.join(dict.fromkeys(off))}: the converted model "
            "quantizes there all the same; call set_fake_quantize(model, FakeQuantState.QAT) and "
            "validate first",
            UserWarning,
            stacklevel=3,
        )
    leaving = model.__dict__.get("_horizon_output_of")
    if leaving is not None:
        warnings.warn(
            f"convert: the result of {leaving} leaves the model as uint8 codes: put a DeQuantStub "
            "behind it, or give that layer get_default_qat_out_qconfig()",
            UserWarning,
            stacklevel=3,
        )
    if unseen:
        warnings.warn(
            f"convert: no range was ever observed in {', '.join(unseen)} (scale 1 is used): train "
            "or calibrate the prepared model first, load its state dict, or remove what forward "
            "never calls",
            UserWarning,
            stacklevel=3,
        )


def _replacement(module: nn.Module, path: str, mapping: dict[Any, Any]) -> nn.Module | None:
    cls = mapping.get(type(module)) or _modules.converted_class(module)
    if cls is None:
        passing = _modules.passing_class(module)
        return None if passing is None else passing.from_float(module, path)
    try:
        new = cls.from_prepared(module)
    except ValueError as error:
        text = str(error)
        prefix = "" if text.startswith("convert") else f"convert: {path}: "
        raise ValueError(prefix + text) from None
    for name, buffer in new.named_buffers():
        if buffer.is_floating_point() and not torch.isfinite(buffer).all():
            raise ValueError(f"convert: {path}: '{name}' must be finite, got nan or inf")
    return new


def _check_inputs(example_inputs: Any, report: bool) -> tuple[Any, ...]:
    if report and example_inputs is None:
        raise ValueError("convert: 'example_inputs' must be given with report=True, got None")
    if not report and example_inputs is not None:
        raise ValueError("convert: 'report' must be True with example_inputs, got False")
    if example_inputs is None or isinstance(example_inputs, tuple):
        return example_inputs or ()
    if isinstance(example_inputs, Tensor):
        return (example_inputs,)
    if isinstance(example_inputs, list):
        return tuple(example_inputs)
    raise TypeError(
        "convert: 'example_inputs' must be a tuple of the model's arguments, got "
        f"{type(example_inputs).__name__}"
    )


def convert(
    model: nn.Module,
    mapping: dict[type[nn.Module], Any] | None = None,
    inplace: bool = False,
    *,
    example_inputs: tuple[Any, ...] | Tensor | None = None,
    report: bool = False,
) -> Any:
    """The integer form of a prepared model, in eval mode.

    It computes, to the bit, what `model.eval()` computes: weights are quantized as they are now,
    activations with the scales in the buffers. Tensors between its modules are uint8 codes.

    Args:
        model: a model from `prepare_qat`.
        mapping: prepared class -> class with ``from_prepared(module)``, added to ours.
        inplace: change `model` itself and return it; otherwise a deep copy.
        example_inputs: arguments of the model, for `report`; one tensor need not be in a tuple.
        report: compare the stages on `example_inputs`; nothing is printed, no range moves.

    Returns:
        The converted model; with `report` also a `ConversionReport`: for each layer the codes that
        differ from its float simulation, and whether the converted model is exact.

    Raises:
        ValueError: not prepared; or a float op ran on quantized data, or a quantized layer met
            float input, at the last forward. Each is named with its remedy; nothing is changed.

    Warns:
        UserWarning: fake-quant is off somewhere, a range was never observed, or a result leaves
            the model without a DeQuantStub (at the last forward).
    """
    _modules.check_model("convert", model)
    mapping = check_mapping("convert", mapping, "from_prepared")
    inputs = _check_inputs(example_inputs, report)
    _check_prepared(model)
    _warn(model)
    # Compared afterwards, when `model` may have changed in place.
    prepared = copy_model(model) if report and inplace else model
    if not inplace:
        model = copy_model(model)
    replacements: dict[int, nn.Module] = {}
    places = list(_modules.slots(model))
    for _, _, path, child in places:
        if id(child) not in replacements:
            new = _replacement(child, path, mapping)
            if new is not None:
                replacements[id(child)] = new
    for parent, name, _, child in places:
        new_child = replacements.get(id(child))
        if new_child is not None:
            parent._modules[name] = new_child
    for name in ("_horizon_lost", "_horizon_output_of"):
        model.__dict__.pop(name, None)
    for module in model.modules():
        module.__dict__.pop("qconfig", None)
        module.training = False
    _carry.make_root(model)
    return (model, compare(prepared, model, inputs)) if report else model
