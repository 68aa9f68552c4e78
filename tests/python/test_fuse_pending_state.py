"""A pending result is computed in the add as it would have been before: same state, and once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fuse_models import BY_NAME, Chain, make_base, make_input, names_of
from stages import silent_jit
from torch import Tensor, nn

from horizon_plugin.quantization import FusionError, fuse_modules

# One pattern of each base, with and without a batch norm.
PATTERNS = {
    name: BY_NAME[name]
    for name in (
        "ConvAddReLU2d",
        "ConvBNAdd2d",
        "ConvTransposeAdd2d",
        "ConvTransposeBNAddReLU62d",
        "LinearAddReLU6",
        "LinearBNAdd",
    )
}
MODES = {"live": True, "folded": False}


def fused_and_plain(name: str, training: bool, cls: type = Chain):
    pattern = PATTERNS[name]
    plain = cls(make_base(pattern), pattern).train(training)
    x = make_input(pattern)
    with torch.no_grad():
        skip = torch.randn_like(plain.base(x))
    return fuse_modules(plain, names_of(pattern)), plain, x, skip


def pending(fused: Chain, x: Tensor) -> Tensor:
    z = fused.base(x)
    return fused.bn(z) if fused.has_bn else z


CONTEXTS = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("mode", MODES)
def test_grad_mode_and_autocast_must_hold_both_the_convolution_and_its_add(name, mode, context):
    fused, plain, x, skip = fused_and_plain(name, MODES[mode])
    text = r"base and add\.add must be called under the same grad mode and autocast.*both or neith"
    with pytest.raises(FusionError, match=text):
        with CONTEXTS[context]():
            z = pending(fused, x)
        fused.add.add(z, skip)
    with pytest.raises(FusionError, match=text):
        z = pending(fused, x)
        with CONTEXTS[context]():
            fused.add.add(z, skip)
    with CONTEXTS[context]():
        y, expected = fused(x, skip), plain(x, skip)
        assert y.dtype == expected.dtype and y.requires_grad == expected.requires_grad
        rounding = 0.05 if context == "autocast" else 1e-5
        torch.testing.assert_close(y, expected, rtol=rounding, atol=rounding)


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("first", ["x", "y"])
def test_a_result_serves_one_add(name, mode, first):
    fused, plain, x, skip = fused_and_plain(name, MODES[mode])
    z = pending(fused, x)
    operands = (z, skip) if first == "x" else (skip, z)
    fused.add.add(*operands)
    with pytest.raises(FusionError, match=r"result of base used by add\.add a second time"):
        fused.add.add(*operands)
    plain(x, skip)
    # The refused call has changed nothing.
    for key, value in plain.state_dict().items():
        if "running" in key and MODES[mode]:
            assert torch.equal(fused.state_dict()[key.replace("bn.", "add.bn.")], value)
    torch.testing.assert_close(fused(x, skip), plain(x, skip), rtol=1e-5, atol=1e-5)


class Around(Chain):
    """Modules that return what they get stand before the batch norm, the add and the end."""

    def __init__(self, base: nn.Module, pattern: object, bn: nn.Module | None = None) -> None:
        super().__init__(base, pattern, bn)
        self.before_bn, self.before_add, self.after = nn.Identity(), nn.Identity(), nn.Identity()
        if not self.has_bn:
            self.bn = nn.Identity()
        if not self.has_act:
            self.act = nn.Identity()

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        z = self.before_add(self.before_add(self.bn(self.before_bn(self.base(x)))))
        return self.after(self.act(self.add.add(skip, z)))


GRAPHS = {
    "eager": lambda m, a: m,
    "fx": lambda m, a: torch.fx.symbolic_trace(m),
    "trace": lambda m, a: silent_jit(torch.jit.trace, m, a),
    "script": lambda m, a: silent_jit(torch.jit.script, m),
    "export": lambda m, a: torch.export.export(m, a).module(),
    "compile": lambda m, a: torch.compile(m, backend="eager", fullgraph=True),
}


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("name", PATTERNS)
def test_an_identity_between_convolution_and_add_is_legal_in_every_mode(name, graph):
    fused, plain, x, skip = fused_and_plain(name, False, Around)
    fused(x, skip)  # tells a script which operand is the convolution's
    torch._dynamo.reset()
    y = GRAPHS[graph](fused, (x, skip))(x, skip)
    torch.testing.assert_close(y, plain(x, skip), rtol=1e-5, atol=1e-5)


def test_under_fx_other_modules_between_convolution_and_add_are_no_identities():
    fused, _, _, _ = fused_and_plain("ConvBNAdd2d", False, Around)
    fused.before_add = nn.Dropout(0.5)
    with pytest.raises(FusionError, match=r"add\.add: one operand must be the result of base"):
        torch.fx.symbolic_trace(fused)


PRINTS = {
    "repr": repr,
    "str": str,
    "format": format,
    "f-string": lambda z: f"{z}",
    "percent": lambda z: "%s" % z,  # noqa: UP031
}


@pytest.mark.parametrize("way", PRINTS)
def test_printing_is_fine_in_every_way(way):
    fused, _, x, skip = fused_and_plain("ConvBNAdd2d", True)
    z = pending(fused, x)
    assert PRINTS[way](z) == "<result of base, pending until add.add>"
    assert f"{z:>50}" == "           <result of base, pending until add.add>"
    fused.add.add(z, skip)


class Doubling(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x


TAKERS = {
    "iteration": list,
    "__array__": np.asarray,
    "tolist": lambda z: z.tolist(),
    "data_ptr": lambda z: z.data_ptr(),
    "untyped_storage": lambda z: z.untyped_storage(),
    "__reduce_ex__": lambda z: z.__reduce_ex__(2),
    "mul": Doubling.apply,
    "forward": lambda z: silent_jit(torch.jit.script, nn.ReLU())(z),
    "register_hook": lambda z: z.register_hook(print),
    "backward": lambda z: z.backward(),
    "where": lambda z: torch.where(torch.ones(1) > 0, z, z),
    "stack": lambda z: torch.stack([torch.ones(1), z]),
    "einsum": lambda z: torch.einsum("...->", z),
    "is_leaf": lambda z: z.is_leaf,
    "fake_quantize_per_tensor": lambda z: torch.ops.horizon.fake_quantize_per_tensor(
        z, torch.ones(()), torch.zeros((), dtype=torch.int32), -128, 127
    ),
}


@pytest.mark.parametrize("user", TAKERS)
@pytest.mark.parametrize("name", PATTERNS)
def test_takers_that_reach_into_a_tensor_are_refused_by_name(name, user):
    fused, _, x, _ = fused_and_plain(name, True)
    with pytest.raises(FusionError, match=f"result of base used by .*{user}.* before its add"):
        TAKERS[user](pending(fused, x))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(
    "take", [torch.utils.dlpack.to_dlpack, lambda z: torch.nested.nested_tensor([z, z])]
)
def test_takers_past_the_refusal_find_no_data(take):
    fused, _, x, _ = fused_and_plain("ConvBNAdd2d", True)
    with pytest.raises((RuntimeError, BufferError)):
        take(pending(fused, x))


@pytest.mark.parametrize("name", PATTERNS)
def test_functional_transforms_pass_through_a_fused_add(name):
    fused, plain, x, skip = fused_and_plain(name, False)
    gradients = [
        torch.func.grad(lambda t, m=m: m(t, skip).square().sum())(x) for m in (fused, plain)
    ]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-3)
    doubled = {k: 2 * v.detach() for k, v in fused.named_parameters()}
    y = torch.func.functional_call(fused, doubled, (x, skip))
    fused.load_state_dict(doubled, strict=False)
    assert torch.equal(y, fused(x, skip))
