"""Reads tests/data/partition_cases.txt: graphs and what a partition makes of them, in short.

A statement is `name=op(operands)`; `[v]` is the pair of v; constants and weights are omitted.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

FILE = Path(__file__).parents[1] / "data" / "partition_cases.txt"

# The TorchScript of each operator; {0}, {1} are its operands.
TEMPLATES = {
    "conv2d": "aten::conv2d({0}, %w, %none, %ones, %zeros, %ones, %one)",
    "dense": "aten::linear({0}, %w2, %none)",
    "relu": "aten::relu({0})",
    "clip": "aten::hardtanh({0}, %low, %high)",
    "max_pool2d": "aten::max_pool2d({0}, %ones, %ones, %zeros, %ones, %false)",
    "avg_pool2d": "aten::avg_pool2d({0}, %ones, %ones, %zeros, %false, %true, %none)",
    "adaptive_avg_pool2d": "aten::adaptive_avg_pool2d({0}, %ones)",
    "batch_norm": "aten::batch_norm({0}, %b, %b, %b, %b, %false, %low, %low, %false)",
    "batch_flatten": "aten::flatten({0}, %one, %minus)",
    "sigmoid": "aten::sigmoid({0})",
    "leaky_relu": "aten::leaky_relu({0}, %low)",
    "pad": "aten::pad({0}, %pads, %mode, %none)",
}
_TENSOR = "requires_grad=0, device=cpu) = prim::Constant[value=<Tensor>]()"
CONSTANTS = f"""
  %none : NoneType = prim::Constant()
  %one : int = prim::Constant[value=1]()
  %zero : int = prim::Constant[value=0]()
  %minus : int = prim::Constant[value=-1]()
  %low : float = prim::Constant[value=0.5]()
  %high : float = prim::Constant[value=6.]()
  %true : bool = prim::Constant[value=1]()
  %false : bool = prim::Constant[value=0]()
  %mode : str = prim::Constant[value="constant"]()
  %ones : int[] = prim::ListConstruct(%one, %one)
  %zeros : int[] = prim::ListConstruct(%zero, %zero)
  %pads : int[] = prim::ListConstruct(%one, %one, %one, %one)
  %w : Float(2, 2, 1, 1, strides=[2, 1, 1, 1], {_TENSOR}
  %w2 : Float(2, 2, strides=[2, 1], {_TENSOR}
  %b : Float(2, 1, 1, strides=[1, 1, 1], {_TENSOR}
"""


@dataclass(frozen=True)
class Case:
    name: str
    options: dict[str, Any]
    pairs: int
    expected: str

    @property
    def integer_inputs(self) -> tuple[str, ...]:
        return self.options.get("int_inputs", ())

    @property
    def partition_options(self) -> dict[str, Any]:
        return {k: v for k, v in self.options.items() if k != "int_inputs"}


def read_cases() -> list[Case]:
    """Every line marked 'expected'."""
    cases, name = [], ""
    for line in FILE.read_text().splitlines():
        title = re.match(r"([A-Z]\d?)\. (.*)", line)
        if title:
            name = title.group(1)
        found = re.match(r"  expected ({.*?} )?\((\d+)\): (.*)", line)
        if found:
            options = ast.literal_eval((found.group(1) or "{}").strip())
            cases.append(Case(name, options, int(found.group(2)), found.group(3)))
    return cases


def statements(text: str) -> list[tuple[str, str, list[str]]]:
    """[(result, operator, operands)], the return with an empty result."""
    rows = []
    for part in text.split("; "):
        found = re.fullmatch(r"(\w+)=(\w+)\((.*)\)", part)
        if found:
            rows.append((found.group(1), found.group(2), found.group(3).split(", ")))
        else:
            rows.append(("", "return", part.removeprefix("return ").split(", ")))
    return rows


def _call(op: str, operands: list[str], bias_first: bool) -> str:
    values = [f"%{name.strip('[]')}" for name in operands]
    if op == "concatenate":
        return f"aten::cat(%list_{'_'.join(operands)}, %one)"
    if op in ("add", "multiply"):
        if len(values) == 1:
            values = ["%b", *values] if bias_first else [*values, "%b"]
        tail = ", %one" if op == "add" else ""
        return f"aten::{'add' if op == 'add' else 'mul'}({', '.join(values)}{tail})"
    return TEMPLATES[op].format(*values)


def build(case: Case) -> torch.Graph:
    """The case's graph before the partition."""
    plain = case.expected.replace("[", "").replace("]", "")
    rows = statements(plain)
    made = {result for result, _, _ in rows}
    inputs = []
    for _, _, operands in rows:
        inputs += [name for name in operands if name not in made and name not in inputs]
    types = ["Char(1, 2, 4, 4)" if n in case.integer_inputs else "Tensor" for n in inputs]
    text = "graph(" + ", ".join(f"%{n} : {t}" for n, t in zip(inputs, types, strict=True)) + "):"
    text += CONSTANTS
    for result, op, operands in rows:
        if op == "return":
            text += f"  return ({', '.join('%' + name for name in operands)})\n"
            continue
        if op == "concatenate":
            names = ", ".join(f"%{name}" for name in operands)
            text += f"  %list_{'_'.join(operands)} : Tensor[] = prim::ListConstruct({names})\n"
        text += f"  %{result} : Tensor = {_call(op, operands, case.name == 'J4')}\n"
    return torch._C.parse_ir(text, True)


def shorten(dump: str, like: str) -> str:
    """A dump in Relay's names in the notation of the file, with the names of `like`."""
    names: dict[str, str] = {}
    results = [result for result, op, _ in statements(like) if op != "return"]
    parts = []

    def operands(text: str) -> list[str]:
        kept = [item.strip("[]() ") for item in text.split(", ")]
        return [names.get(v, v.removeprefix("%")) for v in kept if "meta" not in v and "%" in v]

    for line in dump.splitlines():
        found = re.fullmatch(r"(%\w+) = ([\w.]+)\((.*)\)", line)
        if not found:
            parts.append("return " + ", ".join(operands(line.removeprefix("return "))))
            continue
        value, op, given = found.groups()
        if op == "annotation.cast_hint":
            names[value] = operands(given.split(", dtype")[0])[0]
        elif op == "annotation.stop_fusion":
            names[value] = f"[{operands(given)[0]}]"
        else:
            names[value] = results.pop(0)
            parts.append(f"{names[value]}={op}({', '.join(operands(given))})")
    return "; ".join(parts)
