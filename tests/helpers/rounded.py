"""The exact oracle of the conversions: a model evaluated node by node, with ml_dtypes' rounding in between.

Each node of the float model runs in a session of its own on rounded inputs; its float32 outputs are rounded.
Nothing of the transforms takes part in it.
"""

from __future__ import annotations

from collections.abc import Mapping

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper, numpy_helper


def bf16(array: NDArray) -> NDArray:
    """Return a float32 array rounded to bfloat16; other arrays as they are."""
    array = np.asarray(array)
    return array.astype(ml_dtypes.bfloat16).astype(np.float32) if array.dtype == np.float32 else array


def evaluate(model: onnx.ModelProto, feeds: Mapping[str, NDArray]) -> dict[str, NDArray]:
    """Return the outputs of a model without control flow; inputs handed on as outputs are not rounded."""
    held = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    values = {name: bf16(array) for name, array in (held | dict(feeds)).items()}
    for node in model.graph.node:
        results = _run(node, model.opset_import, values)
        values |= {name: bf16(result) for name, result in results.items()}
    raw = held | dict(feeds)
    return {output.name: raw.get(output.name, values[output.name]) for output in model.graph.output}


def _run(
    node: onnx.NodeProto, opsets: list[onnx.OperatorSetIdProto], values: Mapping[str, NDArray]
) -> dict[str, NDArray]:
    feeds = {name: values[name] for name in node.input if name}
    inputs = [_declare(name, array) for name, array in feeds.items()]
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
    graph = helper.make_graph([node], "one", inputs, outputs)
    model = helper.make_model(graph, opset_imports=list(opsets), ir_version=8)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return dict(zip([output.name for output in outputs], session.run(None, feeds), strict=True))


def _declare(name: str, array: NDArray) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
