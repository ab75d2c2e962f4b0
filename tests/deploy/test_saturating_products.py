"""Products whose sums may saturate. Oracle: the table; ``tests/processors`` has what kernels make of them.

A pair of int8 weights is too large from 129 on: 255 x 129 is beyond 32,767.
"""

from __future__ import annotations

import onnx
import pytest

from tests.helpers import corpus
from transforms import model_io
from transforms.deploy.saturating_products import saturating_products

_IN = "x_q = QuantizeLinear(x, s, z) d = DequantizeLinear(x_q, s, z) v = DequantizeLinear(w, s, zw) "
_CASES = {  # inputs, weights, product; type of the activations, of the weights; whether sums saturate
    "wide": ("1,2", ([2, 1], [65, 64]), "MatMul(d, v)", "uint8", "int8", True),
    "signed activations": ("1,2", ([2, 1], [65, 64]), "MatMul(d, v)", "int8", "int8", True),
    "narrow": ("1,2", ([2, 1], [64, 64]), "MatMul(d, v)", "uint8", "int8", False),
    "of two signs": ("1,2", ([2, 1], [127, -127]), "MatMul(d, v)", "uint8", "int8", False),
    "not neighbours": ("1,3", ([3, 1], [64, 64, 127]), "MatMul(d, v)", "uint8", "int8", False),
    "turned": ("1,2", ([1, 2], [65, 64]), "Gemm <transB = 1> (d, v)", "uint8", "int8", True),
    "float activations": ("1,2", ([2, 1], [65, 64]), "MatMul(x, v)", "uint8", "int8", False),
    "unsigned weights": ("1,2", ([2, 1], [65, 64]), "MatMul(d, v)", "uint8", "uint8", False),
    "channels": ("1,2,1,1", ([1, 2, 1, 1], [65, 64]), "Conv(d, v)", "uint8", "int8", True),
    "places": ("1,1,1,2", ([2, 1, 1, 2], [1, 1, 65, 64]), "Conv(d, v)", "uint8", "int8", True),
    "depthwise": ("1,2,1,2", ([2, 1, 1, 2], [127] * 4), "Conv <group = 2> (d, v)", "uint8", "int8", False),
    "transposed": ("1,2,1,1", ([2, 1, 1, 1], [65, 64]), "ConvTranspose(d, v)", "uint8", "int8", False),
}


def _model(case: str) -> onnx.ModelProto:
    shape, (sizes, numbers), product, kind, weight, _ = _CASES[case]
    stored, made = ", ".join(map(str, numbers)), "A,B" if len(sizes) == 2 else "A,B,C,D"
    constants = f"float s = {{1}}, {kind} z = {{0}}, {weight} zw = {{0}}, {weight}{sizes} w = {{{stored}}}"
    text = f"(float[{shape}] x) => (float[{made}] y) <{constants}> {{ {_IN} y = {product} }}"
    return corpus.parse(text, opset=17)


@pytest.mark.parametrize("case", _CASES)
def test_they_have_a_wide_pair(case: str) -> None:
    found = saturating_products(model_io.load(_model(case)))
    assert [node.outputs[0].name for node in found] == ["y"] * _CASES[case][-1]
