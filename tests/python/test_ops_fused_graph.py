"""The fused op under opcheck, compile, export, trace, script, hooks and checkpointing."""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Callable

import pytest
import torch
from fused_group import (
    CONV,
    DIFFERENTIABLE,
    LINEAR,
    NONE,
    RELU,
    RELU6,
    TRANSPOSED,
    Group,
    Quantizer,
    copies,
)
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Small tensors: a second thread only waits, which is slow on a busy machine."""
    torch.set_num_threads(1)


GROUPS = [
    Group(add=True, bias=True),
    Group(bn=False, act=NONE),
    Group(train=False, act=RELU6, channels_last=True),
    Group(channels_last=True, add=True, padding=(0, 1, 2, 3)),
    Group(base=TRANSPOSED, stride=(2, 2), output_padding=(1, 0)),
    Group(base=LINEAR, add=True),
    Group(base=LINEAR, bn=False, bias=True, act=RELU6, train=False),
]


@pytest.mark.parametrize("requires_grad", [False, True], ids=["", "grad"])
@pytest.mark.parametrize("quantizer", [None, "observing", "fixed"])
@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_opcheck_passes(group: Group, quantizer: str | None, requires_grad: bool) -> None:
    q = None if quantizer is None else Quantizer(observe=quantizer == "observing")
    t = copies(group.tensors(), requires_grad)
    t["input_scale"], t["input_zero_point"] = torch.tensor(0.05), torch.tensor(128)
    arguments = group.arguments(t, q, quantize_weight=q is not None)
    torch.library.opcheck(torch.ops.horizon.fused.default, (), arguments)


@pytest.mark.parametrize("requires_grad", [False, True], ids=["", "grad"])
def test_opcheck_passes_for_special_shapes(requires_grad: bool) -> None:
    larger = Group(batch=1).tensors()
    larger["skip"] = torch.randn(4, 6, 7, 6)
    smaller = Group().tensors()
    smaller["skip"] = torch.randn(6, 1, 1)
    single = Group(bn=False).tensors()
    single["input"] = single["input"][0]
    integer = {**Group(train=False).tensors()}
    integer["input"] = (integer["input"] * 20).round().clamp(-128, 127) / 20
    integer["input_scale"], integer["input_zero_point"] = torch.tensor(0.05), torch.tensor(128)
    double = Group(dtype=torch.float64).tensors()
    cases = [
        (Group(batch=1), larger, {}),
        (Group(), smaller, {}),
        (Group(bn=False), single, {}),
        (Group(train=False), integer, {"quantize_weight": True, "integer": True}),
        (Group(dtype=torch.float64), double, {}),
        (Group(running=False), Group(running=False).tensors(), {}),
    ]
    for group, tensors, options in cases:
        quantizer = Quantizer(observe=not options)
        arguments = group.arguments(copies(tensors, requires_grad), quantizer, **options)
        torch.library.opcheck(torch.ops.horizon.fused.default, (), arguments)


@pytest.mark.parametrize("channels_last", [False, True])
def test_opcheck_passes_for_the_inner_ops(channels_last: bool) -> None:
    group = Group(channels_last=channels_last, add=True)
    t = copies(group.tensors(), False)
    t["input_scale"], t["input_zero_point"] = torch.tensor(0.05), torch.tensor(128)
    ops = torch.ops.horizon
    arguments = group.arguments(t, Quantizer(), quantize_weight=True)
    saves = {
        "channels_last": channels_last,
        "save_z": True,
        "save_mask": True,
        "save_moments": True,
        "save_codes": True,
    }
    torch.library.opcheck(ops._fused_forward.default, (), {**arguments, **saves})
    y, _, _, z, mask, moments, codes = ops._fused_forward(**arguments, **saves)
    geometry = (CONV, [1, 1], [1, 1], [1, 1], [0, 0], 1)
    torch.library.opcheck(
        ops._fused_backward.default,
        (
            torch.randn_like(y), z, mask, moments, codes, t["input_scale"], t["input_zero_point"],
            t["weight"], t["bn_weight"], list(y.shape), *geometry, True, True, True, channels_last,
            [True, True, False, True, True, True],
        ),
    )  # fmt: skip


class Module(torch.nn.Module):
    """What a prepared module is: parameters, buffers and one call."""

    def __init__(self, tensors: dict[str, torch.Tensor], quantizer: Quantizer) -> None:
        super().__init__()
        for name in ("weight", "bn_weight", "bn_bias"):
            self.register_parameter(name, torch.nn.Parameter(tensors[name].clone()))
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            self.register_buffer(name, tensors[name].clone())
        for name, value in quantizer.state.items():
            self.register_buffer(name, value.clone())

    def forward(
        self, x: torch.Tensor, skip: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return torch.ops.horizon.fused(
            x, None, None, self.weight, None, self.bn_weight, self.bn_bias, self.running_mean,
            self.running_var, self.num_batches_tracked, skip, None, None, self.min_val,
            self.max_val, self.observed, self.scale, self.zero_point, 0, [1, 1], [1, 1], [1, 1],
            [0, 0], 1, True, True, 0.1, 1e-5, 1, True, False, 0, 0, 0.01, True, True, False,
        )  # fmt: skip


def make_module() -> tuple[Module, torch.Tensor, torch.Tensor]:
    tensors = Group(add=True).tensors()
    return Module(tensors, Quantizer()), tensors["input"], tensors["skip"]


def two_steps(
    call: Callable[..., tuple[torch.Tensor, ...]],
    module: torch.nn.Module,
    x: torch.Tensor,
    skip: torch.Tensor,
) -> list[torch.Tensor]:
    """Outputs, gradients and buffers after two batches of different size."""
    results: list[torch.Tensor] = []
    for step in range(2):
        a = (x[step:] + step).detach().requires_grad_()
        b = (skip[step:] * (step + 1)).detach().requires_grad_()
        outputs = call(a, b)
        (outputs[0] * torch.arange(outputs[0].numel()).view_as(outputs[0])).sum().backward()
        results += [*outputs, a.grad, b.grad]
    results += [p.grad for p in module.parameters()]
    return results + [b.clone() for b in module.buffers()]


def assert_same(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    assert len(actual) == len(expected) == 21
    for one, two in zip(actual, expected, strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_full_graph_trains_as_eager(dynamic: bool) -> None:
    module, x, skip = make_module()
    eager = copy.deepcopy(module)
    torch._dynamo.reset()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    assert_same(two_steps(compiled, module, x, skip), two_steps(eager, eager, x, skip))


def test_script_and_trace_train_as_eager() -> None:
    module, x, skip = make_module()
    expected = two_steps(*(2 * [copy.deepcopy(module)]), x, skip)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(copy.deepcopy(module))
        traced = torch.jit.trace(copy.deepcopy(module), (x, skip), check_trace=False)
    kinds = [node.kind() for node in traced.graph.nodes()]
    assert kinds.count("horizon::fused") == 1 and "aten::_convolution" not in kinds
    for graph in (scripted, traced):
        graph.load_state_dict(module.state_dict())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert_same(two_steps(graph, graph, x, skip), expected)


def test_export_keeps_the_op_and_its_state() -> None:
    module, x, skip = make_module()
    batch = torch.export.Dim("batch")
    shapes = {"x": {0: batch}, "skip": {0: batch}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(copy.deepcopy(module), (x, skip), dynamic_shapes=shapes)
        core = program.run_decompositions().module()
    targets = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert torch.ops.horizon.fused.default in targets
    exported = program.module()
    exported.load_state_dict(module.state_dict())
    expected = two_steps(*(2 * [copy.deepcopy(module)]), x, skip)
    assert_same(two_steps(exported, exported, x, skip), expected)
    core.load_state_dict(module.state_dict())
    with torch.no_grad():
        actual, wanted = core(x, skip), module(x, skip)
    for one, two in zip(actual, wanted, strict=True):
        assert torch.equal(one, two)
    for name, buffer in module.named_buffers():
        assert torch.equal(core.get_buffer(name), buffer), name


def test_without_gradients_the_result_is_the_same() -> None:
    group = Group(add=True)
    t, quantizer = group.tensors(), Quantizer()
    expected = group.fused(copies(t), quantizer, quantize_weight=True)[0]
    for mode in (torch.no_grad, torch.inference_mode):
        quantizer = Quantizer()
        with mode():
            y, *_ = group.fused(copies(t), quantizer, quantize_weight=True)
        assert torch.equal(y, expected) and y.grad_fn is None and int(quantizer.observed) == 1
    assert not group.fused(copies(t, False), Quantizer())[0].requires_grad


def test_inference_tensors_are_accepted() -> None:
    with torch.inference_mode():
        t, quantizer = Group().tensors(), Quantizer()
        Group().fused(t, quantizer, quantize_weight=True)
        assert int(quantizer.observed) == 1 and int(t["num_batches_tracked"]) == 5


def gradients(t: dict[str, torch.Tensor | None]) -> list[torch.Tensor]:
    return [t[n].grad for n in DIFFERENTIABLE if t[n] is not None]


@pytest.mark.parametrize("channels_last", [False, True])
def test_saved_tensor_hooks_may_change_the_layout(channels_last: bool) -> None:
    for base, bn in itertools.product((CONV, LINEAR), (False, True)):
        group = Group(base=base, bn=bn, add=True, channels_last=channels_last and base == CONV)
        a, b = copies(group.tensors()), copies(group.tensors())
        for t in (a, b):
            t["input_scale"], t["input_zero_point"] = torch.tensor(0.05), torch.tensor(128)
        y = group.fused(a, Quantizer())[0]
        grad = torch.randn_like(y)
        y.backward(grad)
        with torch.autograd.graph.saved_tensors_hooks(
            lambda x: x.clone(memory_format=torch.contiguous_format), lambda x: x
        ):
            group.fused(b, Quantizer())[0].backward(grad)
        for one, two in zip(gradients(a), gradients(b), strict=True):
            assert torch.allclose(one, two, rtol=1e-5, atol=1e-6)


def test_checkpointing_recomputes_the_same_gradients() -> None:
    group = Group(add=True)
    a, b = copies(group.tensors()), copies(group.tensors())
    fixed = {"observe": False, "scale": torch.tensor(0.03)}
    group.fused(a, Quantizer(**fixed))[0].square().sum().backward()

    def call(x: torch.Tensor) -> torch.Tensor:
        return group.fused({**b, "input": x}, Quantizer(**fixed))[0]

    checkpoint(call, b["input"], use_reentrant=False).square().sum().backward()
    for one, two in zip(gradients(a), gradients(b), strict=True):
        assert torch.equal(one, two)


def test_a_retained_graph_gives_the_same_gradients_twice() -> None:
    group = Group(add=True)
    t = copies(group.tensors())
    loss = group.fused(t, Quantizer(), quantize_weight=True)[0].square().sum()
    loss.backward(retain_graph=True)
    first = [g.clone() for g in gradients(t)]
    loss.backward()
    for one, two in zip(first, gradients(t), strict=True):
        assert torch.equal(2 * one, two)


def test_double_backward_is_a_clear_error() -> None:
    group = Group(act=RELU)
    t = copies(group.tensors())
    y = group.fused(t)[0]
    (grad,) = torch.autograd.grad(y.square().sum(), t["input"], create_graph=True)
    with pytest.raises(NotImplementedError, match="fused: double backward is not supported"):
        grad.square().sum().backward()


def test_a_forward_mode_tangent_is_a_clear_error() -> None:
    group = Group()
    t = group.tensors()
    with forward_ad.dual_level():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            t["input"] = forward_ad.make_dual(t["input"], torch.ones_like(t["input"]))
        with pytest.raises(NotImplementedError, match="fused: 'input' must be used in reverse"):
            group.fused(t)
