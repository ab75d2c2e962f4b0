"""The network that reads digits: its parameters, its outputs, its training step, and its ONNX form."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from examples.training import layers
from examples.training.layers import Array

Parameters = dict[str, Array]

EPSILON = 1e-5  # of the normalization
MOMENTUM = 0.9  # of the running statistics
STATISTICS = ("norm1.mean", "norm1.variance")  # learned by averaging, not by gradients
OPSET, IR_VERSION = 17, 8


def new_parameters(seed: int) -> Parameters:
    """Return untrained float32 parameters: normal weights of variance 2 / fan-in, zero biases."""
    draw = np.random.default_rng(seed).standard_normal
    shapes = {"conv1.weight": (16, 1, 3, 3), "conv2.weight": (32, 16, 3, 3), "classifier.weight": (10, 512)}
    parameters = {
        name: (draw(shape) * np.sqrt(2 / np.prod(shape[1:]))).astype(np.float32)
        for name, shape in shapes.items()
    }
    ones = {name: np.ones(16, np.float32) for name in ("norm1.scale", "norm1.variance")}
    zeros = {"norm1.bias": 16, "norm1.mean": 16, "conv2.bias": 32, "classifier.bias": 10}
    return parameters | ones | {name: np.zeros(size, np.float32) for name, size in zeros.items()}


def predict(parameters: Parameters, images: Array) -> Array:
    """Return the logits ``[n, 10]`` of ``images`` ``[n, 1, 8, 8]``, by the running statistics."""
    convolved, _ = layers.convolve(images, parameters["conv1.weight"])
    mean, variance = (parameters[name] for name in STATISTICS)
    return _normalize_and_onward(parameters, convolved, mean, variance)[0]


def train_step(
    parameters: Parameters, images: Array, labels: NDArray[np.integer]
) -> tuple[float, Parameters, Parameters]:
    """Return the batch's loss, its gradients, and the running statistics after it."""
    convolved, backward = layers.convolve(images, parameters["conv1.weight"])
    batch = layers.batch_statistics(convolved)
    logits, tape = _normalize_and_onward(parameters, convolved, *batch)
    loss, slope = layers.cross_entropy(logits, labels)
    gradients: Parameters = {}
    for names, step in reversed([(("conv1.weight",), backward), *tape]):
        slope, *others = step(slope)
        gradients |= dict(zip(names, others, strict=True))
    averages = {
        name: MOMENTUM * parameters[name] + (1 - MOMENTUM) * value
        for name, value in zip(STATISTICS, batch, strict=True)
    }
    return loss, gradients, averages


def _normalize_and_onward(
    parameters: Parameters, x: Array, mean: Array, variance: Array
) -> tuple[Array, list[tuple[tuple[str, ...], layers.Backward]]]:
    """Apply all layers after the first; return the logits and each layer's parameters and backward pass."""
    tape: list[tuple[tuple[str, ...], layers.Backward]] = []

    def apply(layer: layers.Layer, x: Array, *names: str, **constants: Array | float) -> Array:
        y, backward = layer(x, *(parameters[name] for name in names), **constants)
        tape.append((names, backward))
        return y

    statistics: dict[str, Array | float] = {"mean": mean, "variance": variance, "epsilon": EPSILON}
    x = apply(layers.normalize, x, "norm1.scale", "norm1.bias", **statistics)
    x = apply(layers.max_pool, apply(layers.rectify, x))
    x = apply(layers.add_bias, apply(layers.convolve, x, "conv2.weight"), "conv2.bias")
    x = apply(layers.rectify, x)
    return apply(layers.connect, x, "classifier.weight", "classifier.bias"), tape


def to_onnx(parameters: Parameters) -> onnx.ModelProto:
    """Return the network that :func:`predict` computes as an ONNX model with a free batch size."""
    images = helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 1, 8, 8], "pixels, 0 to 1")
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 10], "one score per digit")
    weights = [numpy_helper.from_array(value, name) for name, value in parameters.items()]
    purpose = "Reads a handwritten digit of 8 by 8 pixels."
    graph = helper.make_graph(_nodes(), "digits", [images], [logits], weights, doc_string=purpose)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    model.producer_name = "tests.examples.train_digits"
    model.doc_string = "A small convolutional network trained on the digits of scikit-learn."
    helper.set_model_props(model, {"training_data": "sklearn.datasets.load_digits"})
    onnx.checker.check_model(model, full_check=True)
    return model


def _nodes() -> list[onnx.NodeProto]:
    same = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    square = {"kernel_shape": [2, 2], "strides": [2, 2]}
    norm1 = [f"norm1.{name}" for name in ("scale", "bias", "mean", "variance")]
    classifier = ["classifier.weight", "classifier.bias"]
    return [
        _node("Conv", "conv1", ["images", "conv1.weight"], "conv1_out", "sixteen edges", **same),
        _node("BatchNormalization", "norm1", ["conv1_out", *norm1], "norm1_out", "", epsilon=EPSILON),
        _node("Relu", "relu1", ["norm1_out"], "relu1_out", ""),
        _node("MaxPool", "pool1", ["relu1_out"], "pool1_out", "8 by 8 to 4 by 4", **square),
        _node("Conv", "conv2", ["pool1_out", "conv2.weight", "conv2.bias"], "conv2_out", "strokes", **same),
        _node("Relu", "relu2", ["conv2_out"], "relu2_out", ""),
        _node("Flatten", "flatten", ["relu2_out"], "features", ""),
        _node("Gemm", "classifier", ["features", *classifier], "logits", "", transB=1),
    ]


def _node(
    op_type: str, name: str, inputs: list[str], output: str, doc: str, **attributes: Any
) -> onnx.NodeProto:
    return helper.make_node(op_type, inputs, [output], name, doc, **attributes)
