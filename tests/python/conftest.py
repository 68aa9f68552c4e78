"""What every test starts from: the same seeds, and two threads."""

from __future__ import annotations

import random

import hypothesis
import numpy as np
import pytest
import torch

import horizon_plugin  # noqa: F401  (every test needs the operators registered)

# Tensors make examples slow to build, and their time says nothing; the examples are the same in
# every run, so that a failure can be repeated.
hypothesis.settings.register_profile("horizon", deadline=None, derandomize=True, max_examples=50)
hypothesis.settings.load_profile("horizon")


@pytest.fixture(autouse=True)
def _same_start() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    torch.set_num_threads(2)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # torch 2.14's own opcheck asks copies of its arguments for their gradients, and is warned.
    ignored = pytest.mark.filterwarnings(
        "ignore:The .grad attribute of a Tensor that is not a leaf"
    )
    for item in items:
        if "opcheck" in item.name:
            item.add_marker(ignored)
