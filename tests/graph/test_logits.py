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


def test_errors_of_logits_are_divergences_of_their_probabilities() -> None:
    exact = {"y": RANDOM.standard_normal((2, 3, 5)), "z": RANDOM.standard_normal(4)}
    moved = {"y": exact["y"] + RANDOM.standard_normal((2, 3, 1)), "z": exact["z"] + 1}
    assert np.allclose(energies(exact, moved, {"y"}), [0, 4]) and energies(exact, moved)[0] > 1
    assert np.allclose(signals(exact, {"y"}), [6, (exact["z"] ** 2).sum()])
    other = {"y": exact["y"] + RANDOM.standard_normal((2, 3, 5)), "z": exact["z"]}
    p, q = (np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in (exact["y"], other["y"]))
    assert np.allclose(energies(exact, other, {"y"}), [(p * np.log(p / q)).sum(), 0])


@pytest.mark.parametrize("number", (np.nan, np.inf))
def test_logits_that_are_no_numbers_are_an_error(number: float) -> None:
    exact = {"y": RANDOM.standard_normal((2, 5)).astype(np.float32)}
    found = exact["y"].copy()
    found[1, 2] = number
    assert energies(exact, {"y": found}, {"y"})[0] > 1e20


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
