"""What every test starts from: the same seeds, and two threads."""

from __future__ import annotations

import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import horizon_plugin  # noqa: F401  (every test needs the operators registered)

DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]

collect_ignore: list[str] = []
try:
    import hypothesis
except ModuleNotFoundError:
    # A machine for device checks may lack it.
    uses = re.compile("^(from|import) hypothesis", re.MULTILINE)
    files = Path(__file__).parent.glob("test_*.py")
    collect_ignore += sorted(f.name for f in files if uses.search(f.read_text()))
else:
    # Tensors make examples slow to build, and their time says nothing; the examples are the same
    # in every run, so that a failure can be repeated.
    hypothesis.settings.register_profile(
        "horizon", deadline=None, derandomize=True, max_examples=50
    )
    hypothesis.settings.load_profile("horizon")


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    """The devices of this machine, one after the other; tests that take it run on each."""
    return str(request.param)


@pytest.fixture(autouse=True)
def _same_start() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    torch.set_num_threads(2)


def pytest_report_header() -> list[str]:
    return [f"left out without hypothesis: {', '.join(collect_ignore)}"] if collect_ignore else []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # torch 2.14's own opcheck asks copies of its arguments for their gradients, and is warned.
    ignored = pytest.mark.filterwarnings(
        "ignore:The .grad attribute of a Tensor that is not a leaf"
    )
    for item in items:
        if "opcheck" in item.name:
            item.add_marker(ignored)
