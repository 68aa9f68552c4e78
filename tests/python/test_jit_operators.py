"""The annotations are identities, in eager mode, under every transform and for gradients."""

from __future__ import annotations

import pytest
import torch
from jit_networks import SCRIPTS, example, load, traced
from torch import nn
from torch.utils._pytree import tree_leaves

from horizon_plugin import jit

OPERATORS = {
    "cast_hint": (torch.ops.annotation.cast_hint, ("int8",)),
    "stop_fusion": (torch.ops.annotation.stop_fusion, ()),
}
each_operator = pytest.mark.parametrize(("op", "rest"), OPERATORS.values(), ids=OPERATORS)


@each_operator
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int8, torch.bool])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3, 4, 5)], ids=str)
def test_the_result_is_an_alias_of_the_argument(op, rest, dtype, shape):
    x = torch.zeros(shape, dtype=dtype).to(memory_format=torch.contiguous_format)
    y = op(x, *rest)
    assert y.data_ptr() == x.data_ptr()
    assert (y.dtype, y.shape, y.stride()) == (x.dtype, x.shape, x.stride())


@each_operator
def test_the_gradient_passes(op, rest):
    x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: op(x, *rest), (x,))
    assert torch.autograd.gradgradcheck(lambda x: op(x, *rest) ** 3, (x,))


@each_operator
@pytest.mark.parametrize("requires_grad", [False, True])
def test_opcheck_finds_nothing(op, rest, requires_grad):
    x = torch.randn(2, 3, requires_grad=requires_grad)
    torch.library.opcheck(op, (x, *rest))


@pytest.mark.parametrize("dtype", ["int4", "", "float32", "INT8"])
def test_an_unknown_dtype_is_refused(dtype):
    with pytest.raises(
        ValueError, match=f"'dtype' must be one of int8, uint8, int16, got '{dtype}'"
    ):
        torch.ops.annotation.cast_hint(torch.ones(1), dtype)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_a_traced_pair_stays_in_the_graph(dtype):
    class Pair(nn.Module):
        def forward(self, x):
            hint = torch.ops.annotation.cast_hint(x, dtype)
            return torch.ops.annotation.stop_fusion(hint)

    dump = jit.dump(traced(Pair(), torch.ones(1)))
    assert f'cast_hint(%x, dtype="{dtype}")' in dump
    assert "stop_fusion(%0)" in dump


@pytest.mark.parametrize(
    ("name", "how"), [s for s in SCRIPTS if s[0] not in ("in place", "integer input")]
)
def test_gradients_through_a_partitioned_graph_are_those_of_the_prepared_one(name, how):
    made = jit.partition(load(name, how))

    def gradient(module):
        x = example(name).requires_grad_()
        sum(leaf.float().square().sum() for leaf in tree_leaves(module(x))).backward()
        return x.grad

    expected = gradient(jit.strip(made))
    for _ in range(2):
        assert torch.equal(gradient(made), expected)
