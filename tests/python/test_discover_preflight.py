"""`fuse_modules(example_inputs=…)`: what it refuses, and that it leaves no trace."""

from __future__ import annotations

import copy
import random
from typing import Any

import numpy as np
import pytest
import torch
from discover_models import (
    UNSAFE,
    Chain,
    FunctionalRelu,
    Head,
    Nested,
    Parts,
    RawResultInSkip,
    X,
)
from networks import randomize
from stages import silent_jit
from torch import Tensor, nn

from horizon_plugin.quantization import (
    FloatFunctional,
    FusionError,
    check_unfused_operations,
    fuse,
    fuse_modules,
)

MODES = {"train": True, "eval": False}
NAMES = ["conv", "bn", "relu"]


def state_of(model: nn.Module) -> list[Any]:
    """Everything of a model, by identity, and the values of its tensors."""
    state: list[Any] = []
    for path, module in model.named_modules(remove_duplicate=False):
        state.append((path, id(module), type(module)))
        for name, value in module.__dict__.items():
            if isinstance(value, (dict, list)):
                items = value.items() if isinstance(value, dict) else enumerate(value)
                state.append((path, name, id(value), [(k, id(v)) for k, v in items]))
            else:
                state.append((path, name, value if isinstance(value, (bool, int)) else id(value)))
    for name, tensor in model.state_dict(keep_vars=True).items():
        state.append((name, id(tensor), tensor._version, tensor.requires_grad, tensor.tolist()))
        state.append(id(tensor.grad))
    return state


def random_state() -> list[Any]:
    return [random.getstate(), torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()]


# --- Refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("cls", "names", "text"), UNSAFE, ids=[r[0].__name__ for r in UNSAFE])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("inplace", [False, True])
def test_what_a_run_shows_to_be_unsafe_is_refused_and_nothing_changes(
    cls, names, text, mode, inplace
):
    model = cls().train(MODES[mode])
    before, randomness = state_of(model), random_state()
    with pytest.raises(FusionError, match=text):
        fuse_modules(model, names, inplace=inplace, example_inputs=(X,))
    assert state_of(model) == before
    assert random_state() == randomness


@pytest.mark.parametrize("cls", [row[0] for row in UNSAFE])
def test_without_example_inputs_nothing_is_run(cls):
    model = cls()
    model.forward = None  # would raise
    fuse_modules(model, ["conv", "bn"])


def test_a_refusal_names_the_group():
    with pytest.raises(FusionError, match=r"\['conv', 'relu'\] cannot be fused, because the model"):
        fuse_modules(RawResultInSkip(), ["conv", "relu"], example_inputs=(X,))


def test_good_groups_beside_a_bad_one_are_not_fused():
    class Two(Parts):
        def forward(self, x: Tensor) -> Tensor:
            y = self.conv2(x)
            return self.relu(self.bn(self.conv(x))) + self.bn2(y) + y

    model = Two()
    before = state_of(model)
    with pytest.raises(FusionError, match=r"\['conv2', 'bn2'\] cannot be fused"):
        fuse_modules(model, [NAMES, ["conv2", "bn2"]], inplace=True, example_inputs=(X,))
    assert state_of(model) == before


def test_a_group_that_is_never_called_is_warned_about_and_fused():
    with pytest.warns(UserWarning, match=r"\['conv2', 'bn2'\] are never called with these"):
        fused = fuse_modules(Chain(), [NAMES, ["conv2", "bn2"]], example_inputs=(X,))
    assert isinstance(fused.bn2, nn.Identity)


def test_a_member_that_is_never_called_while_its_base_is_is_refused():
    with pytest.raises(FusionError, match=r"'bn': its result goes to relu in the model"):
        fuse_modules(FunctionalRelu(), NAMES, example_inputs=(X,))


class Wrong(nn.Module):
    """What a fuser of the user's makes: half of what it should give."""

    def __init__(self, *members: nn.Module) -> None:
        super().__init__()
        self.members = nn.Sequential(*members)

    def forward(self, x: Tensor) -> Tensor:
        return 0.999 * self.members(x)


class Right(Wrong):
    def forward(self, x: Tensor) -> Tensor:
        return self.members(x)


def with_fuser(cls: type) -> dict[str, Any]:
    types = (nn.Conv2d, nn.BatchNorm2d, nn.ReLU)
    return {"fuse_custom_config_dict": {"additional_fuser_method_mapping": {types: cls}}}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("inplace", [False, True])
def test_another_output_is_refused_and_rolled_back(mode, inplace):
    model = Chain().train(MODES[mode])
    model.conv.register_forward_pre_hook(lambda m, a: None)
    model.relu.register_forward_hook(lambda m, a, y: None)
    before = state_of(model)
    with pytest.raises(FusionError, match=r"its output differs by 0\.001 of its norm .* Nothing"):
        fuse_modules(model, NAMES, inplace=inplace, example_inputs=(X,), **with_fuser(Wrong))
    assert state_of(model) == before


def test_a_fuser_of_the_users_that_is_right_is_taken():
    fused = fuse_modules(Chain(), NAMES, example_inputs=(X,), **with_fuser(Right))
    assert isinstance(fused.conv, Right)


def test_a_fused_model_that_raises_is_refused_and_rolled_back():
    class Raises(Wrong):
        def forward(self, x: Tensor) -> Tensor:
            raise ArithmeticError("no")

    model = Chain()
    before = state_of(model)
    with pytest.raises(FusionError, match="the fused model raises ArithmeticError: no"):
        fuse_modules(model, NAMES, inplace=True, example_inputs=(X,), **with_fuser(Raises))
    assert state_of(model) == before


@pytest.mark.parametrize("call", [fuse, check_unfused_operations])
@pytest.mark.parametrize("bad", [X, None, 3, "x"])
def test_example_inputs_must_be_a_tuple(call, bad):
    with pytest.raises(TypeError, match=r"'example_inputs' must be a tuple.*for one tensor, pass"):
        call(Chain(), bad)


def test_an_error_of_the_models_own_says_who_ran_it():
    model = Chain()
    before = state_of(model)
    with pytest.raises(RuntimeError) as caught:
        fuse_modules(model, NAMES, example_inputs=(X[:, :2],))
    assert caught.value.__notes__ == ["fuse_modules ran the model on 'example_inputs'"]
    assert state_of(model) == before


def test_a_lazy_model_is_refused_before_it_is_changed():
    model = nn.Sequential(nn.LazyConv2d(3, 1), nn.BatchNorm2d(3))
    with pytest.raises(FusionError, match=r"'0.weight' must be initialized, got a lazy module"):
        fuse(model, (X,))
    assert type(model[0]) is nn.LazyConv2d


# --- No trace -----------------------------------------------------------------------------------


class Noisy(Chain):
    """Uses every generator, keeps counts and lists, writes into its input and a plain tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.total, self.log, self.last = torch.zeros(1), [], None

    def forward(self, x: Tensor) -> Tensor:
        x.mul_(1.0 + random.random() + np.random.rand())
        self.steps += 1
        self.total.add_(1)
        self.log.append(len(self.log))
        self.last = x.mean()
        return self.drop(super().forward(x)) * torch.rand(1)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("call", ["check", "fuse", "fuse_modules", "inplace"])
def test_a_run_leaves_no_trace(mode, call):
    model = Noisy().train(MODES[mode])
    calls: list[str] = []
    model.register_forward_hook(lambda m, a, y: None)
    model.relu.register_forward_hook(lambda m, a, y: calls.append("relu"))
    model(X.clone()).sum().backward()
    log, total = list(model.log), model.total.clone()
    x, before, randomness = X.clone(), state_of(model), random_state()
    buffers = copy.deepcopy(dict(model.named_buffers()))
    if call == "check":
        assert check_unfused_operations(model, (x,)).groups == [NAMES]
    elif call == "fuse":
        fuse(model, (x,))
    else:
        fuse_modules(model, NAMES, inplace=call == "inplace", example_inputs=(x,))
    assert random_state() == randomness
    assert torch.equal(x, X)
    assert (model.log, model.total) == (log, total)
    if call == "inplace":
        # The batch norm has moved, or is folded.
        now = {name.replace("conv.bn", "bn"): b for name, b in model.named_buffers()}
        assert "steps" in now and len(now) == len(buffers) - (0 if MODES[mode] else 3)
        assert all(torch.equal(buffer, buffers[name]) for name, buffer in now.items())
    else:
        assert state_of(model) == before


def test_gradients_and_graphs_of_the_users_stay_usable():
    model = Chain().train()
    loss = model(X).sum()
    fused = fuse_modules(model, NAMES, example_inputs=(X,))
    loss.backward()
    assert model.conv.weight.grad is not None
    assert all(p.requires_grad and p.grad is None for p in fused.parameters())


@pytest.mark.parametrize("grad", [True, False])
def test_the_grad_mode_is_as_before(grad):
    with torch.set_grad_enabled(grad):
        fuse(Chain(), (X,))
        assert torch.is_grad_enabled() is grad
    with torch.inference_mode():
        fuse(Chain().eval(), (X.clone(),))


def test_functions_set_on_instances_stay():
    model = Chain()
    model.forward = lambda x: Chain.forward(model, x)
    model.add.mul = "mine"
    before = state_of(model)
    check_unfused_operations(model, (X,))
    assert state_of(model) == before


# --- Inputs and outputs -------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_inputs_and_outputs_may_be_nested(mode):
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Nested()

        def forward(self, images, extra, scale=2.0):
            return self.inner(images, extra, scale=scale)

    model = Outer().train(MODES[mode])
    lists = [[f"inner.{name}" for name in names] for names in (NAMES, ["conv2", "bn2"])]
    for inputs in (({"left": X}, [X]), {"images": {"left": X}, "extra": [X], "scale": 3.0}):
        fused = fuse_modules(model, lists, example_inputs=inputs)
        assert isinstance(fused.inner.bn2, nn.Identity)
        assert check_unfused_operations(model, inputs).groups == lists


def test_a_difference_in_a_nested_output_is_told_with_its_place():
    class Two(Chain):
        def forward(self, x: Tensor) -> dict[str, Any]:
            return {"a": x, "b": [x, super().forward(x)]}

    with pytest.raises(FusionError, match=r"its output\['b'\]\[1\] differs by"):
        fuse_modules(Two(), NAMES, example_inputs=(X,), **with_fuser(Wrong))


@pytest.mark.parametrize("mode", MODES)
def test_a_shared_detection_head_is_safe(mode):
    model = randomize(Head()).train(MODES[mode])
    levels = [X, X[..., :5, :5], X[..., :4, :4]]
    fused = fuse_modules(model, NAMES, example_inputs=(levels,))
    for y, expected in zip(fused(levels), model(levels), strict=True):
        torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mode", MODES)
def test_rounding_of_each_dtype_is_allowed(dtype, mode):
    model = Chain().to(dtype).train(MODES[mode])
    fused = fuse_modules(model, NAMES, example_inputs=(X.to(dtype),))
    assert isinstance(fused.bn, nn.Identity)


def test_a_model_on_the_meta_device_is_checked_by_its_calls():
    model = Chain().to("meta").eval()
    assert isinstance(fuse(model, (X.to("meta"),)).bn, nn.Identity)


def test_a_directly_called_forward_counts_as_a_call():
    class Direct(Parts):
        def forward(self, x: Tensor) -> Tensor:
            return self.bn.forward(self.conv.forward(x)) + self.conv(x)

    with pytest.raises(FusionError, match="'conv' is called 2 times"):
        fuse_modules(Direct(), ["conv", "bn"], example_inputs=(X,))


def test_a_functional_of_torchs_own_is_recorded():
    functional = pytest.importorskip("torch.ao.nn.quantized").FloatFunctional

    class Net(Parts):
        def __init__(self) -> None:
            super().__init__()
            self.add = functional()

        def forward(self, x: Tensor) -> Tensor:
            return self.add.add_relu(self.bn(self.conv(x)), x)

    model = Net().eval()
    fused = fuse_modules(model, ["conv", "bn", "add"], example_inputs=(X,))
    torch.testing.assert_close(fused(X), model(X), rtol=1e-5, atol=1e-5)
    assert type(model.add) is functional and "add" not in model.add.__dict__


def test_a_functional_is_told_by_the_method_used():
    class Net(Parts):
        def forward(self, x: Tensor) -> Tensor:
            return self.add.mul(self.add.add(self.conv(x), x), x)

    with pytest.raises(FusionError, match=r"'add' is called 2 times.*\(FloatFunctional.add\)"):
        fuse_modules(Net(), ["conv", "add"], example_inputs=(X,))
    assert isinstance(FloatFunctional().mul(X, X), Tensor)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 2 * gradient


def scripted() -> Any:
    return silent_jit(torch.jit.script, swish)


def swish(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Doubled.apply, r"\+|mul"),
        (scripted, "sigmoid"),
        (lambda: torch.ops.aten.sigmoid, "sigmoid"),
        (lambda: torch._C._nn.silu, "silu"),
    ],
    ids=["autograd function", "scripted function", "operator", "builtin"],
)
def test_a_use_that_bypasses_python_is_seen(make, text):
    function = make()

    class Net(Parts):
        def forward(self, x: Tensor) -> Tensor:
            y = self.conv(x)
            return self.bn(y) + function(y)

    with pytest.raises(FusionError, match=rf"'conv': its result is used \d times: .*({text})"):
        fuse_modules(Net(), ["conv", "bn"], example_inputs=(X,))
