"""Oracle: the tensors listed here; float16 and bfloat16 models on rows masked whole."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest

from ops.metrics import sqnr
from tests.helpers import conversion, plans
from transforms import model_io
from transforms.conversion.convert_bf16 import Bf16Options, convert_bf16
from transforms.lift_constants import lift_constants
from transforms.model import graph_proto
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.plan.infinities import meant_infinities
from transforms.saturate import saturate
from transforms.scheme import preset

GUARD = "p = Softmax <axis = -1> (d) n = IsNaN(p) g = Where(n, zero, p) y = MatMul(g, x) }"
BARE = "p = Softmax <axis = -1> (d) y = MatMul(p, x) }"
SCORES = "t = Transpose(x) s = MatMul(x, t) "
MASK = np.where([[0, 0, 1, 1], [1, 1, 1, 1], [0, 1, 0, 1], [0, 0, 0, 0]], -np.inf, 0).astype(np.float32)
CAUSAL = np.where(np.triu(np.ones((4, 4)), 1), -np.inf, 0).astype(np.float32)
HEAD = "(float[4, 8] x) => (float[4, 8] y) <float zero = {0}, float low = {-inf}> { "
CHOSEN = "(float[4, 8] x, bool[4, 4] b) => (float[4, 8] y) <float zero = {0}, float low = {-inf}> { "
GIVEN = "(float[4, 8] x, float[4, 4] m) => (float[4, 8] y) <float zero = {0}, float low = {-inf}> { "
BRANCHES = """d = If (c) <then_branch = then () => (float[4, 4] i) { i = Where(b, low, s) },
    else_branch = else () => (float[4, 4] j) { j = Identity(s) }> """

GUARDED = {
    "an added constant": HEAD + SCORES + "d = Add(s, m) " + GUARD,
    "a Where": CHOSEN + SCORES + "d = Where(b, low, s) " + GUARD,
    "a mask that a Where makes": CHOSEN + SCORES + "w = Where(b, low, zero) d = Add(s, w) " + GUARD,
    "an input": GIVEN + SCORES + "d = Add(s, m) " + GUARD,
    "a guard after the product": GIVEN.replace("y)", "r)")
    + SCORES
    + "d = Add(s, m) p = Softmax <axis = -1> (d) y = MatMul(p, x) n = IsNaN(y) r = Where(n, zero, y) }",
    "a comparison": GIVEN
    + SCORES
    + """d = Add(s, m) n = Equal(d, low) p = Softmax <axis = -1> (d) q = IsNaN(p) f = Or(n, q)
        g = Where(f, zero, p) y = MatMul(g, x) }""",
    "a logarithm": GIVEN + SCORES + "e = Exp(m) l = Log(e) d = Add(s, l) " + GUARD,
    "a branch": CHOSEN.replace("b)", "b, bool c)") + SCORES + BRANCHES + GUARD,
}


def _model(text: str, mask: np.ndarray | None = None) -> onnx.ModelProto:
    needs = "Add(s, m)" in text and "float[4, 4] m" not in text
    return plans.model(text, {"m": MASK if mask is None else mask} if needs else {})


def _graph(text: str, mask: np.ndarray | None = None) -> gs.Graph:
    graph = model_io.load(_model(text, mask))
    lift_constants(graph)
    return graph


def _names(graph: gs.Graph, *, computed: bool = False) -> set[str]:
    return {str(tensor.name) for tensor in meant_infinities(graph, computed=computed).values()}


def _feeds(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    made = {
        "x": np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32),
        "m": MASK,
        "b": np.isinf(MASK),
        "c": np.array(True),
    }
    return {one.name: made[one.name] for one in model.graph.input}


def _signal(model: onnx.ModelProto, graph: gs.Graph) -> float:
    """Return the dB of a converted graph, -inf where it makes NaN."""
    feeds, (name,) = _feeds(model), [one.name for one in model.graph.output]
    found = conversion.run(graph_proto.export_model(graph), feeds)[name]
    return float(sqnr(conversion.run(model, feeds)[name], found)) if np.isfinite(found).all() else -np.inf


@pytest.mark.parametrize("name", GUARDED)
@pytest.mark.parametrize("form", ("with_cast", "customqdq", "simulate_bf16"))
def test_rows_masked_whole_in_bfloat16(name: str, form: str) -> None:
    model = _model(GUARDED[name])
    for clips in (False, True):
        graph = _graph(GUARDED[name])
        convert_bf16(graph, Bf16Options(form, saturate_activations=clips))
        assert _signal(model, graph) >= 30


@pytest.mark.parametrize("name", GUARDED)
@pytest.mark.parametrize(("config", "least"), (("FP16", 45), ("BF16", 30)))
def test_rows_masked_whole_when_quantized(name: str, config: str, least: float) -> None:
    model, graph = _model(GUARDED[name]), _graph(GUARDED[name])
    done = quantize_graph(graph, preset(config))
    assert _signal(model, graph) >= least
    assert any(note.startswith("Kept in float32, where an infinity") for note in done.notes) == (
        config == "FP16"
    )


@pytest.mark.parametrize(
    ("text", "mask", "expected"),
    (
        (HEAD + SCORES + "d = Add(s, m) " + BARE, CAUSAL, set()),
        (HEAD + SCORES + "d = Add(s, m) " + BARE, MASK, {"m", "d"}),
        (HEAD + SCORES + "d = Add(s, m) " + BARE, CAUSAL[:, 3:], {"m", "d"}),
        (HEAD + SCORES + "d = Add(s, m) " + BARE.replace("-1", "0"), CAUSAL, {"m", "d"}),
        (HEAD + SCORES + "d = Add(s, m) " + GUARD, CAUSAL, {"m", "d"}),
        (HEAD + SCORES + "d = Add(s, m) p = Sigmoid(d) y = MatMul(p, x) }", MASK, set()),
        (CHOSEN + SCORES + "d = Where(b, low, s) " + BARE, None, {"low", "d"}),
        (GIVEN + SCORES + "d = Add(s, m) " + GUARD, None, set()),
    ),
)
def test_stored_infinities(text: str, mask: np.ndarray | None, expected: set[str]) -> None:
    assert _names(_graph(text, mask)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    (
        (GIVEN + SCORES + "d = Add(s, m) " + GUARD, {"m", "d"}),
        (GIVEN + SCORES + "d = Add(s, m) " + BARE, set()),
        (GIVEN + SCORES + "d = Add(s, m) n = IsNaN(d) g = Where(n, zero, d) y = MatMul(g, x) }", set()),
        (GIVEN + SCORES + "n = Less(m, low) g = Where(n, zero, s) y = MatMul(g, x) }", {"m", "low"}),
    ),
)
def test_infinities_of_a_run(text: str, expected: set[str]) -> None:
    assert _names(_graph(text), computed=True) == expected


def test_a_loop_hands_infinities_on() -> None:
    """The infinity is chosen in one round, and read by a Softmax in the next."""
    text = """(float[4, 4] x, bool[4, 4] b) => (float[4, 4] y)
        <int64 three = {3}, bool yes = {1}, float low = {-inf}, float zero = {0}> {
        y = Loop (three, yes, x) <body = body (int64 i, bool c, float[4, 4] a) => (bool k, float[4, 4] e) {
            k = Identity(c) p = Softmax <axis = -1> (a) n = IsNaN(p) g = Where(n, zero, p)
            e = Where(b, low, g) }> }"""
    assert {"low", "e", "a"} <= _names(_graph(text))


def _saturated(texts: Sequence[str], mask: np.ndarray) -> list[str]:
    names: list[str] = []
    for text in texts:
        saturate(_graph(text, mask), names=names)
    return names


def test_only_numbers_saturate_beside_infinities_that_mean_something() -> None:
    mask = np.where(np.isinf(MASK), np.float32(-3.4e38), 0).astype(np.float32)
    mask[1] = -np.inf
    graph = _graph(GUARDED["an added constant"], mask)
    assert saturate(graph) == 1
    assert saturate(graph) == 0
    (values,) = [t.values for node in graph.nodes for t in node.inputs if t.name == "m"]
    assert np.isneginf(values[1]).all()
    assert np.isfinite(values[[0, 2, 3]]).all()
    plain = HEAD + SCORES + "d = Add(s, m) " + BARE
    assert _saturated([plain, GUARDED["an added constant"]], CAUSAL) == ["m"]


def test_what_fills_at_run_time_stays_finite_in_bfloat16() -> None:
    """torch.full(shape, finfo.min) rounds to infinity, and a row of it becomes NaN in a Softmax."""
    text = """(float[4, 8] x, int64[2] shape) => (float[4, 8] y) {
        f = ConstantOfShape <value = float[1] {-3.4028235e38}> (shape)
        t = Transpose(x) s = MatMul(x, t) d = Add(s, f) p = Softmax <axis = -1> (d) y = MatMul(p, x) }"""
    built = plans.loose_graph(text)
    model = graph_proto.export_model(plans.loose_graph(text))
    done = convert_bf16(built, Bf16Options())
    assert done.saturated == ["f"]
    feeds = {**_feeds(plans.model(HEAD + "y = Neg(x) }")), "shape": np.array([4, 4])}
    expected = conversion.run(model, feeds)["y"]
    assert sqnr(expected, conversion.run(graph_proto.export_model(built), feeds)["y"]) >= 30


def test_constants_that_saturate_in_float16_are_named() -> None:
    graph = _graph(HEAD + SCORES + "d = Add(s, m) " + BARE, CAUSAL)
    assert "Saturated at +-65504: 'm'" in quantize_graph(graph, preset("FP16")).notes
