"""Oracle: the arithmetic of the tensors that ONNX Runtime gives for the models."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.helpers import build
from transforms.finetune import output_error
from transforms.finetune.output_error import OutputError
from transforms.judge import errors
from transforms.model import graph_proto

FEEDS = [{"x": np.full((1, 4), i, np.float32) * np.arange(4, dtype=np.float32)} for i in range(1, 6)]


def net(scale: float, *, behind: str | None = "Softmax", copied: bool = False) -> onnx.ModelProto:
    """Return x [n, 4] times a number to y, behind a Softmax or not, and to z."""
    nodes = [
        helper.make_node("Mul", ["x", "scale"], ["m"], "mul"),
        helper.make_node("Identity", ["m"], ["z"], "copy"),
        helper.make_node(behind or "Identity", ["m"], ["p" if copied else "y"], "last"),
    ]
    if copied:
        nodes.append(helper.make_node("Identity", ["p"], ["y"], "passed"))
    ends = [build.value(name, ["n", 4]) for name in ("x", "y", "z")]
    return build.model(nodes, ends[:1], ends[1:], {"scale": np.array([scale], np.float32)})


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("behind", ["Softmax", "LogSoftmax", None])
def test_outputs_behind_a_softmax_are_measured_in_front_of_it(behind: str | None, copied: bool) -> None:
    """Scores that are 1.5 times too large: the error is a quarter of their power, that of z as well."""
    graphs = [graph_proto.import_model(net(scale, behind=behind, copied=copied)) for scale in (1.0, 1.5)]
    found = OutputError(graphs[0], FEEDS).each(graphs[1])
    power = np.array([[float((feed["x"].astype(np.float64) ** 2).sum())] * 2 for feed in FEEDS])
    assert np.array_equal(found.powers, power) and np.array_equal(found.errors, power / 4)
    assert found.relative == 0.25


@pytest.mark.parametrize("behind", ["Softmax", None])
def test_outputs_are_measured_as_they_are_made_too(behind: str | None) -> None:
    graphs = [graph_proto.import_model(net(scale, behind=behind)) for scale in (1.0, 1.5)]
    found = OutputError(graphs[0], FEEDS).each(graphs[1])
    if behind is None:
        assert found.made is None and found.as_made is found
        return
    made = [np.stack([scale * feed["x"][0].astype(np.float64) for feed in FEEDS]) for scale in (1.0, 1.5)]
    p, q = (np.exp(one) / np.exp(one).sum(1, keepdims=True) for one in made)
    assert np.allclose(found.as_made.errors[:, 0], ((p - q) ** 2).sum(1), rtol=1e-4)  # float32
    assert np.array_equal(found.as_made.errors[:, 1], found.errors[:, 1])


def softmax_in_parts(scale: float) -> onnx.ModelProto:
    """Return the softmax of x times a number, as Exp divided by its sum."""
    nodes = [
        helper.make_node("Mul", ["x", "scale"], ["m"], "mul"),
        helper.make_node("ReduceMax", ["m"], ["largest"], "largest", axes=[1]),
        helper.make_node("Sub", ["m", "largest"], ["shifted"], "sub"),
        helper.make_node("Exp", ["shifted"], ["e"], "exp"),
        helper.make_node("ReduceSum", ["e", "axes"], ["sum"], "sum"),
        helper.make_node("Expand", ["sum", "shape"], ["wide"], "expand"),
        helper.make_node("Div", ["e", "wide"], ["y"], "div"),
    ]
    ends = [build.value(name, ["n", 4]) for name in ("x", "y")]
    constants = {"scale": np.array([scale], np.float32), "axes": np.array([1]), "shape": np.array([1, 4])}
    return build.model(nodes, ends[:1], ends[1:], constants)


def test_a_softmax_in_parts_is_one() -> None:
    """Scores, less the largest, that are 1.5 times too large."""
    graphs = [graph_proto.import_model(softmax_in_parts(scale)) for scale in (1.0, 1.5)]
    found = OutputError(graphs[0], FEEDS).each(graphs[1])
    scores = np.array([feed["x"][0].astype(np.float64) - feed["x"].max() for feed in FEEDS])
    power = (scores**2).sum(1, keepdims=True)
    assert np.array_equal(found.powers, power) and np.array_equal(found.errors, power / 4)


def test_outputs_are_compared_where_one_model_alone_has_a_softmax() -> None:
    graphs = [graph_proto.import_model(net(1.0, behind=behind)) for behind in ("Softmax", None)]
    for first, second in (graphs, graphs[::-1]):
        y = np.stack([feed["x"][0].astype(np.float64) for feed in FEEDS])
        p = np.exp(y) / np.exp(y).sum(1, keepdims=True)
        found = OutputError(first, FEEDS, 0).each(second)
        assert np.allclose(found.errors[:, 0], ((y - p) ** 2).sum(1), rtol=1e-5)  # float32


def test_one_output_by_its_index() -> None:
    graphs = [graph_proto.import_model(net(scale)) for scale in (1.0, 1.5)]
    assert OutputError(graphs[0], FEEDS, 1).each(graphs[1]).errors.shape == (5, 1)
    with pytest.raises(ValueError, match="output 2 is not there, the model has 2"):
        OutputError(graphs[0], FEEDS, 2)


def test_some_of_the_samples() -> None:
    graphs = [graph_proto.import_model(net(scale)) for scale in (1.0, 1.5)]
    whole = OutputError(graphs[0], FEEDS).each(graphs[1])
    part = whole.of(np.array([True, False, False, True, False]))
    assert np.array_equal(part.errors, whole.errors[[0, 3]])
    assert np.array_equal(part.powers, whole.powers[[0, 3]])


@pytest.mark.parametrize("compare", [output_error.compare, errors._energy])
def test_large_outputs_are_compared_without_copies(compare: Callable[..., object]) -> None:
    """Oracle: what Python has allocated meanwhile; copies in float64 took up to 6 times the arrays."""
    wanted, found = np.ones(1 << 21, np.float32), np.full(1 << 21, 1.5, np.float32)
    tracemalloc.start()
    result = compare(wanted, found)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < wanted.nbytes // 8
    assert result in ((1 << 19, 1 << 21), 1 << 19)
