"""State dicts that do not fit are refused by name, before anything is written."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from plain import Plain, X, fused, with_qconfig
from stages import prepared
from torch import Tensor, nn

from horizon_plugin.quantization import convert, get_default_qat_qconfig, prepare_qat

State = dict[str, Any]
NAN = float("nan")


def stages() -> dict[str, nn.Module]:
    model = prepared(fused(), X)
    return {"prepared": model, "converted": convert(model)}


@pytest.fixture(scope="module")
def models() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    return stages()


def set_to(key: str, value: Any) -> Callable[[State], None]:
    def change(state: State) -> None:
        state[key] = torch.full_like(state[key], value)

    return change


def cast(key: str, dtype: torch.dtype) -> Callable[[State], None]:
    def change(state: State) -> None:
        state[key] = state[key].to(dtype)

    return change


def lengthen(key: str) -> Callable[[State], None]:
    def change(state: State) -> None:
        state[key] = torch.cat([state[key], state[key]])

    return change


FQ = "conv.activation_post_process"
WRONG_VALUES = [
    ("prepared", set_to(f"{FQ}.scale", NAN), f"'{FQ}.scale' must be finite and positive, got nan"),
    ("prepared", set_to(f"{FQ}.scale", 0.0), f"'{FQ}.scale' must be finite and positive, got 0"),
    ("prepared", set_to(f"{FQ}.zero_point", 3), f"'{FQ}.zero_point' must be 0, got 3"),
    ("prepared", set_to(f"{FQ}.max_val", NAN), f"'{FQ}.max_val' must be finite, got nan"),
    ("prepared", set_to(f"{FQ}.min_val", 1e9), f"'{FQ}.min_val' must be at most max_val"),
    ("prepared", set_to(f"{FQ}.observed", -1), f"'{FQ}.observed' must be at least 0, got -1"),
    ("prepared", cast(f"{FQ}.scale", torch.float16), "must be torch.float32, got torch.float16"),
    ("prepared", cast("conv.weight", torch.int8), "'conv.weight' must be floating-point, got"),
    ("converted", set_to("conv.scale", -1.0), "'conv.scale' must be finite and positive, got -1"),
    ("converted", set_to("quant.scale", NAN), "'quant.scale' must be finite and positive, got nan"),
    ("converted", set_to("fc.zero_point", 256), "'fc.zero_point' must be in [0, 255], got 256"),
    ("converted", set_to("conv.weight", -128), "'conv.weight' must be in [-127, 127], got values"),
    ("converted", set_to("conv.weight_scale", 0.0), "'conv.weight_scale' must be finite and pos"),
    ("converted", set_to("conv.bias", NAN), "'conv.bias' must be finite, got nan or inf"),
    ("converted", cast("conv.bias", torch.float32), "'conv.bias' must be torch.float64, got torch"),
    ("converted", cast("conv.weight", torch.uint8), "'conv.weight' must be int8 codes, got torch."),
    ("converted", cast("fc.zero_point", torch.int64), "'fc.zero_point' must be torch.int32, got"),
]
WRONG_KEYS = [
    ("prepared", lambda state: state.pop(f"{FQ}.scale"), f"missing: {FQ}.scale"),
    ("prepared", lambda state: state.update(other=X), "unexpected: other"),
    ("prepared", lengthen("fc.bias"), "shapes: fc.bias [8] instead of [4]"),
    ("converted", lambda state: state.pop("conv.weight"), "missing: conv.weight"),
    ("converted", lambda state: state.update(other=X), "unexpected: other"),
    ("converted", lengthen("conv.weight"), "shapes: conv.weight [16, 3, 3, 3] instead of [8, 3, 3"),
    ("converted", lambda state: state.update({"fc.scale": 1.0}), "shapes: fc.scale float instead"),
]


def assert_refused(model: nn.Module, state: State, error: type, text: str, **options: Any) -> None:
    before = copy.deepcopy(model.state_dict())
    expected = model(X)
    with pytest.raises(error) as caught:
        model.load_state_dict(state, **options)
    assert text in str(caught.value)
    assert str(caught.value).startswith("load_state_dict: ")
    after = model.state_dict()
    assert all(torch.equal(after[key], value) for key, value in before.items())
    assert torch.equal(model(X), expected)


@pytest.mark.parametrize("options", [{}, {"assign": True}, {"strict": False}], ids=str)
@pytest.mark.parametrize(("stage", "change", "text"), WRONG_VALUES, ids=lambda v: str(v)[:40])
def test_values_that_no_quantizer_has_are_refused(models, stage, change, text, options):
    model = models[stage]
    state = copy.deepcopy(model.state_dict())
    # Everything else differs, so that a partial load would show.
    for value in state.values():
        if value.is_floating_point():
            value.mul_(1.25)
    change(state)
    assert_refused(model, state, ValueError, text, **options)


@pytest.mark.parametrize("options", [{}, {"assign": True}], ids=str)
@pytest.mark.parametrize(("stage", "change", "text"), WRONG_KEYS, ids=lambda v: str(v)[:40])
def test_keys_and_shapes_that_do_not_fit_are_refused(models, stage, change, text, options):
    model = models[stage]
    state = copy.deepcopy(model.state_dict())
    for value in state.values():
        if value.is_floating_point():
            value.mul_(1.25)
    change(state)
    assert_refused(model, state, RuntimeError, text, **options)


def test_strict_false_keeps_its_meaning(models):
    for model in map(copy.deepcopy, models.values()):
        state = model.state_dict()
        part = {key: value for key, value in state.items() if key.startswith("fc.")}
        result = model.load_state_dict({**part, "other": X}, strict=False)
        assert result.unexpected_keys == ["other"]
        missing = set(state) - set(part) - {"conv.bn.num_batches_tracked"}  # torch fills it in
        assert missing == set(result.missing_keys) - {"conv.bn.num_batches_tracked"}


def test_a_state_dict_of_a_part_under_another_root_is_checked_as_well(models):
    class Outer(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

    for stage, key in (("prepared", f"{FQ}.scale"), ("converted", "conv.scale")):
        outer = Outer(copy.deepcopy(models[stage]))
        expected = outer.inner(X)
        state = copy.deepcopy(outer.state_dict())
        state["inner.fc.bias"].add_(1)
        state[f"inner.{key}"].fill_(NAN)
        with pytest.raises(ValueError, match=f"'inner.{key}' must be finite and positive, got nan"):
            outer.load_state_dict(state)
        assert torch.equal(outer.inner(X), expected)


def test_the_float_models_state_dict_names_the_function_that_takes_it(models):
    with pytest.raises(RuntimeError, match="load_float_state_dict takes that of the float model"):
        models["prepared"].load_state_dict(Plain().state_dict())


def test_another_presets_state_dict_is_refused_before_anything_is_written(models):
    other = prepare_qat(with_qconfig(Plain(), get_default_qat_qconfig(backend="x86")))
    other.train()(X)
    model = prepare_qat(with_qconfig(Plain())).eval()
    model.train()(X)
    model.eval()
    text = "'quant.activation_post_process' must be saved for backend 'horizon', got 'x86'"
    assert_refused(model, other.state_dict(), ValueError, text)


def test_hooks_that_rename_keys_still_work(models):
    model = copy.deepcopy(models["prepared"])
    state = {key.replace("fc.", "head."): value for key, value in model.state_dict().items()}

    def rename(module: nn.Module, state: State, prefix: str, *rest: Any) -> None:
        for key in [key for key in state if key.startswith("head.")]:
            state[key.replace("head.", "fc.")] = state.pop(key)

    model.register_load_state_dict_pre_hook(rename)
    assert model.load_state_dict(state).missing_keys == []


def test_a_wrapped_tensor_of_one_entry_is_read_as_a_number(models):
    model = copy.deepcopy(models["prepared"])
    state: dict[str, Tensor] = dict(model.state_dict())
    state[f"{FQ}.scale"] = state[f"{FQ}.scale"].reshape(1)
    model.load_state_dict(state)
