"""The float model in the form that was quantized. Oracle: ONNX Runtime on the float model's file."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs
import pytest

from tests.examples.write_samples import IMAGES
from tools import quantize
from transforms import model_io
from transforms.compare.as_quantized import as_quantized
from transforms.run.run_model import open_model

MODEL = IMAGES.with_name("digits.onnx")


def load() -> gs.Graph:
    return model_io.load(MODEL)


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> gs.Graph:
    path = tmp_path_factory.mktemp("made") / "q.onnx"
    assert quantize.main(["--input", str(MODEL), "--output", str(path), "--config", "MX6", "--no-time"]) == 0
    return model_io.load(path)


def operators(graph: gs.Graph) -> set[str]:
    return {node.op for node in graph.nodes}


def test_what_was_folded_is_folded_and_the_outputs_are_the_same(quantized: gs.Graph) -> None:
    found = as_quantized(load(), quantized, load)
    folded = {"BatchNormalization"}
    assert all(operators(load()) - operators(graph) == folded for graph in (quantized, found))
    feed = {"images": np.load(IMAGES)[:4]}
    made, expected = (open_model(source).run(feed)["logits"] for source in (found, MODEL))
    np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-4)


def test_a_form_with_other_ends_is_not_taken(quantized: gs.Graph) -> None:
    def other() -> gs.Graph:
        graph = load()
        graph.outputs[0].name = "renamed"
        return graph

    first = load()
    assert as_quantized(first, quantized, other) is first and "BatchNormalization" in operators(first)
