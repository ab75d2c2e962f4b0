"""Models of one packed weight, which they give out."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper, numpy_helper

import ops
from ops.formats import Format
from transforms.features.packed.pack_constant import LastEncoded, PackedConstant, pack_constant
from transforms.features.packed.packed_calls import attach_packed
from transforms.functions import DOMAIN


def packed(values: NDArray[np.float32], fmt: Format, axis: int) -> PackedConstant | None:
    """Return a weight in codes, or None if it has none."""
    return pack_constant(values, fmt, axis, LastEncoded())


def model_of(found: PackedConstant, opset: int = 17) -> onnx.ModelProto:
    """Return a model without inputs that gives out the weight, ``w``."""
    names = list(found.inputs)
    node = helper.make_node(found.op, names, ["weight"], domain=DOMAIN, **found.attributes)
    arrays = [numpy_helper.from_array(np.asarray(array), name) for name, array in found.inputs.items()]
    output = helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, found.attributes["shape"])
    graph = helper.make_graph(
        [node, helper.make_node("Identity", ["weight"], ["w"])], "one", [], [output], arrays
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    attach_packed(model)
    return model


def run(model: onnx.ModelProto, *, optimize: bool = True, library: bool = False) -> NDArray[Any]:
    """Return what a session gives out."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    if not optimize:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if library:
        ops.register_custom_ops(options)
    return onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, {})[0]
