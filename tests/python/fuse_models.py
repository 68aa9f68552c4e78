"""Models and comparisons that the fusion tests share."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from horizon_plugin.fusion_patterns import PATTERNS, Pattern
from horizon_plugin.quantization import FloatFunctional

MEMBERS = {
    "BatchNorm1d": "bn",
    "BatchNorm2d": "bn",
    "FloatFunctional": "add",
    "ReLU": "act",
    "ReLU6": "act",
}
BY_NAME = {pattern.class_name: pattern for pattern in PATTERNS}
BN_PATTERNS = [pattern for pattern in PATTERNS if pattern.variant.has_bn]
ADD_PATTERNS = [pattern for pattern in PATTERNS if pattern.variant.has_add]


def pattern_id(pattern: Pattern) -> str:
    return pattern.class_name


def randomize(bn: nn.Module) -> nn.Module:
    """Random gamma (some negative), beta, mean, variance: a fresh batch norm hides mistakes."""
    with torch.no_grad():
        if bn.weight is not None:
            bn.weight.uniform_(0.3, 1.7).mul_(torch.randn_like(bn.weight).sign())
            bn.bias.normal_()
        if bn.running_mean is not None:
            bn.running_mean.normal_()
            bn.running_var.uniform_(0.2, 3.0)
    return bn


class Chain(nn.Module):
    """One group, called as its pattern says; the convolution's operand comes first."""

    def __init__(self, base: nn.Module, pattern: Pattern, bn: nn.Module | None = None) -> None:
        super().__init__()
        self.base = base
        if pattern.variant.has_bn:
            channels = getattr(base, "out_channels", None) or base.out_features
            make = nn.BatchNorm1d if isinstance(base, nn.Linear) else nn.BatchNorm2d
            self.bn = randomize(make(channels) if bn is None else bn)
        if pattern.variant.has_add:
            self.add = FloatFunctional()
        if pattern.variant.activation:
            self.act = nn.ReLU() if pattern.variant.activation == 1 else nn.ReLU6()
        self.has_bn, self.has_add = pattern.variant.has_bn, pattern.variant.has_add
        self.has_act = bool(pattern.variant.activation)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        z = self.base(x)
        if self.has_bn:
            z = self.bn(z)
        if self.has_add:
            z = self.add.add(z, skip)
        if self.has_act:
            z = self.act(z)
        return z


def names_of(pattern: Pattern) -> list[str]:
    """The names of the members in a `Chain`."""
    return ["base"] + [MEMBERS[kind] for kind in pattern.kinds[1:]]


def make_base(pattern: Pattern, **geometry: object) -> nn.Module:
    base = pattern.kinds[0]
    if base == "Linear":
        return nn.Linear(6, 8, bias=bool(geometry.get("bias", True)))
    return getattr(nn, base)(6, 8, 3, **geometry)


def make_input(pattern: Pattern, dtype: torch.dtype = torch.float32) -> Tensor:
    shape = (5, 6) if pattern.kinds[0] == "Linear" else (3, 6, 9, 7)
    return torch.randn(shape, dtype=dtype) * 2


def slot_of(pattern: Pattern) -> str:
    """The name whose slot takes the fused module."""
    return "add" if pattern.variant.has_add else "base"


def run(model: nn.Module, x: Tensor, skip: Tensor) -> dict[str, Tensor]:
    """Output, every gradient (parameters under the plain chain's names) and running statistics."""
    model.zero_grad()
    x, skip = (t.detach().clone().requires_grad_() for t in (x, skip))
    y = model(x, skip)
    torch.manual_seed(17)
    y.backward(torch.randn_like(y))
    result = {"output": y.detach(), "x.grad": x.grad}
    if skip.grad is not None:
        result["skip.grad"] = skip.grad
    for name, parameter in model.named_parameters():
        kind = name.rsplit(".", 1)[-1]
        owner = "bn" if ".bn." in f".{name}" else "base"
        result[f"{owner}.{kind}.grad"] = parameter.grad
    for name, buffer in model.named_buffers():
        result[name.rsplit(".", 1)[-1]] = buffer.clone()
    return result


def pair(pattern: Pattern, dtype: torch.dtype = torch.float32, **geometry: object):
    """A chain and its independent copy, in train mode, with an input and a skip operand."""
    chain = Chain(make_base(pattern, **geometry), pattern).to(dtype)
    x = make_input(pattern, dtype)
    with torch.no_grad():
        skip = torch.randn_like(copy.deepcopy(chain).base(x))
    return chain, copy.deepcopy(chain), x, skip


def snapshot(model: nn.Module) -> list[tuple]:
    """Every attribute of every module, down to hooks, parameters and their in-place counters.

    Compare with `is_same`: the objects themselves are held, so that no identity is used again.
    """
    found: list[tuple] = []
    for path, module in model.named_modules(remove_duplicate=False):
        found.append((path, "", module))
        if isinstance(module, torch.jit.ScriptModule):
            continue
        for name, value in module.__dict__.items():
            found.append((path, name, value))
            if isinstance(value, dict):
                for key, entry in value.items():
                    version = entry._version if isinstance(entry, Tensor) else None
                    found.append((path, name, key, entry, version))
    return found


def is_same(before: list[tuple], after: list[tuple]) -> bool:
    """Whether two snapshots hold the same objects under the same names."""

    def same(x: object, y: object) -> bool:
        return x is y or (type(x) in (str, int) and x == y)

    return len(before) == len(after) and all(
        len(a) == len(b) and all(map(same, a, b)) for a, b in zip(before, after, strict=True)
    )
