"""The oracle of the graphs. Oracle of the oracle: ONNX Runtime on the whole model."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

from tests.attack.graphs.hooks import Noise, Rounded
from tests.attack.graphs.interpret import Interpreter
from tests.attack.graphs.single_node import session


@pytest.mark.parametrize("scales", [
    "s = Constant <value: tensor = float[4] {1,1,2,2}> ()",
    "c = Constant <value: tensor = float[4] {1,1,2,2}> () s = Identity(c)",
])  # fmt: skip
def test_disturbed_models_keep_their_scales(scales: str) -> None:
    """Scales of 0.99 in the batch are refused by the runtime, so that nothing could be compared."""
    text = f"main (float[1,1,2,2] x) => (float[A,B,C,D] y) {{ {scales} y = Resize(x, s) }}"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 10]> {text}')
    found = Interpreter(model).run({"x": np.ones((1, 1, 2, 2), np.float32)}, Noise(1e-2, 0))
    assert found["y"].shape == (1, 1, 4, 4)


def test_values_that_are_not_rounded_are_bit_for_bit_those_of_the_runtime() -> None:
    """Arithmetic on shapes stays float32; packed weights are added up in an order of their own."""
    random = np.random.default_rng(0)
    weights = [random.standard_normal(shape, np.float32) for shape in ((5, 1, 3), (3, 1))]
    lists = [",".join(map(str, array.reshape(-1).tolist())) for array in weights]
    text = (
        "main (float[2,7] x) => (float[A,B,C] y) "
        f"<float[5,1,3] v = {{{lists[0]}}}, float[3,1] w = {{{lists[1]}}}> "
        "{ s = Size(x) f = Cast <to = 1> (s) a = Mul(v, f) y = MatMul(a, w) }"
    )
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')
    feed = {"x": np.ones((2, 7), np.float32)}
    found = Interpreter(model).run(feed, Rounded(model))
    np.testing.assert_array_equal(found["y"], session(model).run(None, feed)[0])


def test_the_cast_of_a_float16_output_is_part_of_the_arithmetic_on_shapes_before_it() -> None:
    """What a Reshape by a Shape makes of a constant stays; a float16 output of a layer is rounded."""
    text = (
        "main (float16[2] x) => (float16[N] y, float16[M] z) <float16[2] w = {15361, 16384}> "
        "{ s = Shape(w) y = Reshape(w, s) z = Mul(x, x) }"
    )
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')
    interpreter = Interpreter(model)
    feed = {"x": np.asarray([1.0009765625, 2], np.float16)}
    found = interpreter.run(feed, Rounded(interpreter.model, {"x", "y", "z"}))
    assert found["y"].tolist() == [1.0009765625, 2]
    assert found["z"].tolist() == [1, 4]
