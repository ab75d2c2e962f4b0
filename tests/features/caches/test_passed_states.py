"""Keys of an encoder in int8. Oracle: NumPy on the rounded keys, and what each model says by hand."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

from transforms import model_io
from transforms.features.caches.coded_caches import coded_caches
from transforms.features.caches.passed_states import find_passed
from transforms.model.graph_proto import export_model
from transforms.quantize_caches import quantize_caches

RANDOM = np.random.default_rng(7)
SCALE = RANDOM.uniform(0.01, 0.03, (2, 1)).astype("f") * np.ones((2, 4), "f")  # one scale for each head
MERGED = """<ir_version: 8, opset_import: ["": 17]>
main (float[1,2,S,4] q, float[1,2,F,4] states, float[1,2,P,4] past_key, bool is_first)
=> (float[1,2,S,K] y, float[1,2,T,4] present_key) {
    y, present_key = If (is_first) <
        then_branch = first () => (float y1, float present1) {
            present1 = Neg (states)
            turned1 = Transpose <perm = [0, 1, 3, 2]> (present1)
            y1 = MatMul (q, turned1)
        },
        else_branch = later () => (float y2, float present2) {
            turned2 = Transpose <perm = [0, 1, 3, 2]> (past_key)
            y2 = MatMul (q, turned2)
            NOTHING
        }>
}"""
HANDED = {
    "nothing": "present2 = Constant <value = float[0,2,1,4] {}> ()",
    "itself": "present2 = Identity (past_key)",
}
READ = """<ir_version: 8, opset_import: ["": 17]>
main (float[1,2,S,4] q, float[1,2,P,4] past_key) => (float[1,2,S,P] y, float[1,2,P,4] present_key) {
    present_key = Identity (past_key)  half = Constant <value_float = 0.5> ()
    turned = Transpose <perm = [0, 1, 3, 2]> (past_key)  scaled = Mul (turned, half)  y = MatMul (q, scaled)
}"""


@pytest.mark.parametrize("later", HANDED)
def test_a_branch_makes_codes_and_the_other_reads_them(later: str) -> None:
    """A whole decoder in an If, as two models that are merged; the second hands out nothing, or its state."""
    graph = model_io.load(onnx.parser.parse_model(MERGED.replace("NOTHING", HANDED[later])))
    (state,) = find_passed(graph)
    assert (state.past.name, state.name, state.channels) == ("past_key", "present_key", (1, 3))
    assert quantize_caches(graph, {"present_key": SCALE}) == 1
    assert not find_passed(graph) and quantize_caches(graph, {"present_key": SCALE}) == 0
    assert [(one.past, one.present, one.tokens) for one in coded_caches(graph)] == [
        ("past_key", "present_key", None)
    ]
    made = export_model(graph)
    onnx.checker.check_model(made, full_check=True)
    model = onnxruntime.InferenceSession(made.SerializeToString())
    q, states = (RANDOM.standard_normal((1, 2, n, 4)).astype("f") for n in (3, 5))
    empty = np.zeros((1, 2, 0, 4), np.int8)
    feed = {"q": q, "states": states, "past_key": empty, "is_first": np.array(True)}
    _, codes = model.run(None, feed)
    steps = SCALE[None, :, None]
    assert np.array_equal(codes, np.clip(np.rint(-states / steps), -128, 127).astype(np.int8))
    y, after = model.run(
        None, {**feed, "states": states[:, :, :0], "past_key": codes, "is_first": np.array(False)}
    )
    assert np.allclose(y, q @ (codes * steps).swapaxes(2, 3), rtol=1e-5, atol=1e-6)
    assert after.dtype == np.int8 and np.array_equal(after, codes if later == "itself" else after[:0])


def test_a_scaled_key_is_read_and_what_is_no_key_is_not() -> None:
    assert [one.name for one in find_passed(model_io.load(onnx.parser.parse_model(READ)))] == ["present_key"]
    for text in (
        READ.replace("y = MatMul (q, scaled)", "n = Neg (q)  y = MatMul (turned, n)"),  # a query
        READ.replace("MatMul (q, scaled)", "Add (q, turned)"),
        READ.replace("present_key = Identity (past_key)", "present_key = Neg (past_key)"),
        READ.replace("float[1,2,P,4] past_key", "int32[1,2,P,4] past_key").replace(
            "float[1,2,P,4] pr", "int32[1,2,P,4] pr"
        ),
    ):
        assert not find_passed(model_io.load(onnx.parser.parse_model(text)))


def test_an_input_that_two_outputs_hand_out_is_refused() -> None:
    text = READ.replace("=> (", "=> (float[1,2,P,4] other_key, ").replace(
        "half =", "other_key = Identity (past_key) half ="
    )
    text = text.replace("present_key", "kept_key")
    with pytest.raises(
        ValueError, match="input 'past_key' is handed out, but no output is known to be its own"
    ):
        find_passed(model_io.load(onnx.parser.parse_model(text)))
