"""The same model with weights in uint8, whose products ONNX Runtime widens: its sums are exact everywhere."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

_STORED = {"DequantizeLinear": {0: 2}, "MatMulInteger": {1: 3}, "DynamicQuantizeLSTM": {1: 9, 2: 11}}
"""Inputs of operators that are stored numbers, each with that of its zero point."""


def widened(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model of which 128 is added to int8 weights and their zero points; what they stand for stays.

    The model has no bodies. Each reader has weights of its own; those that nobody reads any more stay.
    """
    made = onnx.ModelProto()
    made.CopyFrom(model)
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    for node in made.graph.node:
        for index, place in _STORED.get(node.op_type, {}).items():
            weight = stored.get(node.input[index])
            if weight is None or weight.dtype != np.int8:
                continue
            node.input.extend([""] * (place + 1 - len(node.input)))
            scale = stored[node.input[1]] if node.op_type == "DequantizeLinear" else np.zeros(())
            zero = stored[node.input[place]] if node.input[place] else np.zeros(scale.shape, np.int8)
            for at, numbers in ((index, weight), (place, zero)):
                name = f"{node.output[0]}_{at}_widened"
                shifted = (numbers.astype(np.int16) + 128).astype(np.uint8)
                made.graph.initializer.append(numpy_helper.from_array(shifted, name))
                node.input[at] = name
    return made
