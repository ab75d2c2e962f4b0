"""Which outputs are logits of tokens, and how they are compared. Oracle: the models below, and arithmetic."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from transforms import model_io
from transforms.graph.logits import logits_of
from transforms.judge.errors import energies, signals
from transforms.judge.judge import Judge

TOKENS, SIZE = 64, 8
RANDOM = np.random.default_rng(5)


def decoder(head: str, *, width: int = TOKENS) -> onnx.ModelProto:
    """Return a model of token ids, with states beside its logits."""
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
        main (int64[N,S] ids) => (float[N,S,{width}] y, float[N,S,{SIZE}] state) {{
        e = Gather(table, ids) state = Tanh(e) {head} }}""")
    for name, shape in (("table", (TOKENS, SIZE)), ("w", (SIZE, width)), ("b", (width,))):
        weight = RANDOM.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    return model


@pytest.mark.parametrize(
    "head",
    (
        "y = MatMul(state, w)",
        "p = MatMul(state, w) y = Add(p, b)",
        "t = Transpose <perm = [1, 0]> (table) y = MatMul(state, t)",
        "p = MatMul(state, w) q = Tanh(p) y = Add(q, b)",
    ),
)
def test_what_a_head_makes_of_each_token(head: str) -> None:
    assert logits_of(model_io.load(decoder(head))) == {"y"}


@pytest.mark.parametrize(
    ("head", "width"),
    (("y = MatMul(state, w)", 2 * TOKENS), ("p = MatMul(state, w) y = Softmax(p)", TOKENS)),
)
def test_other_outputs(head: str, width: int) -> None:
    assert logits_of(model_io.load(decoder(head, width=width))) == set()


def test_the_mean_of_a_row_is_no_part_of_an_error() -> None:
    exact = {"y": RANDOM.standard_normal((2, 3, 5)), "z": RANDOM.standard_normal(4)}
    found = {"y": exact["y"] + RANDOM.standard_normal((2, 3, 1)), "z": exact["z"] + 1}
    assert np.allclose(energies(exact, found, {"y"}), [0, 4]) and energies(exact, found)[0] > 1
    centred = exact["y"] - exact["y"].mean(-1, keepdims=True)
    assert np.allclose(signals(exact, {"y"}), [(centred**2).sum(), (exact["z"] ** 2).sum()])


def test_a_judge_compares_what_chooses_tokens() -> None:
    model = decoder("p = MatMul(state, w) y = Add(p, b)")
    graph = model_io.load(model)
    judge = Judge(graph, [{"ids": np.arange(6).reshape(1, 6)}, {"ids": np.arange(6, 12).reshape(1, 6)}])
    moved = onnx.ModelProto()
    moved.CopyFrom(model)
    (bias,) = [one for one in moved.graph.initializer if one.name == "b"]
    bias.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(bias) + np.float32(3), "b"))
    errors = judge.errors_of(model_io.load(moved))
    assert judge.reference.logits == {"y"} and (errors.decibels > 100).all()
