"""How the operands of a fused add find their convolution.

A group with an add computes everything in the add, which alone sees both operands. The module in
the convolution's slot only hands on its input, as a new tensor that stands for the convolution's
result and carries a *link*. The add recognizes its convolution's operand by the link's token, an
object that both modules share (so that it survives deepcopy and pickle), and computes from its
source.

In eager that tensor is a `PendingTensor`, which refuses every use but the group's own modules: no
other code can compute from a value that does not exist yet. Under tracing, compilation and export
it is a plain alias of the source; a script sees the source itself.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.fx
from torch import Tensor, nn

LINK = "_pending"

# Link stages: what of the group has been passed so far.
AFTER_BASE = 0
AFTER_NORM = 1


class Link(NamedTuple):
    """What ties a pending result to its group."""

    token: FusedGroup
    source: Any  # the convolution's input: a tensor, or a proxy of a symbolic trace
    version: int  # the in-place counter of `source` when the convolution was called
    stage: int
    output_size: list[int] | None
    context: tuple[bool, bool] | None  # grad mode and autocast at that time; None in graphs


class FusionError(ValueError):
    """A model cannot be fused as asked; the text says which module and what would work."""


class PendingError(FusionError, RuntimeError):
    """A fused add was not called as its group was written."""


class FusedGroup:
    """Identifies a fused group, by identity; its modules share one object.

    Attributes:
        names: the members' paths at the time of the fusion, in order.
        add: the index of the FloatFunctional among them, or -1.
        stage: the link stage in which the add wants its operand.
    """

    __slots__ = ("add", "names", "stage")

    def __init__(self, names: tuple[str, ...], add: int = -1, has_norm: bool = False) -> None:
        self.names = names
        self.add = add
        self.stage = AFTER_NORM if has_norm else AFTER_BASE

    def __repr__(self) -> str:
        return f"FusedGroup({', '.join(self.names)})"

    @property
    def base_name(self) -> str:
        """The convolution's (or linear layer's) path."""
        return self.names[0]

    @property
    def add_name(self) -> str:
        """The path of the FloatFunctional."""
        return self.names[self.add]


def _name_of(func: Any) -> str:
    name = getattr(func, "__name__", str(func))
    if name in ("__get__", "__set__"):
        name = getattr(getattr(func, "__self__", None), "__name__", name)
    name = name.removesuffix(".default")
    return {"add": "+ (add)", "add_": "+= (add_)"}.get(name, name)


class PendingTensor(Tensor):
    """The result of a convolution that its fused add has still to compute."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Refuses `func`."""
        link = _first_link((args, kwargs or {}))
        if link is None:
            raise PendingError(f"{_name_of(func)} used the result of a fused convolution")
        raise PendingError(misuse(link.token, _name_of(func)))

    def __repr__(self, **kwargs: Any) -> str:  # type: ignore[override]
        token = getattr(self, LINK).token
        return f"<result of {token.base_name}, pending until {token.add_name}.add>"

    def __format__(self, spec: str) -> str:
        return format(repr(self), spec)

    def __iter__(self) -> Any:
        raise PendingError(misuse(getattr(self, LINK).token, "iteration"))


# What a pending tensor holds: a function that takes it apart in C++, past __torch_function__, finds
# no data to compute from.
_NOTHING = torch.empty(0, device="meta")
SPENT = "_spent"


def misuse(token: FusedGroup, user: str) -> str:
    """The text for a use of a pending result by anything but its group."""
    return (
        f"result of {token.base_name} used by {user} before its add: {token.base_name} was fused "
        f"into {token.add_name}, which computes it, so only the group's own modules and "
        f"{token.add_name}.add may use it; leave {token.base_name} out of the fused list, or call "
        f"nothing else between"
    )


def _first_link(value: Any) -> Link | None:
    if isinstance(value, PendingTensor):
        return getattr(value, LINK, None)
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (tuple, list)):
        return None
    return next((link for link in map(_first_link, value) if link is not None), None)


def _is_graph_mode() -> bool:
    # Dispatch modes (make_fx, fake tensors) record tensor creation, so nothing may be created.
    return (
        torch.compiler.is_compiling()
        or torch._C._is_tracing()
        or torch._C._len_torch_dispatch_stack() > 0
    )


def version_of(x: Tensor) -> int:
    """The in-place counter of `x`; -1 where there is none (compilation, inference, symbols)."""
    if torch.compiler.is_compiling():
        return -1
    with torch._C.DisableTorchFunction():
        if isinstance(x, Tensor) and x.is_inference():
            return -1  # without the exception, which costs more than the layer
        try:
            version = x._version
        except (RuntimeError, AttributeError):
            return -1
    return version if type(version) is int else -1


def _through_identities(proxy: torch.fx.Proxy) -> Link | None:
    """The link of a proxy behind modules that return what they get.

    In eager they return the very same object; a symbolic trace makes a new proxy for each.
    """
    node: Any = proxy.node
    root = getattr(proxy.tracer, "root", None)
    while (
        node.op == "call_module"
        and root is not None
        and type(root.get_submodule(node.target)) is nn.Identity
    ):
        node = node.args[0] if node.args else node.kwargs["input"]
    return getattr(proxy.tracer, LINK, {}).get(node)


def link_of(x: Any) -> Link | None:
    """The link that `x` carries, if any."""
    if isinstance(x, torch.fx.Proxy):
        return _through_identities(x)
    link = getattr(x, LINK, None)
    return link if type(link) is Link else None


def _linked(link: Link) -> Tensor:
    source = link.source
    if isinstance(source, torch.fx.Proxy):
        proxy = torch.ops.aten.alias(source)
        source.tracer.__dict__.setdefault(LINK, {})[proxy.node] = link
        return proxy
    if _is_graph_mode() or not isinstance(source, Tensor):
        stand_in = torch.ops.aten.alias(source)
        link = link._replace(context=None)
    else:
        stand_in = Tensor._make_subclass(PendingTensor, _NOTHING)
    setattr(stand_in, LINK, link)
    return stand_in


def execution_context() -> tuple[bool, bool]:
    """Grad mode and autocast, which decide what an op does besides its arguments."""
    return torch.is_grad_enabled(), torch._C._is_any_autocast_enabled()


class Placeholder(nn.Identity):
    """What stands in the slot of a member of a group with an add. Computes nothing.

    Attributes:
        _fusion_group: the group.
        _pending_token: the same, on the placeholder of the base.
    """

    def __init__(self, group: FusedGroup, name: str) -> None:
        super().__init__()
        self._fusion_group = group
        self._pending_token = group
        self.fused_name = name

    def extra_repr(self) -> str:
        """Where the work went."""
        return f"fused into {self._fusion_group.add_name}"


class BasePlaceholder(Placeholder):
    """In the slot of a convolution or linear layer: hands its input to the add."""

    def forward(self, input: Tensor) -> Tensor:
        """A tensor that stands for the layer's result."""
        if torch.jit.is_scripting():
            return input
        else:
            return self._hand_on(input, None)

    @torch.jit.unused
    def _hand_on(self, input: Tensor, output_size: list[int] | None) -> Tensor:
        token = self._pending_token
        if type(input) is PendingTensor:
            raise PendingError(misuse(getattr(input, LINK).token, self.fused_name))
        context = None if torch.compiler.is_compiling() else execution_context()
        return _linked(Link(token, input, version_of(input), AFTER_BASE, output_size, context))


class TransposedPlaceholder(BasePlaceholder):
    """In the slot of a transposed convolution: takes `output_size` as well."""

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        """A tensor that stands for the layer's result."""
        if torch.jit.is_scripting():
            if output_size is not None:
                raise ValueError(
                    "a scripted fused add cannot take output_size: use torch.jit.trace"
                )
            return input
        else:
            return self._hand_on(input, output_size)


class NormPlaceholder(Placeholder):
    """In the slot of a batch norm before an add."""

    def forward(self, input: Tensor) -> Tensor:
        """`input`, which must be the result of the group's own convolution."""
        if torch.jit.is_scripting():
            return input
        else:
            return self._pass(input)

    @torch.jit.unused
    def _pass(self, input: Tensor) -> Tensor:
        link = link_of(input)
        token = self._pending_token
        if link is None or link.token is not token:
            if type(input) is PendingTensor:
                raise PendingError(misuse(link.token, self.fused_name))  # type: ignore[union-attr]
            raise PendingError(
                f"{self.fused_name} was fused into {token.add_name} and must be called on the "
                f"result of {token.base_name} only, got another tensor: leave it out of the fused "
                "list, or give the other call a batch norm of its own"
            )
        return _linked(link._replace(stage=AFTER_NORM))


class ActivationPlaceholder(Placeholder):
    """In the slot of the activation behind an add."""

    def forward(self, input: Tensor) -> Tensor:
        """`input`, the add's result."""
        if torch.jit.is_scripting():
            return input
        else:
            return self._pass(input)

    @torch.jit.unused
    def _pass(self, input: Tensor) -> Tensor:
        if type(input) is PendingTensor:
            raise PendingError(misuse(getattr(input, LINK).token, self.fused_name))
        return input


# What a FloatFunctional offers besides add and add_relu.
OTHER_FUNCTIONALS = (
    "add_scalar",
    "sub",
    "mul",
    "mul_scalar",
    "div",
    "cat",
    "cap",
    "mean",
    "sum",
    "matmul",
    "max",
    "min",
    "exp",
    "sqrt",
    "pow",
)


def refuse_functional(group: FusedGroup | None, name: str) -> None:
    """Raise for a method that a fused add does not have."""
    add = "a fused add" if group is None else group.add_name
    raise PendingError(
        f"{add} was fused and serves add and add_relu only, got a call of {name}: use a "
        f"FloatFunctional of its own for {name}"
    )
