"""Targets before a Softmax that a later opset flattens. Oracle: the float model keeps to any target."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import onnx_narrow
from tests.helpers import plans

SAMPLES = [np.random.default_rng(i).standard_normal((1, 3, 4, 4)).astype(np.float32) for i in range(8)]


@pytest.mark.parametrize("format", ["with_cast", "bf16", "customqdq"])
@pytest.mark.parametrize("least", [20, 60])
def test_layers_are_kept_for_a_target_before_it(format: str, least: float) -> None:
    text = """(float[1, 3, 4, 4] x) => (float[1, 4, 1, 1] y) {
        h = Conv (x, w) r = Relu (h) p = GlobalAveragePool (r) c = Conv (p, v) y = Softmax <axis = 1> (c) }"""
    model: onnx.ModelProto = plans.model(text, {"w": (8, 3, 3, 3), "v": (4, 8, 1, 1)}, opset=11)
    try:
        result = onnx_narrow.convert_bf16(model, data=SAMPLES, min_sqnr=least, format=format)
    except ValueError as error:
        assert least == 60 and "-inf" not in str(error)
    else:
        assert "-inf" not in str(result)
