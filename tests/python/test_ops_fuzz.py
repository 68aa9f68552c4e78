"""Wrong arguments of every kind raise an error of ours or of torch's, and never end the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import horizon_plugin  # noqa: F401  (registers torch.ops.horizon)

PROGRAM = Path(__file__).with_name("op_fuzz.py")


def names() -> set[str]:
    """The public operators."""
    every = (name.partition("::") for name in torch._C._dispatch_get_all_op_names())
    return {op for space, _, op in every if space == "horizon" and not op.startswith("_")}


@pytest.mark.parametrize("seed", [1, 2])
def test_no_wrong_argument_of_any_operator_ends_the_process_or_changes_a_tensor(seed: int) -> None:
    run = subprocess.run(
        [sys.executable, str(PROGRAM), str(seed), "150"], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-4000:]
    found, _, operators = run.stdout.partition(" calls returned; operators: ")
    returned, total = map(int, found.split(" of "))
    # Most changes are refused; where none were legal, or nearly all, the arguments tested nothing.
    assert 0.05 * total < returned < 0.6 * total
    assert set(operators.split()) - {"without", "quantizer"} == names()
