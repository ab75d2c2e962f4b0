"""Words on runs that fail. Oracle: which of the models runs on which sample, by construction."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.helpers import corpus
from transforms import model_io
from transforms.calibrate.calibrate import calibrate
from transforms.graph.typed import Graph
from transforms.run.failing_samples import failing
from transforms.run.run_model import open_model
from transforms.run.workers import Workers
from transforms.runtime.session import RunOptions

TEXT = "(int64[N] i) => (float[N] y) <float[2] t = {1, 2}> { g = Gather(t, i) y = Neg(g) }"
NEAR, FAR = {"i": np.array([1])}, {"i": np.array([7])}
BOUNDS = r"Gather 'pick': indices element out of data bounds, idx=\d must be within the inclusive range \S+"


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    model = corpus.parse(TEXT)
    model.graph.node[0].name = "pick"
    onnx.save(model, tmp_path / "float.onnx")
    return model_io.load(tmp_path / "float.onnx")


def _shorten(graph: Graph) -> None:
    """Make a model of it that fails where the float model runs."""
    graph.tensors()["t"].values = np.zeros(1, np.float32)


def test_a_sample_that_the_float_model_fails_on_is_named(graph: Graph) -> None:
    samples = {"near": NEAR, "far": FAR}
    with (
        pytest.raises(ValueError, match=f"^sample 'far': the model fails: {BOUNDS}$"),
        failing(samples, graph, None, "the quantized model"),
    ):
        open_model(graph).run(FAR)


def test_samples_that_the_float_model_runs_on_are_not_blamed(graph: Graph, tmp_path: Path) -> None:
    file = tmp_path / "float.onnx"
    _shorten(graph)
    with (
        pytest.raises(
            ValueError, match=f"^the quantized model fails: {BOUNDS}; '{file}' runs on the same samples$"
        ),
        failing({"near": NEAR}, graph, None, "the quantized model"),
    ):
        open_model(graph).run(NEAR)


def test_a_graph_without_a_file_is_its_own_float_model() -> None:
    graph = model_io.load(corpus.parse(TEXT))
    with (
        pytest.raises(ValueError, match=r"^the quantized model fails: Odd; the float model runs on the same"),
        failing({"near": NEAR}, graph, None, "the quantized model"),
    ):
        raise RuntimeError("Odd.")


def test_errors_in_own_words_pass(graph: Graph) -> None:
    with pytest.raises(ValueError, match=r"^in own words$"), failing({"far": FAR}, graph, None, "the model"):
        raise ValueError("in own words")


@pytest.mark.parametrize("shared", [False, True])
def test_ranges_of_a_prepared_model_that_fails(graph: Graph, shared: bool) -> None:
    _shorten(graph)
    workers = Workers() if shared else None
    with pytest.raises(
        ValueError, match=f"the prepared model fails: {BOUNDS}; '.*float.onnx' runs on the same"
    ):
        calibrate(graph, ["g"], [("near", NEAR)], run=RunOptions(), workers=workers)
