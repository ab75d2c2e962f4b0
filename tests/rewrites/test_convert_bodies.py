"""Oracle: the model with its pairs of Casts, in ONNX Runtime, bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser

from tests.helpers import conversion
from transforms import model_io
from transforms.convert_bodies import convert_bodies
from transforms.insert_cast import insert_cast

BRANCHES = """<ir_version: 8, opset_import: ["": 17]> main (float[3] x, bool c) => (float[3] y) {
    a = Neg(x)
    r = If (c) <then_branch = yes () => (float[3] p) { p = Abs(a) },
                else_branch = no () => (float[3] s) { s = Neg(a) }>
    y = Tanh(r) }"""


def test_alone_it_leaves_a_model_that_is_saved_and_computes_the_same(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(BRANCHES)
    graph = model_io.load(model)
    insert_cast(graph, "bfloat16", round_before_relu=True)
    model_io.save(graph, tmp_path / "casts.onnx")
    assert convert_bodies(graph, "bfloat16") == 1
    assert all(node.outputs for node in graph.nodes), "no Cast without ends is left"
    model_io.save(graph, tmp_path / "bodies.onnx")
    before, after = (onnx.load(tmp_path / name) for name in ("casts.onnx", "bodies.onnx"))
    for chosen in (True, False):
        feeds = {"x": np.array([0.3, -1.7, 2.9], np.float32), "c": np.array(chosen)}
        assert conversion.same(conversion.run(before, feeds), conversion.run(after, feeds))
