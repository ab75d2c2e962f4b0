"""One node run alone in ONNX Runtime, with captured tensors of its bodies as further inputs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

onnxruntime.set_default_logger_severity(4)
IR_VERSION = 10


def captured(node: onnx.NodeProto) -> list[str]:
    """Return the names that the bodies of a node take from around them, in the order of first use."""
    found: dict[str, None] = {}
    for attribute in node.attribute:
        for body in (attribute.g, *attribute.graphs):
            found |= dict.fromkeys(_free(body))
    return list(found)


def _free(body: onnx.GraphProto) -> Iterable[str]:
    own = {value.name for value in body.input} | {tensor.name for tensor in body.initializer}
    own |= {tensor.values.name for tensor in body.sparse_initializer}
    for node in body.node:
        yield from (name for name in (*node.input, *captured(node)) if name and name not in own)
        own |= set(node.output)
    yield from (value.name for value in body.output if value.name not in own)


def declare(name: str, value: Any) -> onnx.ValueInfoProto:
    """Return the type of a value, its rank but no size; a list is a sequence of tensors."""
    if isinstance(value, list):
        element = helper.np_dtype_to_tensor_dtype(value[0].dtype) if value else onnx.TensorProto.FLOAT
        return helper.make_tensor_sequence_value_info(name, element, None)
    dims = [None] * value.ndim
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), dims)


def session(model: onnx.ModelProto, *, optimized: bool = False) -> onnxruntime.InferenceSession:
    """Return a session on one thread that runs every node as it stands, unless ``optimized``."""
    levels = onnxruntime.GraphOptimizationLevel
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimized else levels.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


class Runner:
    """Runs nodes of a model one at a time; a node that comes again with like values keeps its session."""

    def __init__(
        self,
        opsets: Sequence[onnx.OperatorSetIdProto],
        functions: Sequence[onnx.FunctionProto] = (),
        *,
        checked: bool = False,
    ) -> None:
        """Take the imports of the model; ``checked`` nodes pass the checker's inference before they run."""
        self._opsets, self._functions, self._checked = list(opsets), functions, checked
        self._sessions: dict[Any, onnxruntime.InferenceSession] = {}

    def run(
        self, node: onnx.NodeProto, values: Mapping[str, Any], fixed: Collection[str] = ()
    ) -> dict[str, Any]:
        """Return the outputs by name; ``fixed`` inputs are initializers and do not change between calls."""
        names = [name for name in dict.fromkeys((*node.input, *captured(node))) if name]
        fed = {name: values[name] for name in names if name not in fixed}
        kinds = tuple((name, *_kind(value)) for name, value in fed.items())
        held = tuple((values[name].shape, values[name].tobytes()) for name in names if name in fixed)
        key = (node.SerializeToString(deterministic=True), kinds, held)
        if key not in self._sessions:
            constants = [numpy_helper.from_array(values[name], name) for name in names if name in fixed]
            self._sessions[key] = self._open(node, fed, constants)
        outputs = [name for name in node.output if name]
        results = self._sessions[key].run(None, fed)
        return {name: as_arrays(result) for name, result in zip(outputs, results, strict=True)}

    def _open(
        self, node: onnx.NodeProto, fed: Mapping[str, Any], constants: list[onnx.TensorProto]
    ) -> onnxruntime.InferenceSession:
        inputs = [declare(name, value) for name, value in fed.items()]
        outputs = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
        graph = helper.make_graph([node], "one", inputs, outputs, constants)
        model = helper.make_model(
            graph, opset_imports=self._opsets, ir_version=IR_VERSION, functions=self._functions
        )
        if self._checked:
            onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
        return session(model)


def as_arrays(value: Any) -> Any:
    """Return what a session gave with arrays in place of single numbers."""
    if value is None:
        return None
    return [np.asarray(item) for item in value] if isinstance(value, list) else np.asarray(value)


def _kind(value: Any) -> tuple[Any, ...]:
    if isinstance(value, list):
        return ("sequence", str(value[0].dtype) if value else "")
    return str(value.dtype), value.ndim
