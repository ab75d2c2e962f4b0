"""Parts of weights are rounded as the whole weight is, and are the whole weight together.

Oracle: the weight that is rounded whole.
"""

from __future__ import annotations

import itertools

import numpy as np
import onnx_graphsurgeon as gs
import pytest

from ops.array_types import QParams
from ops.formats import get_format
from ops.integer_blocks import block_parameters
from tests.helpers import mixing
from transforms.layers.linear_layer import layer_of
from transforms.mix_precision import weight_parts
from transforms.plan.fake_quant import FakeQuant
from transforms.plan.quant_spec import QuantSpec

CASES = (
    ("Conv", (6, 4, 3, 2), {}, 0, 1),
    ("Conv", (6, 2, 3, 2), {"group": 2}, 0, 1),
    ("ConvTranspose", (4, 6, 3), {}, 1, 0),
    ("ConvTranspose", (4, 3, 3), {"group": 2}, 1, 0),
    ("Gemm", (6, 40), {"transB": 1}, 0, 1),
    ("Gemm", (40, 6), {}, 1, 0),
    ("MatMul", (40, 6), {}, 1, 0),
    ("MatMul", (3, 40, 6), {}, 2, 1),
    ("MatMul", (40,), {}, -1, 0),
)
"""Operator, shape of the weight, attributes, axes of outputs and of sums."""


def integers(weight: np.ndarray, axis: int | None, block: int) -> FakeQuant:
    fmt = get_format("int8")
    spec = QuantSpec(fmt, axis, block=block)
    parameters: QParams = (np.float32(0.01), np.int8(0))  # type: ignore[assignment]
    if block and axis is not None:
        parameters = block_parameters(weight, fmt, axis, block, symmetric=True)
    elif axis is not None:
        size = weight.shape[axis]
        parameters = np.linspace(0.01, 0.03, size, dtype=np.float32), np.arange(size).astype(np.int8)
    return FakeQuant(((spec, parameters),))


def roundings(weight: np.ndarray, outputs: int, sums: int) -> dict[str, FakeQuant]:
    blocks = {name: QuantSpec(get_format(name), sums) for name in ("bfp16", "mx6", "mxfp8_e4m3")}
    return {
        **{name: FakeQuant(((spec, None),)) for name, spec in blocks.items()},
        "bfloat16": FakeQuant(((QuantSpec(get_format("bfloat16")), None),)),
        "tensor": integers(weight, None, 0),
        "outputs": integers(weight, outputs, 0),
        "sums": integers(weight, sums - weight.ndim, 0),
        "blocks": integers(weight, sums, 3),
    }


@pytest.mark.parametrize(("op", "shape", "attrs", "outputs", "sums"), CASES)
def test_parts_are_rounded_as_the_whole(
    op: str,
    shape: tuple[int, ...],
    attrs: dict[str, int],
    outputs: int,
    sums: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(weight_parts, "MOST", 50)
    weight, node = mixing.normal(*shape), gs.Node(op, "node", attrs=attrs)
    layer, found = layer_of(node, shape, 1), roundings(weight, outputs, sums)
    parts = weight_parts.weight_parts(node, layer, found.values())
    whole = "group" in attrs or len(shape) == 1
    assert (len(parts) == 1) == whole
    for rounding in found.values():
        pieces = []
        for part in parts:
            cut = part.rounding(rounding)
            assert cut is not None and part.layer.shape == part.of(weight).shape
            pieces.append(cut(part.of(weight)))
        assert np.array_equal(np.concatenate(pieces, parts[0].axis), rounding(weight))


def test_blocks_along_outputs_keep_a_weight_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_parts, "MOST", 50)
    node = gs.Node("MatMul", "node")
    for axis, name in itertools.product((1, -1, None), ("bfp16", "mx6")):
        found = FakeQuant(((QuantSpec(get_format(name), axis), None),))
        assert len(weight_parts.weight_parts(node, layer_of(node, (40, 6), 1), [found])) == 1
