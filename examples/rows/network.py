"""An LSTM that reads a digit row by row, as speech is read frame by frame: outputs, gradients, ONNX form."""

from __future__ import annotations

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from examples.training import layers
from examples.training.layers import Array
from examples.training.recurrent import recur

Parameters = dict[str, Array]

WIDTH, SIZE, CLASSES = 32, 128, 10
SMOOTHING = 0.1  # of the labels
OPSET, IR_VERSION = 17, 8
_LSTM = ("lstm.weight", "lstm.recurrence", "lstm.bias")
_CLASSIFIER = ("classifier.weight", "classifier.bias")


def new_parameters(seed: int) -> Parameters:
    """Return untrained float32 parameters: normal weights of variance 1 / fan-in, forget gates open."""
    draw = np.random.default_rng(seed).standard_normal
    bias = np.zeros(4 * SIZE)
    bias[2 * SIZE : 3 * SIZE] = 1
    values = (
        draw((4 * SIZE, WIDTH)) / np.sqrt(WIDTH),
        draw((4 * SIZE, SIZE)) / np.sqrt(SIZE),
        bias,
        draw((CLASSES, SIZE)) / np.sqrt(SIZE),
        np.zeros(CLASSES),
    )
    names = (*_LSTM, *_CLASSIFIER)
    return {name: value.astype(np.float32) for name, value in zip(names, values, strict=True)}


def rows_of(images: Array) -> Array:
    """Return images ``[n, 1, 32, 32]`` as the model takes them, ``[32, n, 32]``: the rows are steps."""
    return np.ascontiguousarray(images[:, 0].swapaxes(0, 1))


def predict(parameters: Parameters, rows: Array) -> Array:
    """Return the logits ``[n, 10]`` of ``rows`` ``[32, n, 32]``."""
    state, _ = recur(rows, *(parameters[name] for name in _LSTM))
    return layers.connect(state, *(parameters[name] for name in _CLASSIFIER))[0]


def train_step(parameters: Parameters, rows: Array, labels: NDArray[np.integer]) -> tuple[float, Parameters]:
    """Return the batch's loss and its gradients."""
    state, back_lstm = recur(rows, *(parameters[name] for name in _LSTM))
    logits, back_classifier = layers.connect(state, *(parameters[name] for name in _CLASSIFIER))
    loss, slope = layers.cross_entropy(logits, labels, smoothing=SMOOTHING)
    slope, *classifier = back_classifier(slope)
    _, *lstm = back_lstm(slope)
    return loss, dict(zip((*_LSTM, *_CLASSIFIER), (*lstm, *classifier), strict=True))


def to_onnx(parameters: Parameters) -> onnx.ModelProto:
    """Return the network that :func:`predict` computes as an ONNX model of any number of rows and images."""
    rows = helper.make_tensor_value_info("rows", TensorProto.FLOAT, ["step", "batch", WIDTH])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", CLASSES])
    stored = {name: value[None] if name in _LSTM else value for name, value in parameters.items()}
    bias = stored["lstm.bias"]  # of the input; that of the state follows it
    stored["lstm.bias"] = np.concatenate([bias, np.zeros_like(bias)], axis=1)
    weights = [numpy_helper.from_array(value, name) for name, value in stored.items()]
    weights.append(numpy_helper.from_array(np.array([0]), "direction"))
    nodes = [
        helper.make_node("LSTM", ["rows", *_LSTM], ["", "state"], "lstm", hidden_size=SIZE),
        helper.make_node("Squeeze", ["state", "direction"], ["last"], "last"),
        helper.make_node("Gemm", ["last", *_CLASSIFIER], ["logits"], "logits", transB=1),
    ]
    purpose = "Reads a handwritten digit row by row, pixels from 0 to 1."
    graph = helper.make_graph(nodes, "rows", [rows], [logits], weights, doc_string=purpose)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    model.producer_name = "examples.rows.train"
    helper.set_model_props(model, {"training_data": "sklearn.datasets.load_digits"})
    onnx.checker.check_model(model, full_check=True)
    return model
