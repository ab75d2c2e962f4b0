"""Chains of small nodes that are longer than Python's stack is allowed to be deep.

Oracle: a tool ends well with a limit of recursion below the number of nodes.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import onnx.parser
import pytest

from tests.helpers import build
from tests.helpers.spread import spread
from tools import auto_mixed_precision, convert_fp32_to_bf16, quantize

LENGTH, FRAMES = 180, 160
"""Nodes of a chain, and frames that tools and libraries need, whatever the graph is."""

STEPS = {
    "add": "{0} = Add ({1}, c{2})",
    "add to": "t{2} = Tanh ({1}) {0} = Add ({1}, t{2})",
    "identity": "{0} = Identity ({1})",
    "relu": "{0} = Relu ({1})",
    "transpose": "{0} = Transpose <perm = [1, 0]> ({1})",
    "reshape": "s{2} = Shape ({1}) {0} = Reshape ({1}, s{2})",
    "halves": "g{2} = Slice ({1}, zero, eight, one) h{2} = Slice ({1}, eight, most, one)"
    " {0} = Concat <axis = 1> (h{2}, g{2})",
}
SIZES = {"zero": 0, "one": 1, "eight": 8, "most": 16}
AS_IT_IS = (quantize, "--config", "A8W8", "--no-optimize", "--fast")
MIXED = (auto_mixed_precision, "--config", "A16W8", "--target", "int8", "--l2-target", "0.1")
RUNS = {
    **{f"{step}, as it is": (step, *AS_IT_IS) for step in STEPS},
    "reshape, A8W8": ("reshape", quantize, "--config", "A8W8"),
    "identity, A8W8": ("identity", quantize, "--config", "A8W8", "--no-optimize"),
    "identity, W4A8": ("identity", quantize, "--config", "W4A8", "--no-optimize"),
    "add, BF16": ("add", convert_fp32_to_bf16),
    "halves, BF16": ("halves", convert_fp32_to_bf16, "--no-optimize"),
    "relu, mixed": ("relu", *MIXED),
}


def model(step: str) -> onnx.ModelProto:
    """Return two products with a chain in between, of numbers [16, 16]."""
    nodes = "".join(STEPS[step].format(f"a{i + 1}", f"a{i}", i) + "\n" for i in range(LENGTH))
    sizes = ", ".join(f"int64[1] {name} = {{{size}}}" for name, size in SIZES.items())
    found = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> '
        f"main (float[N, 16] x) => (float[N, 8] y) <{sizes}> "
        f"{{ a0 = MatMul (x, w) {nodes} y = MatMul (a{LENGTH}, v) }}"
    )
    random = np.random.default_rng(0)
    weights = {"w": random.standard_normal((16, 16)), "v": random.standard_normal((16, 8))}
    if step == "add":
        weights |= {f"c{i}": random.standard_normal(16) / 1000 for i in range(LENGTH)}
    tensors = [onnx.numpy_helper.from_array(v.astype(np.float32) / 4, k) for k, v in weights.items()]
    found.graph.initializer.extend(tensors)
    return found


@pytest.fixture
def shallow() -> Iterator[None]:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack()) + FRAMES)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


@pytest.mark.parametrize("name", spread(RUNS, of=3))
def test_no_tool_recurs_along_a_chain(name: str, tmp_path: Path, shallow: None) -> None:
    step, tool, *options = RUNS[name]
    path, data = build.save(model(str(step)), tmp_path / "m.onnx"), tmp_path / "data"
    data.mkdir()
    for i in range(2):
        np.save(data / f"{i}.npy", np.random.default_rng(i).standard_normal((16, 16), np.float32))
    samples = () if tool is convert_fp32_to_bf16 else ("--data", data)
    files = ("--input", path, "--output", tmp_path / "q.onnx", *samples)
    assert isinstance(tool, ModuleType) and tool.main(list(map(str, (*files, *options)))) == 0
