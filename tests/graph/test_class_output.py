"""Classifiers are told by the end of their graph. Oracle: models by hand."""

from __future__ import annotations

import pytest

from tests.helpers import plans
from tests.helpers.cached_decoder import cached_decoder
from transforms import model_io
from transforms.graph.class_output import class_output

HEAD = "(float[N, 8] x) => (float[N, {0}] y) {{ {1} }}"
WEIGHTS = {"w": (8, 8), "v": (8, 1), "b": (8,)}


@pytest.mark.parametrize(
    ("width", "body", "is_one"),
    [
        (8, "y = MatMul (x, w)", True),
        (8, "m = MatMul (x, w) y = Add (m, b)", True),
        (8, "m = MatMul (x, w) y = Softmax (m)", True),
        (8, "m = MatMul (x, w) s = Sigmoid (m) y = Identity (s)", True),
        (1, "y = MatMul (x, v)", False),
        (8, "m = MatMul (x, w) n = ReduceL2 <axes = [1]> (m) y = Div (m, n)", False),
        (8, "m = MatMul (x, w) y = Mul (m, x)", False),
    ],
)
def test_a_layer_or_a_softmax_ends_a_classifier(width: int, body: str, is_one: bool) -> None:
    used = {name: shape for name, shape in WEIGHTS.items() if f"{name})" in body}
    graph = model_io.load(plans.model(HEAD.format(width, body), used, opset=17))
    assert class_output(graph) == ("y" if is_one else None)


def test_several_outputs_other_ranks_and_logits_of_tokens_have_no_class() -> None:
    two = "(float[N, 8] x) => (float[N, 8] y, float[N, 8] z) { y = MatMul (x, w) z = Tanh (y) }"
    deep = "(float[N, 2, 8] x) => (float[N, 2, 8] y) { y = MatMul (x, w) }"
    tokens = "(int64[N] i) => (float[N, 8] y) { g = Gather (t, i) y = MatMul (g, w) }"
    for text, weights in ((two, {"w": (8, 8)}), (deep, {"w": (8, 8)}), (tokens, {"t": (8, 8), "w": (8, 8)})):
        assert class_output(model_io.load(plans.model(text, weights, opset=17))) is None
    assert class_output(model_io.load(cached_decoder())) is None
