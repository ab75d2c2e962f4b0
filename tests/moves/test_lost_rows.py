"""Tensors of a language model that lose most of a row on their grid stay float.

Oracles: the float model on unseen texts, and NumPy's divergence of its probabilities.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnx.parser
import pytest

from tests.helpers import conversion
from tests.helpers.judged_networks import quantized
from transforms.scheme import preset

WORDS, WIDTH = 60, 16
Feeds = list[dict[str, np.ndarray]]


def decoder(first: float) -> onnx.ModelProto:
    """Return one with a layer whose inputs are ``first`` times as large for token 0 as for others."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]> decoder
        (int64[b,t] ids) => (float[b,t,{WORDS}] logits) {{
        e = Gather(table, ids) f = Gather(factors, ids) a = MatMul(e, w0) b = Tanh(a) c = MatMul(b, w1)
        d = Tanh(c) u = MatMul(d, w2) m = Mul(u, f) s = MatMul(m, w3)
        n = LayerNormalization(s, scale) p = MatMul(n, head) logits = Identity(p) }}"""
    )
    random = np.random.default_rng(3)
    shapes = {"table": (WORDS, WIDTH), **dict.fromkeys(("w0", "w1", "w2", "w3"), (WIDTH, WIDTH))}
    weights = {name: random.standard_normal(shape) * 0.4 for name, shape in shapes.items()}
    weights |= {"factors": np.ones((WORDS, 1)), "scale": np.ones(WIDTH)}
    weights["head"] = random.standard_normal((WIDTH, WORDS)) * 0.4
    weights["factors"][0] = first
    for name, array in weights.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), name))
    onnx.checker.check_model(model, full_check=True)
    return model


def texts(count: int, seed: int) -> Feeds:
    """Return texts that begin with token 0."""
    random = np.random.default_rng(seed)
    return [{"ids": np.append(0, random.integers(1, WORDS, 23))[None]} for _ in range(count)]


def divergence(model: onnx.ModelProto, made: bytes, feeds: Feeds) -> float:
    """Return the mean divergence of a token, in nats, of a model in a session as users open it."""
    found = []
    for feed in feeds:
        x, y = (
            conversion.run(one, feed, optimize=True)["logits"].astype(np.float64)
            for one in (model, onnx.load_from_string(made))
        )
        p, q = (np.exp(z) / np.exp(z).sum(-1, keepdims=True) for z in (x, y))
        found.append((p * np.log(p / q)).sum(-1).mean())
    return float(np.mean(found))


def kept(tensors: Mapping[str, str]) -> set[str]:
    return {name for name, format in tensors.items() if format == "float32"}


def test_what_a_large_token_rounds_to_zero_stays_float() -> None:
    model, seen, unseen = decoder(3000), texts(12, 1), texts(8, 2)
    scheme = preset("A8W8")
    made, done = quantized(model, scheme, seen)
    plain = quantized(model, scheme.with_(keep_float=False), seen)[0]
    assert divergence(model, plain, unseen) > 0.5 and divergence(model, made, unseen) < 0.1
    assert done.scheme is not None and "m" in kept(done.scheme.tensors)
    assert any(one.move == "tensors in float" for one in done.decisions.kept)
    assert quantized(model, done.scheme, seen)[0] == made


@pytest.mark.parametrize("first", (1.0, 1.5))
def test_nothing_stays_float_where_outputs_are_useful(first: float) -> None:
    done = quantized(decoder(first), preset("A8W8"), texts(12, 1))[1]
    assert done.scheme is not None and "m" not in kept(done.scheme.tensors)
