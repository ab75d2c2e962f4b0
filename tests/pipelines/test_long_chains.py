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
from tools import auto_mixed_precision, convert_fp32_to_bf16, quantize

LENGTH, ROOM = 240, 160
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
TOOLS = {
    "A8W8": (quantize, "--config", "A8W8", "--no-optimize"),
    "optimized A8W8": (quantize, "--config", "A8W8", "--fast"),
    "all codes": (quantize, "--config", "A8W8", "--no-optimize", "--all-codes", "padded"),
    "W4A8": (quantize, "--config", "W4A8", "--no-optimize"),
    "bf16": (convert_fp32_to_bf16,),
    "bf16 as it is": (convert_fp32_to_bf16, "--no-optimize"),
    "mixed": (auto_mixed_precision, "--config", "A16W8", "--target", "A8W8", "--l2-target", "0.1"),
}


def model(step: str) -> onnx.ModelProto:
    """Return two products with a chain in between, of numbers [16, 16]."""
    nodes = "".join(STEPS[step].format(f"a{i + 1}", f"a{i}", i) + "\n" for i in range(LENGTH))
    found = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> main (float[16, 16] x) => (float[16, 8] y) <int64[1] zero = {0},'
        " int64[1] one = {1}, int64[1] eight = {8}, int64[1] most = {16}, float c = {0}> "
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
    sys.setrecursionlimit(len(inspect.stack()) + ROOM)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


@pytest.fixture(params=STEPS)
def files(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path]:
    path, data = build.save(model(request.param), tmp_path / "m.onnx"), tmp_path / "data"
    data.mkdir()
    for i in range(2):
        np.save(data / f"{i}.npy", np.random.default_rng(i).standard_normal((16, 16), np.float32))
    return path, data


@pytest.mark.parametrize("name", TOOLS)
def test_no_tool_recurs_along_a_chain(files: tuple[Path, Path], name: str, shallow: None) -> None:
    tool, *options = TOOLS[name]
    path, data = files
    samples = () if tool is convert_fp32_to_bf16 else ("--data", data)
    assert _run(tool, "--input", path, "--output", path.with_name("q.onnx"), *samples, *options) == 0


def _run(tool: ModuleType, *options: object) -> int:
    return int(tool.main(list(map(str, options))))
