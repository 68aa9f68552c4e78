"""One computation on the CPU and on another device, and how far their results may differ.

The other device is the GPU. `HORIZON_PARITY_DEVICE=cpu` compares the CPU with itself instead, which
shows on any machine that the tests themselves work.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

_CHOSEN = os.environ.get("HORIZON_PARITY_DEVICE") or ("cuda" if torch.cuda.is_available() else None)
DEVICE = torch.device(_CHOSEN or "cpu")
needs_device = pytest.mark.skipif(_CHOSEN is None, reason="no GPU")
needs_gpu = pytest.mark.skipif(DEVICE.type != "cuda", reason="no GPU")


@pytest.fixture(autouse=True)
def exact_products() -> Any:
    """fp32 products on the device without TF32, and algorithms that repeat themselves."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark
    matmul.allow_tf32, cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark = (
        False,
        False,
        True,
        False,
    )
    yield
    matmul.allow_tf32, cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark = before


def copied(value: Any, device: torch.device) -> Any:
    """Independent copies with the same strides of every tensor in `value`, on `device`."""
    if isinstance(value, Tensor):
        copy = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
        copy.copy_(value.detach())
        return copy.requires_grad_(value.requires_grad)
    if isinstance(value, nn.Module):
        raise TypeError("copy modules with copy.deepcopy(model).to(device)")
    if isinstance(value, (list, tuple)):
        return type(value)(copied(entry, device) for entry in value)
    if isinstance(value, dict):
        return {name: copied(entry, device) for name, entry in value.items()}
    return value


def flat(value: Any) -> list[Tensor]:
    """Every tensor of a result, in order."""
    if isinstance(value, Tensor):
        return [value.detach()]
    if isinstance(value, dict):
        return [t for entry in value.values() for t in flat(entry)]
    if isinstance(value, (list, tuple)):
        return [t for entry in value for t in flat(entry)]
    return []


def assert_equal(found: Any, expected: Any, *, strides: bool = False) -> None:
    """The same to the bit, NaN equal to NaN; `found` lies on the device."""
    pairs = list(zip(flat(found), flat(expected), strict=True))
    assert pairs
    for actual, wanted in pairs:
        assert actual.device.type == DEVICE.type
        assert actual.dtype == wanted.dtype
        assert actual.shape == wanted.shape
        if strides:
            assert actual.stride() == wanted.stride()
        torch.testing.assert_close(actual.cpu(), wanted, rtol=0, atol=0, equal_nan=True)


def assert_near(found: Any, expected: Any, tolerance: float = 1e-5) -> None:
    """|found - expected| <= tolerance * |expected| as norms; integers are equal."""
    pairs = list(zip(flat(found), flat(expected), strict=True))
    assert pairs
    for actual, wanted in pairs:
        assert actual.device.type == DEVICE.type
        assert actual.dtype == wanted.dtype
        assert actual.shape == wanted.shape
        if not wanted.dtype.is_floating_point:
            assert torch.equal(actual.cpu(), wanted)
            continue
        difference = (actual.cpu().double() - wanted.double()).norm()
        assert difference <= tolerance * wanted.double().norm() + 1e-30


def on_both(call: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """The results of one call on the device and on the CPU, on copies of the arguments.

    What the call changes in place counts as a result: the arguments are part of it.
    """
    results = []
    for device in (DEVICE, torch.device("cpu")):
        own_args, own_kwargs = copied(args, device), copied(kwargs, device)
        results.append((call(*own_args, **own_kwargs), own_args, own_kwargs))
    return results[0], results[1]
