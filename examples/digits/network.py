"""A residual network that reads digits of 32 by 32 pixels: its outputs, its gradients, and its ONNX form.

One channel becomes 64 on a plane of 16 by 16, on which three more convolutions work, two of them in a
residual block; the mean of each channel goes into the classifier.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from examples.training import layers
from examples.training.layers import Array

Parameters = dict[str, Array]
Back = Callable[[Array], Array]

SIDE, CHANNELS, CLASSES = 32, 64, 10
CONVOLUTIONS = {"conv1": 1, "conv2": CHANNELS, "conv3": CHANNELS, "conv4": CHANNELS}
"""The convolutions and their input channels."""

EPSILON, MOMENTUM = 1e-5, 0.9  # of the normalization, and of its running statistics
STATISTICS = tuple(f"{name}.{part}" for name in CONVOLUTIONS for part in ("mean", "variance"))
SMOOTHING = 0.1  # of the labels: logits of all images then have like ranges
OPSET, IR_VERSION = 17, 8


def new_parameters(seed: int) -> Parameters:
    """Return untrained float32 parameters: normal weights of variance 2 / fan-in, zero biases."""
    draw = np.random.default_rng(seed).standard_normal
    parameters = {}
    for name, inputs in CONVOLUTIONS.items():
        shape = (CHANNELS, inputs, layers.SIDE, layers.SIDE)
        parameters[f"{name}.weight"] = draw(shape) * np.sqrt(2 / np.prod(shape[1:]))
        parameters |= {f"{name}.{part}": np.ones(CHANNELS) for part in ("scale", "variance")}
        parameters |= {f"{name}.{part}": np.zeros(CHANNELS) for part in ("bias", "mean")}
    parameters["classifier.weight"] = draw((CLASSES, CHANNELS)) / np.sqrt(CHANNELS)
    parameters["classifier.bias"] = np.zeros(CLASSES)
    return {name: np.asarray(value, np.float32) for name, value in parameters.items()}


def predict(parameters: Parameters, images: Array) -> Array:
    """Return the logits ``[n, 10]`` of ``images`` ``[n, 1, 32, 32]``, by the running statistics."""
    return _Pass(parameters, training=False).forward(images)[0]


def train_step(
    parameters: Parameters, images: Array, labels: NDArray[np.integer]
) -> tuple[float, Parameters, Parameters]:
    """Return the batch's loss, its gradients, and the running statistics after it."""
    one = _Pass(parameters, training=True)
    logits, back = one.forward(images)
    loss, slope = layers.cross_entropy(logits, labels, smoothing=SMOOTHING)
    back(slope)
    return loss, one.gradients, one.averages


@dataclass
class _Pass:
    """The network on one batch: each layer returns its output, and what fills ``gradients`` backwards."""

    parameters: Parameters
    training: bool
    gradients: Parameters = field(default_factory=dict)
    averages: Parameters = field(default_factory=dict)

    def forward(self, images: Array) -> tuple[Array, Back]:
        """Return the logits of images, and the backward pass from the slope of the loss."""
        convolved, back1 = self._convolve("conv1", images)
        halved, back_half = layers.every_second(convolved)
        stem, back_stem = self._rectified("conv1", halved)
        inner, back2 = self._layer("conv2", stem)
        branch, back3 = self._convolve("conv3", inner)
        branch, back_norm3 = self._normalize("conv3", branch)
        block, back_block = layers.rectify(branch + stem)
        last, back4 = self._layer("conv4", block)
        pooled, back_pool = layers.mean_pool(last, SIDE // 2)
        logits, back_classifier = self._classify(pooled)

        def back(slope: Array) -> Array:
            (slope,) = back_block(back4(back_pool(back_classifier(slope))[0]))
            slope = slope + back2(back3(back_norm3(slope)))
            return back1(back_half(back_stem(slope))[0])

        return logits, back

    def _layer(self, name: str, x: Array) -> tuple[Array, Back]:
        convolved, back = self._convolve(name, x)
        y, back_rest = self._rectified(name, convolved)
        return y, lambda dy: back(back_rest(dy))

    def _rectified(self, name: str, x: Array) -> tuple[Array, Back]:
        normalized, back = self._normalize(name, x)
        y, back_relu = layers.rectify(normalized)
        return y, lambda dy: back(back_relu(dy)[0])

    def _convolve(self, name: str, x: Array) -> tuple[Array, Back]:
        y, backward = layers.convolve(x, self.parameters[f"{name}.weight"])
        return y, lambda dy: self._keep(backward(dy), f"{name}.weight")

    def _normalize(self, name: str, x: Array) -> tuple[Array, Back]:
        scale, bias, *running = (self.parameters[f"{name}.{part}"] for part in _NORMALIZATION)
        mean, variance = layers.batch_statistics(x) if self.training else running
        for part, old, new in zip(_NORMALIZATION[2:], running, (mean, variance), strict=True):
            self.averages[f"{name}.{part}"] = MOMENTUM * old + (1 - MOMENTUM) * new
        y, backward = layers.normalize(x, scale, bias, mean, variance, EPSILON)
        return y, lambda dy: self._keep(backward(dy), f"{name}.scale", f"{name}.bias")

    def _classify(self, x: Array) -> tuple[Array, Back]:
        names = ("classifier.weight", "classifier.bias")
        y, backward = layers.connect(x, *(self.parameters[name] for name in names))
        return y, lambda dy: self._keep(backward(dy), *names)

    def _keep(self, slopes: tuple[Array, ...], *names: str) -> Array:
        """Keep the gradients of parameters, which come behind that of the input; return that one."""
        self.gradients |= dict(zip(names, slopes[1:], strict=True))
        return slopes[0]


_NORMALIZATION = ("scale", "bias", "mean", "variance")


def to_onnx(parameters: Parameters) -> onnx.ModelProto:
    """Return the network that :func:`predict` computes as an ONNX model with a free batch size."""
    shapes = {"images": [1, SIDE, SIDE], "logits": [CLASSES]}
    images, logits = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", *shape])
        for name, shape in shapes.items()
    )
    weights = [numpy_helper.from_array(value, name) for name, value in parameters.items()]
    purpose = "Reads a handwritten digit of 32 by 32 pixels, from 0 to 1."
    graph = helper.make_graph(_nodes(), "digits", [images], [logits], weights, doc_string=purpose)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    model.producer_name = "examples.digits.train"
    helper.set_model_props(model, {"training_data": "sklearn.datasets.load_digits"})
    onnx.checker.check_model(model, full_check=True)
    return model


def _nodes() -> list[onnx.NodeProto]:
    nodes = [
        *_convolution("conv1", "images", 2),
        _node("Relu", "relu1", ["conv1_norm"]),
        *_convolution("conv2", "relu1"),
        _node("Relu", "relu2", ["conv2_norm"]),
        *_convolution("conv3", "relu2"),
        _node("Add", "residual", ["conv3_norm", "relu1"]),
        _node("Relu", "relu3", ["residual"]),
        *_convolution("conv4", "relu3"),
        _node("Relu", "relu4", ["conv4_norm"]),
        _node("GlobalAveragePool", "pool", ["relu4"]),
        _node("Flatten", "features", ["pool"]),
    ]
    classifier = ["features", "classifier.weight", "classifier.bias"]
    return [*nodes, _node("Gemm", "logits", classifier, transB=1)]


def _convolution(name: str, value: str, stride: int = 1) -> list[onnx.NodeProto]:
    window = {"kernel_shape": [layers.SIDE] * 2, "pads": [1] * 4, "strides": [stride] * 2}
    norm = [name, *(f"{name}.{part}" for part in _NORMALIZATION)]
    return [
        _node("Conv", name, [value, f"{name}.weight"], **window),
        _node("BatchNormalization", f"{name}_norm", norm, epsilon=EPSILON),
    ]


def _node(op_type: str, name: str, inputs: list[str], **attributes: Any) -> onnx.NodeProto:
    """Return a node whose output has its name."""
    return helper.make_node(op_type, inputs, [name], name, **attributes)
