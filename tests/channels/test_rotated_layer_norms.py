"""Decoders with LayerNormalization before each layer. Oracle: the float model in ONNX Runtime.

Tolerance: sums of up to 96 float32 terms are within 96 u of the sums of their magnitudes, u = 2^-24, which
are about sqrt(96) as large as the sums: a relative error of 6e-5 at worst, with random signs of 6e-6. The
rotation changes the order of 14 sums, one after the other, and rounds each weight once: 2e-5 of the largest.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.helpers import conversion
from tests.helpers.pre_norm_decoders import GPT_START, LOUD, WIDTH, feed, gpt, whisper
from tests.rewrites.test_rotate_channels import rotated, seen
from transforms import model_io
from transforms.graph.embeddings import rotating_products


def check_same(source: onnx.ModelProto, made: onnx.ModelProto) -> None:
    fed = feed(source)
    expected, result = (conversion.run(one, fed)["logits"] for one in (source, made))
    assert np.abs(result - expected).max() < 2e-5 * np.abs(expected).max()


@pytest.mark.parametrize("build", (gpt, whisper))
def test_a_decoder_stays_the_same_without_its_outlying_channel(build: object) -> None:
    source = build()  # type: ignore[operator]
    count, made = rotated(source)
    assert count >= 12
    check_same(source, made)
    states = [conversion.run(seen(one, "x1"), feed(source))["x1"] for one in (source, made)]
    largest = [np.abs(one).max() / np.sqrt(np.square(one).mean()) for one in states]
    assert largest[1] < largest[0] / 1.5
    assert largest[0] == np.abs(states[0][..., LOUD]).max() / np.sqrt(np.square(states[0]).mean())


def test_scales_and_biases_go_into_layers() -> None:
    arrays = {one.name: onnx.numpy_helper.to_array(one) for one in rotated(gpt())[1].graph.initializer}
    assert all(np.all(values == 1) for name, values in arrays.items() if name.endswith("_s"))
    assert not any(np.any(values) for name, values in arrays.items() if name.endswith("_t"))


@pytest.mark.parametrize("build", (gpt, whisper))
def test_an_add_is_put_in_only_where_a_product_has_no_bias(build: object) -> None:
    source = build()  # type: ignore[operator]
    made = rotated(source)[1]
    counts = [sum(node.op_type == "Add" for node in one.graph.node) for one in (source, made)]
    # in layers of whisper(), the keys of tokens and the linear product; heads have one before them
    assert counts[1] - counts[0] == {gpt: 1, whisper: 5}[build]


@pytest.mark.parametrize("build", (gpt, whisper))
def test_the_product_before_a_head_is_known(build: object) -> None:
    made = rotated(build())[1]  # type: ignore[operator]
    (product,) = rotating_products(model_io.load(made))
    assert tuple(product.inputs[1].shape) == (WIDTH, WIDTH)
    assert product.inputs[0].name == "f"


@pytest.mark.parametrize(
    "places",
    (
        "places = Gather<axis = 1>(positions3, at) x0 = Add(e, places)",
        "u = Unsqueeze(positions, zero) places = Slice(u, zero, length, one) x0 = Add(e, places)",
        "p = Identity(positions) places = Slice(p, zero, length) x0 = Add(places, e)",
        "places = Slice(positions, zero, length) x0 = Sum(places, e)",
        "places = Slice(positions, zero, length) n = Sub(e, places) x0 = Add(n, level)",
    ),
)
def test_positions_are_chosen_in_any_way(places: str) -> None:
    start = GPT_START[: GPT_START.index("places")] + places
    if "at)" in places:
        start = start.replace("places =", "at = Range(first, end, step) places =")
        start = start.replace("at =", "first = Squeeze(axis0) end = Squeeze(length) step = Squeeze(one) at =")
    source = gpt(
        start.replace("x0 = Add(n, level)", "level = Constant<value_float = 0.5>() x0 = Add(n, level)")
    )
    count, made = rotated(source)
    assert count
    check_same(source, made)
