"""States that grow. Oracle: what each model says, written by hand."""

from __future__ import annotations

import onnx
import pytest

from tests.helpers.cached_decoder import cached_decoder
from transforms import model_io
from transforms.features.caches.grown_states import grown_by

MODEL = """<ir_version: 8, opset_import: ["": 17]>
main (float[1,P,4] past, float[1,S,4] x, float[1,Q,4] kept, float[1,6,4] old)
=> (float[1,T,4] joined, float[1,U,4] passed, float[1,V,4] computed, float[1,6,4] fixed,
    float[1,W,4] masked) {
    together = Concat <axis = 1> (past, x)
    joined = Identity (together)
    turned = Transpose <perm = [0, 2, 1]> (kept)
    passed = Transpose <perm = [0, 2, 1]> (turned)
    computed = Relu (x)
    fixed = Neg (old)
    masked = Neg (past)
}"""


@pytest.mark.parametrize(("state", "op"), [(0, "Concat"), (1, None), (2, None), (3, None), (4, "Neg")])
def test_a_state_grows_by_a_node_that_reads_a_state(state: int, op: str | None) -> None:
    graph = model_io.load(onnx.parser.parse_model(MODEL))
    fed = [one for one in graph.inputs if one.name != "x"]
    found = grown_by(graph.outputs[state], fed)
    assert (found.op if found else None) == op


@pytest.mark.parametrize("cross", ("passed", "If"))
def test_what_comes_from_an_encoder_does_not_grow(cross: str) -> None:
    graph = model_io.load(cached_decoder(cross=cross))
    fed = [one for one in graph.inputs if one.name.startswith("past")]
    assert [one.name for one in graph.outputs if grown_by(one, fed)] == [
        "logits",
        "present.0.key",
        "present.0.value",
    ]
