"""A feature is one file: an operator that nothing else knows, with a row, a move and a line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnx_narrow
from tests.helpers import plans
from transforms import features
from transforms.conversion.rewriting import Rewritten
from transforms.conversion.rows import Row
from transforms.features.hooks import Feature
from transforms.graph import walk
from transforms.moves.improve import Best

FOO = "Shrink"  # ONNX Runtime computes it, and nothing in transforms names it
SAMPLES = [np.random.default_rng(i).normal(size=(4, 8)).astype(np.float32) for i in range(8)]


def lower_bias(work: Rewritten) -> int:
    """Set the bias of each to 0.49."""
    nodes = [node for node in walk.nodes(work.graph) if node.op == FOO]
    for node in nodes:
        node.attrs["bias"] = 0.49
    return len(nodes)


def try_tensors(best: Best) -> None:
    """Try one scale for a weight."""
    best.try_schemes("foo", [("per tensor", best.scheme.with_(per_channel=False))])


@pytest.fixture
def foo() -> Iterator[None]:
    """Register the feature."""
    feature = Feature("a foo", rows={"finish": [Row(lower_bias, line="foos lowered")]}, moves=[try_tensors])
    features.register(feature, [FOO])
    yield
    features.remove(feature)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A layer with a foo after it."""
    weight = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)
    body = f"{{ h = MatMul (x, w) y = {FOO} <bias = 0.5, lambd = 0.5> (h) }}"
    text = f"(float[4, 8] x) => (float[4, 8] y) {body}"
    onnx.save(plans.model(text, {"w": weight}), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_its_row_move_and_line_occur_with_its_operator(foo: None, model: Path) -> None:
    result = onnx_narrow.quantize(model, config="A8W8", data=SAMPLES)
    (node,) = [node for node in result.model.graph.node if node.op_type == FOO]
    assert [round(a.f, 3) for a in node.attribute if a.name == "bias"] == [0.49]
    assert "lower_bias" in [name for name, _ in result.steps]
    assert "foo" in {tried.move for tried in result.decided}
    assert "1 foos lowered" in " ".join(map(str, result.notes))


def test_it_is_closed_without_it(model: Path) -> None:
    result = onnx_narrow.quantize(model, config="A8W8", data=SAMPLES)
    assert "lower_bias" not in [name for name, _ in result.steps]
    assert "foo" not in {tried.move for tried in result.decided}


def test_an_option_opens_its_interface(model: Path) -> None:
    """An option that any job has stands for one of the feature."""
    feature = Feature("a bar", rows={"interface": [Row(lower_bias)], "finish": [Row(try_tensors)]})
    features.register(feature, ["random_data"])
    try:
        steps = [
            [name for name, _ in onnx_narrow.quantize(model, config="A8W8", **keywords).steps]
            for keywords in ({"random_data": 2}, {"data": SAMPLES})
        ]
    finally:
        features.remove(feature)
    assert [names.count("lower_bias") for names in steps] == [1, 0] and "try_tensors" not in steps[0]


def test_an_operator_belongs_to_one_feature(foo: None) -> None:
    with pytest.raises(ValueError, match="operator Shrink belongs to a foo already"):
        features.register(Feature("another"), [FOO])
    with pytest.raises(ValueError, match="operator LSTM belongs to a recurrent layer already"):
        features.register(Feature("another"), ["LSTM"])
