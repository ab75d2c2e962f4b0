"""States of a model. Oracle: models whose inputs and outputs are known to be signals, caches or states."""

from __future__ import annotations

import onnx
import pytest

from transforms import model_io
from transforms.graph.state_outputs import cache_outputs, found_pairs, state_pairs


def pairs(body: str, given: dict[str, str] | None = None, held: set[str] | None = None) -> dict[str, str]:
    return state_pairs(_graph(body), given, held)


def _graph(body: str):  # type: ignore[no-untyped-def]
    return model_io.load(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> main {body}'))


LSTM = """(float[1,1,4] x, float[1,1,8] {0}, float[1,1,8] {1})
    => (float[1,1,1,8] y, float[1,1,8] {2}, float[1,1,8] {3})
    <float[1,32,4] w = {{{4}}}, float[1,32,8] r = {{{5}}}> {{
    y, hn_, cn_ = LSTM <hidden_size = 8> (x, w, r, , , {0}, {1})
    {2} = Identity (hn_) {3} = Identity (cn_) }}"""


def _lstm(*names: str) -> str:
    return LSTM.format(*names, ", ".join(["0"] * 128), ", ".join(["0"] * 256))


@pytest.mark.parametrize(
    "names", [("h0", "c0", "hN", "cN"), ("a", "b", "p", "q"), ("c", "h", "h_out", "c_out")]
)
def test_states_of_a_recurrent_layer_are_found_whatever_their_names(names: tuple[str, ...]) -> None:
    fed = names[0], names[1]
    assert found_pairs(_graph(_lstm(*names))) == dict(zip(fed, names[2:], strict=True))


def test_states_are_found_through_bodies_and_what_moves_them() -> None:
    text = """(bool c, float[1,2] x, float[2,1] s) => (float[1,2] y, float[2,1] z) {
        z = If (c) <then_branch = t () => (float[2,1] a) { a = Identity (s) },
                    else_branch = e () => (float[2,1] b) { d = Transpose (x) b = Add (d, s) }>
        y = Relu (x) }"""
    assert found_pairs(_graph(text)) == {"s": "z"}


@pytest.mark.parametrize(
    "operator",
    [
        "com.microsoft.CausalConvWithState (x, w, , {0})",
        "CausalConvWithState (x, w, , {0})",
        "LinearAttention <q_num_heads = 2, kv_num_heads = 2> (x, w, x, {0})",
        "com.microsoft.LinearAttention <q_num_heads = 2, kv_num_heads = 2> (x, w, x, {0})",
        "com.microsoft.GatedDeltaNet (x, w, x, , , , {0})",
        "com.microsoft.VarlenCausalConvWithState (x, w, x, , {0})",
        "com.microsoft.PagedAttention <num_heads = 2, kv_num_heads = 2> (x, w, x, {0})",
        "com.microsoft.SparseAttention <num_heads = 2, kv_num_heads = 2> (x, w, x, {0})",
    ],
)
def test_states_that_operators_take_and_return(operator: str) -> None:
    """Two of one shape, whose names tell nothing; by the documentation of the operators."""
    text = f"""(float[1,4,4] x, float[1,4,4] w, float[1,4,4] a, float[1,4,4] b)
        => (float[1,4,4] y, float[1,4,4] p, float[1,4,4] q) {{
        u, p = {operator.format("b")} v, q = {operator.format("a")} y = Add (u, v) }}"""
    head = '<ir_version: 8, opset_import: ["": 27, "com.microsoft": 1]>'
    graph = model_io.load(onnx.parser.parse_model(f"{head} main {text}"))
    assert found_pairs(graph) == {"a": "q", "b": "p"}


CACHES = """(float[1,1,2] x, float[1,P,2] a, float[1,P,2] b) => (float[1,T,2] p, float[1,T,2] q) {
    p = Concat <axis = 1> (b, x) q = Concat <axis = 1> (a, x) }"""


def test_caches_are_found_whatever_their_names() -> None:
    assert found_pairs(_graph(CACHES)) == {"a": "q", "b": "p"}


COUNTERS = """(float[1,4] x, int64{0} lens, float[1,4] cached) =>
    (float[1,4] y, int64{0} new_lens, float[1,4] new_cached) <int64 four = {{4}}> {{
    new_cached = Add (x, cached) y = Relu (new_cached) new_lens = Add (lens, four) }}"""


@pytest.mark.parametrize("shape", ("[1,1]", "[1]", "[N]", ""))
@pytest.mark.parametrize("given", ({}, {"lens": "new_lens"}, {"cached": "new_cached"}))
@pytest.mark.parametrize("held", (None, {"x"}))
def test_states_of_any_rank_are_found_beside_those_that_are_named(
    shape: str, given: dict[str, str], held: set[str] | None
) -> None:
    found = pairs(COUNTERS.format(shape), given, held)
    assert found == {"lens": "new_lens", "cached": "new_cached"}


SIGNAL = """(float[1,4] audio_in, float[1,4] {0}) => (float[1,4] audio_out, float[1,4] {1}) {{
    {1} = Add (audio_in, {0}) audio_out = Relu ({1}) }}"""


def test_what_the_samples_hold_is_no_state_unless_it_is_named() -> None:
    text = SIGNAL.format("h_in", "h_out")
    assert pairs(text, held={"audio_in"}) == {"h_in": "h_out"}
    assert pairs(SIGNAL.format("a", "b"), held={"audio_in"}) == {"a": "b"}
    assert pairs(text, {"h_in": "h_out"}) == {"h_in": "h_out"}
    assert pairs(text, {"audio_in": "audio_out"}, {"audio_in", "h_in"}) == {"audio_in": "audio_out"}
    with pytest.raises(ValueError, match="all inputs would be states: name them, states"):
        pairs(text)
    with pytest.raises(ValueError, match=r"samples hold arrays for all inputs; if '(h|audio)_in' is a state"):
        pairs(text, held={"audio_in", "h_in"})


def test_what_the_samples_do_not_hold_is_a_state_whose_output_is_the_only_one_left() -> None:
    alone = SIGNAL.replace("float[1,4] {", "float[1,3] {").replace("(audio_in, {0})", "({0}, {0})")
    alone = alone.replace("Relu ({1})", "Relu (audio_in)").format("a", "b")
    assert pairs(alone, held={"audio_in"}) == {"a": "b"} and found_pairs(_graph(alone)) == {
        "audio_in": "audio_out"
    }
    unnamed = SIGNAL.format("a", "b").replace("audio_in", "x").replace("audio_out", "y")
    with pytest.raises(
        ValueError, match=r"no array for input 'a', .* \('y', 'b' may be\): states=.'a': 'OUTPUT'."
    ):
        pairs(unnamed, held={"x"})


LOGITS = """(int64[N,S] ids, float[N,P,4] past)
    => (float[N,S,6] logits, float[N,T,4] present, float[N,S,4] hidden)
    <float[6,4] table = {{{0}}}, float[4,6] w = {{{0}}}, int64[1] axis = {{1}}> {{
    e = Gather (table, ids) k = Neg (e) present = Concat <axis = 1> (past, k)
    m = ReduceMean <axes = [1]> ({1}) hidden = Add (e, m) logits = MatMul (hidden, w) }}"""


def test_caches_that_the_logits_are_made_of_are_left_out_and_no_other_output() -> None:
    numbers = ", ".join(map(str, range(24)))
    read, unread = (_graph(LOGITS.format(numbers, source)) for source in ("present", "past"))
    assert cache_outputs(read, {"logits"}) == ["present"] and cache_outputs(read, ()) == []
    assert found_pairs(unread) == {"past": "present"} and cache_outputs(unread, {"logits"}) == []
