"""Oracle: the bits 0x7F7F0000, the largest finite bfloat16."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest

from tests.helpers import build, corpus
from transforms import model_io
from transforms.graph import walk
from transforms.graph.dtypes import BFLOAT16_MAX
from transforms.graph.selection import select
from transforms.model import detached_weights
from transforms.saturate import saturate, tensors_with_nan

LIMIT = np.uint32(0x7F7F0000).view(np.float32)
ABOVE = np.nextafter(LIMIT, np.float32(np.inf))
CASES = {
    "infinities": ([np.inf, -np.inf, 1], [LIMIT, -LIMIT, 1]),
    "finite beyond the range": ([ABOVE, -ABOVE, np.finfo(np.float32).max], [LIMIT, -LIMIT, LIMIT]),
    "NaN beside infinity": ([np.nan, np.inf, -2], [np.nan, LIMIT, -2]),
}
KEPT = {
    "the limit itself": [LIMIT, -LIMIT, 0],
    "NaN alone": [np.nan, 1, 2],
    "negative zero and subnormals": [-0.0, 1e-45, -1e-45],
}


def adding(weight: np.ndarray) -> gs.Graph:
    shape = list(weight.shape)
    nodes = [onnx.helper.make_node("Add", ["x", "w"], ["y"], "add")]
    ends = [build.value(name, shape, weight.dtype) for name in "xy"]
    return model_io.load(build.model(nodes, ends[:1], ends[1:], {"w": weight}))


def weight(graph: gs.Graph) -> np.ndarray:
    (constant,) = walk.constants(graph)
    return constant.values


def test_the_limit() -> None:
    assert BFLOAT16_MAX == LIMIT
    assert BFLOAT16_MAX.dtype == np.float32


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("repeat", (1, detached_weights.LARGE))
def test_values_beyond_the_range(name: str, repeat: int) -> None:
    before, after = (np.tile(np.array(values, np.float32), repeat) for values in CASES[name])
    graph = adding(before)
    assert saturate(graph) == 1
    assert weight(graph).tobytes() == after.tobytes()
    assert saturate(graph) == 0


@pytest.mark.parametrize("name", KEPT)
def test_values_within_the_range(name: str) -> None:
    graph = adding(np.array(KEPT[name], np.float32))
    before = weight(graph).tobytes()
    assert saturate(graph) == 0
    assert weight(graph).tobytes() == before


@pytest.mark.parametrize(
    "array", (np.zeros((0, 3), np.float32), np.array([np.inf]), np.array([np.inf], np.float16), np.array([1]))
)
def test_empty_tensors_and_other_types(array: np.ndarray) -> None:
    graph = adding(array)
    assert saturate(graph) == 0
    assert tensors_with_nan(graph) == []
    assert np.array_equal(weight(graph), array)


def test_the_source_is_not_changed() -> None:
    array = np.full(detached_weights.LARGE, np.inf, np.float32)
    graph = adding(array)
    saturate(graph)
    assert np.isinf(array).all()


def test_tensors_that_only_excluded_nodes_use() -> None:
    text = """(float[2] x) => (float[2] y, float[2] z) <float[2] only = {1, 2}, float[2] both = {1, 2}> {
        [kept] a = Add(x, only) y = Mul(a, both) [other] z = Mul(x, both) }"""
    for excluded, expected in ((["kept"], ["both"]), (["kept", "other"], ["both"]), ([], ["only", "both"])):
        graph = model_io.load(corpus.parse(text))
        for tensor in walk.constants(graph):
            tensor.values = np.array([np.inf, 1], np.float32)
        assert saturate(graph, exclude=select(graph, names=excluded)) == len(expected)
        changed = [tensor.name for tensor in walk.constants(graph) if np.isfinite(tensor.values).all()]
        assert changed == expected


def test_bodies_and_nan_by_name() -> None:
    graph = model_io.load(corpus.build("if"))
    for tensor in walk.constants(graph):
        tensor.values = np.array([-np.inf if tensor.name == "v" else np.nan], np.float32)
    assert tensors_with_nan(graph) == ["w"]
    assert saturate(graph) == 1
    assert {t.name: float(t.values[0]) for t in walk.constants(graph)}["v"] == -LIMIT
