"""Models of one operator of ours with its function attached, and sessions on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper, numpy_helper

import ops
from tests.helpers.operator_sessions import DEQUANTIZE, QUANTIZE, onnx_type, run_bits
from transforms.functions.attach_functions import attach_functions


def one_operator(
    op: str,
    attributes: dict[str, Any],
    *,
    dtype: Any = np.float32,
    output: Any = None,
    shape: Any = None,
    opset: int = 17,
    domain: str = ops.DOMAIN,
    constants: dict[str, NDArray[Any]] | None = None,
) -> onnx.ModelProto:
    """Return a model from x to y of one node, with its function."""
    constants = constants or {}
    node = helper.make_node(op, ["x", *constants], ["y"], name="node1", domain=domain, **attributes)
    graph = helper.make_graph(
        [node],
        "test",
        [helper.make_tensor_value_info("x", onnx_type(dtype), shape)],
        [helper.make_tensor_value_info("y", onnx_type(output or dtype), shape)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(domain, 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    assert attach_functions(model) == 1
    return model


def linear_operator(
    op: str, x: NDArray[Any], scale: NDArray[Any], zero_point: NDArray[Any], axis: int = 0, **more: Any
) -> onnx.ModelProto:
    """Return a model of one Extended operator for arrays like x."""
    output = {QUANTIZE: zero_point.dtype, DEQUANTIZE: np.float32}[op]
    constants = {"scale": scale, "zero_point": zero_point}
    return one_operator(op, {"axis": axis}, dtype=x.dtype, output=output, constants=constants, **more)


def open_session(
    model: onnx.ModelProto, *, library: bool, profile: Path | None = None, optimize: bool = True
) -> onnxruntime.InferenceSession:
    """Return a session on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    if not optimize:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if profile is not None:
        options.enable_profiling, options.profile_file_prefix = True, str(profile)
    if library:
        ops.register_custom_ops(options)
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


def run_without_library(model: onnx.ModelProto, x: NDArray[Any], **more: Any) -> NDArray[Any]:
    """Return y of a session that has never heard of our library: of the function."""
    return run_bits(open_session(model, library=False, **more), x)


def operators_run(session: onnxruntime.InferenceSession) -> set[str]:
    """Return the operators that a session with a profile has run."""
    events = json.loads(Path(session.end_profiling()).read_text())
    return {event["args"]["op_name"] for event in events if event.get("cat") == "Node"}
