"""Which operators have kernels for CUDA devices, and what a build without any says."""

from __future__ import annotations

import json

import pytest
import torch

import horizon_plugin
from horizon_plugin._library import _ROOT

OPERATORS = sorted(
    name
    for name in torch._C._dispatch_get_all_op_names()
    if name.startswith("horizon::")
    and torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU")
    and not torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")
)
BUILT = json.loads((_ROOT / "lib" / "build.json").read_text())


def test_there_are_operators_to_look_at():
    assert len(OPERATORS) >= 30


@pytest.mark.parametrize("name", OPERATORS)
def test_every_operator_with_a_kernel_for_the_cpu_has_one_for_cuda(name):
    assert torch._C._dispatch_has_kernel_for_dispatch_key(name, "CUDA")


def test_the_build_says_whether_it_has_cuda_kernels():
    assert BUILT["version"] == horizon_plugin.__version__
    if torch.version.cuda is None:
        assert BUILT["cuda"] == ""


@pytest.mark.skipif(BUILT["cuda"] != "", reason="this build has CUDA kernels")
@pytest.mark.parametrize("name", OPERATORS)
def test_a_build_without_cuda_says_what_to_install(name):
    op, _, overload = name.removeprefix("horizon::").partition(".")
    packet = getattr(torch.ops.horizon, op)
    schema = getattr(packet, overload or "default")._schema
    arguments = [example(argument.type) for argument in schema.arguments]
    with pytest.raises(
        NotImplementedError, match=f"^{op}: tensors are on a CUDA device, .*HORIZON_"
    ):
        getattr(packet, overload or "default").redispatch(
            torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA), *arguments
        )


def example(kind: torch._C.Type) -> object:
    """A value of an argument's type; the kernel looks at none."""
    text = str(kind)
    if text.startswith("Optional"):
        return None
    if text == "Tensor":
        return torch.zeros(1)
    if text.startswith("List"):
        return []
    return {"int": 0, "float": 0.0, "bool": False, "number": 0}[text]
