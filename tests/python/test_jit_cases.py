"""Every graph of tests/data/partition_cases.txt is partitioned as the file says."""

from __future__ import annotations

import pytest
from partition_cases import Case, build, read_cases, shorten

from horizon_plugin import jit

CASES = read_cases()


def id_of(case: Case) -> str:
    return " ".join([case.name, *(f"{k}={v}" for k, v in case.options.items())])


def test_the_file_holds_all_its_cases():
    # 17 graphs; A has four lines, B and P have two.
    assert len(CASES) == 17 + 3 + 1 + 1
    assert len({case.name for case in CASES}) == 17


@pytest.mark.parametrize("case", CASES, ids=id_of)
@pytest.mark.parametrize("prepare", [True, False], ids=["prepared", "as it is"])
def test_a_partition_is_what_the_file_expects(case, prepare):
    graph = build(case)
    before = str(graph)
    made = jit.partition(graph, prepare=prepare, **case.partition_options)
    assert shorten(jit.dump(made), case.expected) == case.expected
    assert jit.dump(made).count("cast_hint") == case.pairs
    assert str(graph) == before


@pytest.mark.parametrize("case", CASES, ids=id_of)
def test_a_partition_in_place_makes_the_same_graph(case):
    graph = build(case)
    made = jit.partition(build(case), **case.partition_options)
    assert jit.partition(graph, inplace=True, **case.partition_options) is graph
    assert jit.dump(graph) == jit.dump(made)
