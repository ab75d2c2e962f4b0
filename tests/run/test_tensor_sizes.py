"""Oracle: sizes by hand, from the shapes of the tensors."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx
import pytest

from ops.array_types import Feed
from transforms.model import graph_proto
from transforms.run import tensor_sizes
from transforms.run.tensor_sizes import SizesOfRun, TensorSizes

CHAIN = """
    <ir_version: 8, opset_import: ["": 17]> chain (float[{rows}, 3] x) => (float[{rows}, 2] y)
    <float[3, 4] w = {{1,1,1,1,1,1,1,1,1,1,1,1}}, float[4, 2] v = {{1,1,1,1,1,1,1,1}}> {{
        a = MatMul (x, w)
        b = Relu (a)
        c = Add (a, b)
        y = MatMul (c, v)
    }}"""
BY_HAND = SizesOfRun(total=(3 + 4 + 2) * 4 * 5, at_once=(3 + 3 * 4) * 4 * 5)
"""Of 5 rows: x, b and y are asked for; x, a, b and c are there when c is made."""

FOUND = """
    <ir_version: 8, opset_import: ["": 17]> found (float[n] x) => (float[m] y) {
        i = NonZero (x)
        t = Transpose (i)
        g = GatherND (x, t)
        y = Tanh (g)
    }"""


def never(names: Collection[str], feed: Feed) -> dict[str, int]:
    raise AssertionError(f"{names} need no run")


@pytest.mark.parametrize("rows", ["5", "rows"])
def test_sizes_that_follow_from_shapes(rows: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No run is needed, and nothing is inferred for the second sample of a shape."""
    graph = graph_proto.import_model(onnx.parser.parse_model(CHAIN.format(rows=rows)))
    sizes = TensorSizes(graph, ["x", "b", "y"], never)
    feed = {"x": np.zeros((5, 3), np.float32)}
    assert sizes.of(feed) == BY_HAND
    monkeypatch.delattr(tensor_sizes, "inferred_shapes")
    assert sizes.of({"x": np.ones((5, 3), np.float32)}) == BY_HAND


def test_sizes_of_samples_of_other_shapes_are_others() -> None:
    graph = graph_proto.import_model(onnx.parser.parse_model(CHAIN.format(rows="rows")))
    sizes = TensorSizes(graph, ["x", "b", "y"], never)
    for times in (1, 3, 1):
        found = sizes.of({"x": np.zeros((5 * times, 3), np.float32)})
        assert found == SizesOfRun(times * BY_HAND.total, times * BY_HAND.at_once)


def test_sizes_that_follow_from_numbers() -> None:
    """Another for the same shape; indices, which are no floats, are not counted."""
    graph = graph_proto.import_model(onnx.parser.parse_model(FOUND))
    count = 0
    sizes = TensorSizes(graph, ["g", "y"], lambda names, feed: dict.fromkeys(names, 4 * count))
    for count in (7, 2, 0):
        x = np.float32(np.arange(9) < count)
        assert sizes.of({"x": x}) == SizesOfRun(2 * 4 * count, 4 * (9 + 2 * count))


def test_the_graph_is_not_changed() -> None:
    graph = graph_proto.import_model(onnx.parser.parse_model(CHAIN.format(rows="rows")))
    before = graph_proto.export_model(graph).SerializeToString()
    TensorSizes(graph, ["y"], never).of({"x": np.zeros((5, 3), np.float32)})
    assert graph_proto.export_model(graph).SerializeToString() == before
