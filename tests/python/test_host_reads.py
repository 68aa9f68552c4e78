"""No step of a prepared or a converted model reads a tensor's value on the host.

On a GPU such a read waits for all that was started, and no CUDA graph can hold it.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from networks import ALL_NETWORKS, randomize
from parity import flat
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from horizon_plugin.quantization import (
    convert,
    fuse_modules,
    get_default_qat_qconfig,
    prepare_qat,
)

READS = {"_local_scalar_dense", "is_nonzero", "equal", "nonzero", "item", "lift_fresh"}


class HostReads(TorchDispatchMode):
    """The operators that bring a value to the host, or a new constant to the device."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        if func.overloadpacket.__name__ in READS:
            self.found.append(str(func))
        return func(*args, **(kwargs or {}))


def prepared(name: str, device: str) -> tuple[nn.Module, Tensor]:
    model = randomize(ALL_NETWORKS[name]()).train().to(device)
    model = fuse_modules(model, model.groups(), inplace=True)
    model.qconfig = get_default_qat_qconfig()
    model = prepare_qat(model, inplace=True)
    return model, torch.randn(ALL_NETWORKS[name].input_shape, device=device)


def loss_of(result: Any) -> Tensor:
    if isinstance(result, Tensor):
        return result.square().mean()
    entries = result.values() if isinstance(result, dict) else result
    return sum(loss_of(entry) for entry in entries)  # type: ignore[return-value]


def test_a_read_of_a_value_is_seen() -> None:
    with HostReads() as reads:
        float(torch.ones(()))
    assert reads.found == ["aten._local_scalar_dense.default"]


@pytest.mark.parametrize("name", ["mobilenet_v3", "detector"])
def test_no_step_reads_a_value_on_the_host(name: str, device: str) -> None:
    model, x = prepared(name, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for _ in range(2):
        with HostReads() as reads:
            optimizer.zero_grad()
            loss_of(model(x)).backward()
            optimizer.step()
        assert reads.calls > 50
        assert reads.found == []
    model.eval()
    with torch.no_grad():
        for stage in (model, convert(model)):
            with HostReads() as reads:
                result = stage(x)
            assert reads.found == []
            assert all(torch.isfinite(t).all() for t in flat(result))
