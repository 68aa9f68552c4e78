"""A fused add finds its convolution's operand, and nothing else can use it before."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from fuse_models import ADD_PATTERNS, Chain, make_base, make_input, names_of, pattern_id, randomize
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from horizon_plugin.nn import intrinsic
from horizon_plugin.quantization import FloatFunctional, FusionError, fuse_modules

NAMES = ["conv1", "bn", "add", "relu"]


class Block(nn.Module):
    """conv1-bn-add-relu with a skip branch; subclasses say how it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 3, 3, padding=1)
        self.bn = randomize(nn.BatchNorm2d(3))
        self.add = FloatFunctional()
        self.relu = nn.ReLU()
        self.skip = nn.Conv2d(3, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.add.add(self.bn(self.conv1(x)), self.skip(x)))


class Reversed(Block):
    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.add.add(self.skip(x), self.bn(self.conv1(x))))


class OwnInput(Block):
    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.add.add(x, self.bn(self.conv1(x))))


class OwnInputFirst(Block):
    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.add.add(self.bn(self.conv1(x)), x))


class Doubled(Block):
    def forward(self, x: Tensor) -> Tensor:
        y = self.bn(self.conv1(x))
        return self.relu(self.add.add(y, y))


class SkipFirst(Block):
    def forward(self, x: Tensor) -> Tensor:
        y = self.bn(self.conv1(x))
        s = self.skip(x) * 2 + 1
        return self.relu(self.add.add(s, y))


class AddRelu(Block):
    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.add.add_relu(self.skip(x), self.bn(self.conv1(x))))


LEGAL = {
    Block: 0,
    Reversed: 1,
    OwnInput: 1,
    OwnInputFirst: 0,
    Doubled: 2,
    SkipFirst: 1,
    AddRelu: 1,
}


def both(cls: type, training: bool = True) -> tuple[nn.Module, nn.Module, Tensor]:
    plain = cls().train(training)
    return fuse_modules(plain, NAMES, mode="with_bn"), plain, torch.randn(2, 3, 5, 5)


@pytest.mark.parametrize("cls", LEGAL)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_every_legal_use_is_exact(cls, training):
    fused, plain, x = both(cls, training)
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    outputs = [m(i) for m, i in zip((fused, plain), inputs, strict=True)]
    assert torch.equal(*outputs)
    for y in outputs:
        y.square().sum().backward()
    assert torch.equal(inputs[0].grad, inputs[1].grad)
    assert torch.equal(fused.add.weight.grad, plain.conv1.weight.grad)
    assert torch.equal(fused.add.bn.weight.grad, plain.bn.weight.grad)
    assert torch.equal(fused.add.bn.running_var, plain.bn.running_var)
    assert fused.add.conv_operand == LEGAL[cls]


@pytest.mark.parametrize("pattern", ADD_PATTERNS, ids=pattern_id)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_both_operand_orders_work_for_every_base(pattern, training):
    class Swapped(Chain):
        def forward(self, x: Tensor, skip: Tensor) -> Tensor:
            z = self.bn(self.base(x)) if self.has_bn else self.base(x)
            z = self.add.add(skip, z)
            return self.act(z) if self.has_act else z

    plain = Swapped(make_base(pattern), pattern).train(training)
    fused = fuse_modules(plain, names_of(pattern), mode="with_bn")
    x = make_input(pattern)
    skip = torch.randn_like(copy.deepcopy(plain).base(x))
    assert torch.equal(fused(x, skip), plain(x, skip))


USES = {
    "mean": lambda y: y.mean(),
    "shape": lambda y: y.shape,
    "size": lambda y: y.size(0),
    r"\+ \(add\)": lambda y: y + 1,
    r"\+= \(add_\)": lambda y: y.add_(1),
    "mul": lambda y: 2 * y,
    "relu": torch.relu,
    "relu_": torch.relu_,
    "cat": lambda y: torch.cat([torch.zeros(1), y]),
    "conv2d": lambda y: nn.Conv2d(3, 3, 1)(y),
    "batch_norm": lambda y: nn.functional.batch_norm(y, None, None, training=True),
    "__getitem__": lambda y: y[0],
    "__len__": len,
    "__bool__": bool,
    "requires_grad": lambda y: y.requires_grad,
    "dtype": lambda y: y.dtype,
    "device": lambda y: y.device,
    "data": lambda y: y.data,
    "detach": lambda y: y.detach(),
    "clone": lambda y: y.clone(),
    "numpy": lambda y: y.numpy(),
    "__deepcopy__": copy.deepcopy,
    "copy_": lambda y: torch.zeros(3).copy_(y),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
def test_any_other_use_of_the_convolutions_result_raises(use):
    fused, _, x = both(Block)
    result = fused.conv1(x)
    name = next(name for name, function in USES.items() if function is use)
    text = rf"result of conv1 used by {name} before its add: conv1 was fused into add"
    with pytest.raises(RuntimeError, match=text):
        use(result)
    with pytest.raises(FusionError, match=text):
        use(fused.bn(result))


def test_a_pending_result_can_be_printed():
    fused, _, x = both(Block)
    assert repr(fused.conv1(x)) == "<result of conv1, pending until add.add>"


def test_two_groups_do_not_take_each_others_results():
    model = nn.ModuleDict({"a": Block(), "b": Block()})
    fused = fuse_modules(model, [[f"{k}.{n}" for n in NAMES] for k in "ab"])
    a, b, x = fused["a"], fused["b"], torch.randn(2, 3, 5, 5)
    cases = [
        (lambda: b.add.add(b.bn(b.conv1(x)), a.bn(a.conv1(x))), "used by b.add.add"),
        (lambda: b.add.add(a.bn(a.conv1(x)), x), "used by b.add.add"),
        (lambda: b.conv1(a.conv1(x)), "used by b.conv1"),
        (lambda: b.bn(a.conv1(x)), "used by b.bn"),
        (lambda: b.relu(a.conv1(x)), "used by b.relu"),
        (lambda: a.relu(a.conv1(x)), "used by a.relu"),
    ]
    for call, user in cases:
        with pytest.raises(RuntimeError, match=f"result of a.conv1 {user} before its add"):
            call()


def test_misuse_of_the_group_names_module_and_remedy():
    fused, _, x = both(Block)
    with pytest.raises(
        RuntimeError,
        match=r"add\.add: one operand must be the result of conv1.*got two other tensors.*hand",
    ):
        fused.add.add(x, x)
    with pytest.raises(RuntimeError, match=r"conv1 used by add\.add before bn.*call bn between"):
        fused.add.add(fused.conv1(x), x)
    with pytest.raises(RuntimeError, match="bn was fused into add and must be called on the resul"):
        fused.bn(x)
    with pytest.raises(RuntimeError, match=r"add is a fused add: use its methods add\(x, y\)"):
        fused.add(x)
    for name in ("mul", "cat", "add_scalar", "mul_scalar", "sub", "mean", "matmul"):
        with pytest.raises(RuntimeError, match=f"add_relu only, got a call of {name}"):
            getattr(fused.add, name)(x, x)


def test_two_calls_of_the_convolution_cannot_become_one():
    fused, _, x = both(Block)
    other = torch.randn_like(x)
    with pytest.raises(RuntimeError, match="both operands are results of conv1, from two calls"):
        fused.add.add(fused.bn(fused.conv1(x)), fused.bn(fused.conv1(other)))
    with pytest.raises(RuntimeError, match="from two calls"):  # statistics would move once only
        fused.add.add(fused.bn(fused.conv1(x)), fused.bn(fused.conv1(x)))
    fused.eval()
    y = fused.add.bn(nn.functional.conv2d(x, fused.add.weight, fused.add.bias, padding=1))
    got = fused.add.add(fused.bn(fused.conv1(x)), fused.bn(fused.conv1(x)))
    assert torch.equal(got, (y + y).relu())


@pytest.mark.parametrize("change", [torch.relu_, lambda x: x.add_(1), lambda x: x[0].zero_()])
def test_a_change_in_place_of_the_input_before_the_add_is_noticed(change):
    fused, _, x = both(Block)
    y = fused.bn(fused.conv1(x))
    change(x)
    with pytest.raises(RuntimeError, match="input of conv1 was changed in place between conv1 and"):
        fused.add.add(y, x)


def test_inference_tensors_have_no_counter_and_work():
    fused, plain, x = both(OwnInput, training=False)
    with torch.inference_mode():
        y = torch.randn_like(x)
        assert torch.equal(fused(y), plain(y))


@pytest.mark.parametrize("cls", LEGAL)
def test_token_and_link_survive_deepcopy_and_pickle(cls):
    fused, plain, x = both(cls, training=False)
    expected = plain(x)
    buffer = io.BytesIO()
    torch.save(fused, buffer)
    buffer.seek(0)
    copies = [
        copy.deepcopy(fused),
        pickle.loads(pickle.dumps(fused)),
        torch.load(buffer, weights_only=False),
    ]
    for model in copies:
        assert torch.equal(model(x), expected)
        with pytest.raises(RuntimeError, match="result of conv1 used by mean before its add"):
            model.conv1(x).mean()
        # A copy is a group of its own.
        with pytest.raises(RuntimeError, match="result of conv1 used by add"):
            model.add.add(fused.bn(fused.conv1(x)), x)


@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.parametrize("cls", LEGAL)
def test_legal_uses_trace_script_export_and_compile(cls):
    fused, plain, x = both(cls, training=False)
    expected = plain(x)
    other = torch.randn(4, 3, 7, 7)
    fused(x)  # tells a script which operand is the convolution's
    same_size = {
        "trace": torch.jit.trace(fused, x),
        "script": torch.jit.script(fused),
        "fx": torch.fx.symbolic_trace(fused),
        "export": torch.export.export(fused, (x,)).module(),
        "strict export": torch.export.export(fused, (x,), strict=True).module(),
        "make_fx": make_fx(fused)(x),
    }
    for name, model in same_size.items():
        assert torch.equal(model(x), expected), name
    for name in ("trace", "script", "fx"):
        assert torch.equal(same_size[name](other), plain(other)), name
    torch._dynamo.reset()
    compiled = torch.compile(fused, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), expected)


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_a_scripted_model_saves_and_loads():
    fused, plain, x = both(Reversed, training=False)
    fused(x)
    for model in (torch.jit.script(fused), torch.jit.trace(fused, x)):
        buffer = io.BytesIO()
        torch.jit.save(model, buffer)
        buffer.seek(0)
        assert torch.equal(torch.jit.load(buffer)(x), plain(x))


def test_exported_graphs_carry_no_run_time_test():
    fused, _, x = both(Reversed, training=False)
    graph = torch.export.export(fused, (x,)).graph
    targets = [str(node.target) for node in graph.nodes if node.op == "call_function"]
    assert not [t for t in targets if "assert" in t or "_version" in t]
    assert sum("conv" in t for t in targets) == 2


def test_training_compiles_with_the_same_gradients():
    torch._dynamo.reset()
    fused, plain, x = both(OwnInput)
    compiled = torch.compile(fused, backend="aot_eager", fullgraph=True)
    for model in (compiled, plain):
        model(x).square().sum().backward()
    torch.testing.assert_close(fused.add.weight.grad, plain.conv1.weight.grad)
    torch.testing.assert_close(fused.add.bn.running_mean, plain.bn.running_mean)


def test_torchs_own_float_functional_is_accepted():
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.ao.nn.quantized import FloatFunctional as Theirs
    plain = Reversed()
    plain.add = Theirs()
    x = torch.randn(2, 3, 5, 5)
    fused = fuse_modules(plain, NAMES)
    assert type(fused.add) is intrinsic.ConvBNAddReLU2d
    assert torch.equal(fused(x), plain(x))


def test_hooks_and_checkpointing_around_a_block_do_not_touch_the_pending_result():
    fused, plain, x = both(OwnInput)
    seen = []
    fused.register_forward_hook(lambda m, i, o: seen.append(o.shape))
    outer = nn.Sequential(fused)
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    y = torch.utils.checkpoint.checkpoint(outer, inputs[0], use_reentrant=False)
    y.sum().backward()
    plain(inputs[1]).sum().backward()
    assert torch.equal(inputs[0].grad, inputs[1].grad)
    assert seen[0] == x.shape
