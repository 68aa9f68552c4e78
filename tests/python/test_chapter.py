"""The manual chapter: its pattern list and its two examples."""

from __future__ import annotations

import copy
import re
import warnings
from pathlib import Path

import pytest
import torch
from fuse_models import PATTERNS, names_of, pair, pattern_id, randomize, slot_of
from torch import nn

import horizon_plugin
from horizon_plugin import fusion_patterns
from horizon_plugin.nn import intrinsic
from horizon_plugin.quantization import fuse_modules

CHAPTER = (Path(__file__).parents[1] / "data" / "operator_fusion.txt").read_text()


def chapter_tuples() -> list[tuple[str, ...]]:
    lines = re.findall(r"^\((nn\..*)\)$", CHAPTER, flags=re.MULTILINE)
    return [tuple(name.split(".")[1] for name in line.split(", ")) for line in lines]


def test_the_chapter_lists_21_tuples():
    assert len(chapter_tuples()) == len(set(chapter_tuples())) == 21
    assert ("Conv2d", "BatchNorm2d", "FloatFunctional", "ReLU6") in chapter_tuples()


def test_the_table_for_convolutions_is_the_chapter_plus_conv_bn():
    ours = {p.kinds for p in PATTERNS if p.kinds[0] != "Linear"}
    assert ours == {*chapter_tuples(), ("Conv2d", "BatchNorm2d")}


def test_linear_has_the_same_eleven_sequences_with_its_own_batch_norm():
    def sequences(base: str) -> list[tuple[str, ...]]:
        return [p.kinds[1:] for p in PATTERNS if p.kinds[0] == base]

    renamed = [
        tuple("BatchNorm1d" if k == "BatchNorm2d" else k for k in s) for s in sequences("Conv2d")
    ]
    assert sequences("Linear") == renamed
    assert len(renamed) == 11


def test_the_table_prints_each_pattern_with_its_class(capsys):
    print(fusion_patterns.table())
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 33
    assert lines[3].split() == ["(Conv2d,", "BatchNorm2d,", "ReLU)", "ConvBNReLU2d"]


@pytest.mark.parametrize("pattern", PATTERNS, ids=pattern_id)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_every_tuple_fuses_in_train_and_eval(pattern, training):
    chain = pair(pattern)[0].train(training)
    fused = fuse_modules(chain, names_of(pattern))
    module = getattr(fused, slot_of(pattern))
    expected = pattern.variant if training else pattern.variant._replace(has_bn=False)
    assert type(module) is getattr(intrinsic, expected.class_name)
    for name in set(names_of(pattern)) - {slot_of(pattern)}:
        assert isinstance(getattr(fused, name), nn.Identity)


def example(number: int) -> str:
    """The code of an example, without prose, its import readable."""
    begin = CHAPTER.index(f"Example {number}: ")
    end = CHAPTER.find(f"Example {number + 1}: ")
    lines = CHAPTER[begin : end if end >= 0 else None].splitlines()[1:]
    code = "\n".join(line for line in lines if not line.startswith("Since "))
    return code.replace("as D-Robotics", "as horizon")


def run_examples(*numbers: int) -> dict[str, object]:
    namespace: dict[str, object] = {"__name__": "chapter"}
    imports = re.findall(r"^(?:from|import) .*$", CHAPTER[: CHAPTER.index("(nn.")], re.MULTILINE)
    with warnings.catch_warnings():
        # torch.quantization, which the chapter imports, is deprecated.
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        exec("\n".join(imports), namespace)
        for number in numbers:
            exec(example(number), namespace)
    return namespace


def test_example_1_fuses_sequential_subscripts_in_place():
    namespace = run_examples(1)
    assert namespace["horizon"] is horizon_plugin
    net = namespace["float_net"]
    assert type(net[1]) is intrinsic.ConvBN2d
    assert type(net[2]) is nn.Identity
    conv = nn.Conv2d(1, 2, 1)
    conv.load_state_dict({k: net[1].state_dict()[k] for k in ("weight", "bias")})
    plain = nn.Sequential(conv, copy.deepcopy(randomize(net[1].bn)))
    x = torch.randn(4, 1, 5, 5)
    assert torch.equal(net(x), plain(x))


def test_example_2_fuses_names_in_place_after_the_imports_of_example_1():
    model = run_examples(1, 2)["model"]
    assert type(model.conv) is intrinsic.ConvBNReLU2d
    assert type(model.bn) is type(model.relu) is nn.Identity
    assert model.conv.bias is None
    bn = copy.deepcopy(randomize(model.conv.bn))
    x = torch.randn(4, 2, 5, 5)
    expected = bn(nn.functional.conv2d(x, model.conv.weight)).relu()
    assert torch.equal(model(x), expected)
