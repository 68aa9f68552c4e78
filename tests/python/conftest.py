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
