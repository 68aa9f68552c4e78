"""How the operands of a fused add find their convolution.

A group with an add computes everything in the add, which alone sees both operands. The module in
the convolution's slot only hands on its input, as a new tensor that stands for the convolution's
result and carries a *link*: ``(token, source, version, stage, output_size)``. The add recognizes
its convolution's operand by the token, an object that both modules share (so that it survives
deepcopy and pickle), and computes from the source.

In eager that tensor is a `PendingTensor`, which refuses every use but the group's own modules: no
other code can compute from a value that does not exist yet. Under tracing, compilation and export
it is a plain alias of the source; a script sees the source itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

LINK = "_pending"

# Link stages: what of the group has been passed so far.
AFTER_BASE = 0
AFTER_NORM = 1

Link = tuple[Any, ...]


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
        raise PendingError(_misuse(link[0], _name_of(func)))

    def __repr__(self, **kwargs: Any) -> str:  # type: ignore[override]
        token = getattr(self, LINK)[0]
        return f"<result of {token.base_name}, pending until {token.add_name}.add>"


def _misuse(token: FusedGroup, user: str) -> str:
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
        try:
            version = x._version
        except (RuntimeError, AttributeError):
            return -1
    return version if type(version) is int else -1


def _link_of(x: Any) -> Link | None:
    link = getattr(x, LINK, None)
    return link if type(link) is tuple else None


def _linked(link: Link) -> Tensor:
    source = link[1]
    if _is_graph_mode() or not isinstance(source, Tensor):
        stand_in = torch.ops.aten.alias(source)
    else:
        stand_in = Tensor.__new__(PendingTensor)
    setattr(stand_in, LINK, link)
    return stand_in


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
            raise PendingError(_misuse(getattr(input, LINK)[0], self.fused_name))
        return _linked((token, input, version_of(input), AFTER_BASE, output_size))


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
        link = _link_of(input)
        token = self._pending_token
        if link is None or link[0] is not token:
            if type(input) is PendingTensor:
                raise PendingError(_misuse(link[0], self.fused_name))  # type: ignore[index]
            raise PendingError(
                f"{self.fused_name} was fused into {token.add_name} and must be called on the "
                f"result of {token.base_name} only, got another tensor: leave it out of the fused "
                "list, or give the other call a batch norm of its own"
            )
        return _linked((token, link[1], link[2], AFTER_NORM, link[4]))


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
            raise PendingError(_misuse(getattr(input, LINK)[0], self.fused_name))
        return input


def _own_operand(module: Any, x: Any) -> Link | None:
    """The link of `x` if it comes from the module's own convolution."""
    link = _link_of(x)
    if link is None:
        return None
    token = module._pending_token
    if link[0] is not token:
        if type(x) is PendingTensor:
            raise PendingError(_misuse(link[0], f"{token.add_name}.add"))
        return None
    if link[3] != token.stage:
        raise PendingError(
            f"result of {token.base_name} used by {token.add_name}.add before "
            f"{token.names[1]}, which was fused with it: call {token.names[1]} between them"
        )
    if link[2] >= 0 and version_of(link[1]) != link[2]:
        raise PendingError(
            f"the input of {token.base_name} was changed in place between {token.base_name} and "
            f"{token.add_name}.add, which computes from it: use the out-of-place op there (such as "
            "nn.ReLU(inplace=False))"
        )
    return link


def resolve_operands(module: Any, x: Any, y: Any) -> tuple[Tensor, Tensor | None, int]:
    """Tell the convolution's operand of a fused add from the other one.

    Args:
        module: the fused module, of any stage; has ``_pending_token``.
        x, y: the operands of its `add`.

    Returns:
        The convolution's input, the other operand (None if both came through the convolution: the
        result is z + z) and 0, 1 or 2: the first, the second or both are the convolution's.

    Raises:
        PendingError: neither operand came through the group's convolution, its batch norm was
            skipped, or its input changed in place since.
    """
    first = _own_operand(module, x)
    second = _own_operand(module, y)
    if first is None and second is None:
        token = module._pending_token
        raise PendingError(
            f"{token.add_name}.add: one operand must be the result of {token.base_name}, which is "
            f"fused into it, got two other tensors: hand that result to the add unchanged, or "
            f"leave {token.add_name} out of the fused list"
        )
    own = second if first is None else first
    if own[4] is not None and not getattr(module, "takes_output_size", False):  # type: ignore[index]
        raise PendingError(
            f"{module._pending_token.base_name}: 'output_size' must be None here, got {own[4]}"  # type: ignore[index]
        )
    if first is None:
        return own[1], x, 1  # type: ignore[index]
    if second is None:
        return own[1], y, 0  # type: ignore[index]
    if x is not y:
        _check_one_call(module, first, second)
    return own[1], None, 2  # type: ignore[index]


def _check_one_call(module: Any, first: Link, second: Link) -> None:
    token = module._pending_token
    bn = getattr(module, "bn", None)
    if first[1] is second[1] and first[4] == second[4] and (bn is None or not bn.training):
        return
    raise PendingError(
        f"{token.add_name}.add: both operands are results of {token.base_name}, from two calls: a "
        f"fused {token.base_name} is computed once for each add; leave it out of the fused list"
    )


def operand_output_size(x: Any, y: Any) -> list[int] | None:
    """The `output_size` that the transposed convolution of a fused add was called with."""
    for operand in (x, y):
        link = _link_of(operand)
        if link is not None and link[4] is not None:
            return link[4]
    return None


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
