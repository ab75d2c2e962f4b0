"""Where initializers hold the numbers of channels.

Oracle: ONNX Runtime, where every bit of a result stays if a channel of the data is multiplied by a power of
two and its weights are divided by it.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers import conversion, plans
from transforms import model_io
from transforms.channels.edits import scale
from transforms.channels.per_channel import inputs_of, outputs_of
from transforms.model import graph_proto

IMAGE = "(float[2,6,5,5] x) => (float[n,c,h,w] y) {{ y = {}(x, w) }}"
ROWS = "(float[4,6] x) => (float[n,m] y) {{ y = {}(x, w) }}"
LAYERS: dict[str, tuple[str, tuple[int, ...], int]] = {
    "convolution": (IMAGE.format("Conv"), (4, 6, 3, 3), 4),
    "groups": (IMAGE.format("Conv<group = 3>"), (9, 2, 3, 3), 9),
    "depthwise": (IMAGE.format("Conv<group = 6>"), (6, 1, 3, 3), 6),
    "transposed": (IMAGE.format("ConvTranspose"), (6, 4, 2, 2), 4),
    "transposed groups": (IMAGE.format("ConvTranspose<group = 3>"), (6, 4, 2, 2), 12),
    "product": (ROWS.format("MatMul"), (6, 5), 5),
    "stack": ("(float[3,4,6] x) => (float[3,4,5] y) { y = MatMul(x, w) }", (3, 6, 5), 5),
    "gemm": (ROWS.format("Gemm<transB = 1>"), (5, 6), 5),
}


@pytest.mark.parametrize("name", LAYERS)
def test_weights_hold_both_kinds_of_channels(name: str) -> None:
    text, shape, outputs = LAYERS[name]
    source = plans.model(text, {"w": shape})
    graph = model_io.load(source)
    (node,) = graph.nodes
    read, made = inputs_of(node), outputs_of(node)
    assert (read.channels, made.channels) == (6, outputs)
    factors = np.arange(6) % 4 - 1, np.arange(outputs) % 5 - 2
    scale([(read, -factors[0]), (made, factors[1])])
    dims = [dim.dim_value for dim in source.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(3).standard_normal(dims).astype(np.float32)
    last = (1, 1) if "Conv" in text else ()
    scaled = np.ldexp(x, factors[0].reshape(-1, *last))
    before = conversion.run(source, {"x": x})["y"]
    after = conversion.run(graph_proto.export_model(graph), {"x": scaled})["y"]
    assert before.any()
    assert np.array_equal(after, np.ldexp(before, factors[1].reshape(-1, *last)))


@pytest.mark.parametrize("name", LAYERS)
def test_ranges_are_those_of_what_holds_a_channel(name: str) -> None:
    """A channel of zeros but for one number has its magnitude as range, wherever the number is."""
    text, shape, _ = LAYERS[name]
    (node,) = model_io.load(plans.model(text, {"w": shape})).nodes
    for held in (inputs_of(node), outputs_of(node)):
        values = np.zeros(shape, np.float32)
        sizes = -np.arange(1.0, held.channels + 1)
        np.copyto(values, held.laid(sizes))
        assert np.array_equal(held.ranges(values), -sizes)
