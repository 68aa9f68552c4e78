"""Which operand of a fused add is its convolution's, and whether it may still be computed."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from horizon_plugin.nn._pending import (
    SPENT,
    Link,
    PendingError,
    PendingTensor,
    execution_context,
    link_of,
    misuse,
    version_of,
)


def _own_operand(module: Any, x: Any) -> Link | None:
    """The link of `x` if it comes from the module's own convolution."""
    link = link_of(x)
    if link is None:
        return None
    token = module._pending_token
    if link.token is not token:
        if type(x) is PendingTensor:
            raise PendingError(misuse(link.token, f"{token.add_name}.add"))
        return None
    if link.stage != token.stage:
        raise PendingError(
            f"result of {token.base_name} used by {token.add_name}.add before "
            f"{token.names[1]}, which was fused with it: call {token.names[1]} between them"
        )
    if type(x) is PendingTensor:
        _check_state(x, link)
    if link.version >= 0 and version_of(link.source) != link.version:
        raise PendingError(
            f"the input of {token.base_name} was changed in place between {token.base_name} and "
            f"{token.add_name}.add, which computes from it: use the out-of-place op there (such as "
            "nn.ReLU(inplace=False))"
        )
    return link


def _check_state(x: PendingTensor, link: Link) -> None:
    """Refuse what would make a late computation differ from one at the convolution's call."""
    token = link.token
    if getattr(x, SPENT, False):
        raise PendingError(
            f"result of {token.base_name} used by {token.add_name}.add a second time: "
            f"{token.base_name} is computed in the add, once for each; give the other add a "
            f"FloatFunctional of its own and leave {token.base_name} out of the fused list"
        )
    if link.context is not None and link.context != execution_context():
        raise PendingError(
            f"{token.base_name} and {token.add_name}.add must be called under the same grad mode "
            f"and autocast, as {token.base_name} is computed in the add: let the no_grad() or "
            f"autocast() block hold both or neither, or leave {token.base_name} out of the fused "
            "list"
        )


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
            skipped, its input changed in place since, its result is spent, or grad mode or autocast
        are others than at its call.
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
    assert own is not None
    for operand in (x, y):
        if type(operand) is PendingTensor:
            setattr(operand, SPENT, True)
    if own.output_size is not None and not getattr(module, "takes_output_size", False):
        raise PendingError(
            f"{own.token.base_name}: 'output_size' must be None here, got {own.output_size}"
        )
    if first is None:
        return own.source, x, 1
    if second is None:
        return own.source, y, 0
    if x is not y:
        _check_one_call(module, first, second)
    return own.source, None, 2


def _check_one_call(module: Any, first: Link, second: Link) -> None:
    token = module._pending_token
    bn = getattr(module, "bn", None)
    same = first.source is second.source and first.output_size == second.output_size
    if same and (bn is None or not bn.training):
        return
    raise PendingError(
        f"{token.add_name}.add: both operands are results of {token.base_name}, from two calls: a "
        f"fused {token.base_name} is computed once for each add; leave it out of the fused list"
    )


def operand_output_size(x: Any, y: Any) -> list[int] | None:
    """The `output_size` that the transposed convolution of a fused add was called with."""
    for operand in (x, y):
        link = link_of(operand)
        if link is not None and link.output_size is not None:
            return link.output_size
    return None
