"""A slow, independent evaluation: node by node, bodies step by step in Python, with a hook between.

Nothing of the transforms takes part. float16 models are evaluated in float32, as every conversion computes.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx
import onnx.inliner
from onnx import TensorProto, helper, numpy_helper

from tests.attack.graphs.single_node import Runner

_MOST_ROUNDS = 100


class Unsupported(Exception):
    """Something that this evaluation cannot tell, such as the shape of what no round of a Loop made."""


class Hook:
    """What happens to values on their way; this one leaves them as they are."""

    def read(self, node: onnx.NodeProto, index: int, value: Any, constant: bool) -> Any:
        """Return what the node computes from."""
        return value

    def made(self, value: Any) -> Any:
        """Return what a node made, or was fed; constants are read as they are."""
        return value

    def output(self, producer: onnx.NodeProto | None, value: Any) -> Any:
        """Return an output of the model."""
        return value


class Interpreter:
    """Evaluates one model on several feeds or with several hooks."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = widened(inlined(model) if model.functions else model)
        ends = (*model.graph.input, *model.graph.output)
        self._half = {v.name for v in ends if v.type.tensor_type.elem_type == TensorProto.FLOAT16}
        self._runner = Runner(self.model.opset_import)
        self._hook = Hook()

    def run(self, feeds: Mapping[str, Any], hook: Hook) -> dict[str, Any]:
        """Return the outputs by name; those of float16 are rounded to it at the end."""
        self._hook = hook
        graph = self.model.graph
        values: ChainMap[str, Any] = ChainMap({})
        for name, value in feeds.items():
            values[name] = hook.made(value.astype(np.float32) if name in self._half else value)
        constants = self._enter(graph, values, frozenset())
        producers = self._evaluate(graph, values, constants)
        found = {}
        for output in graph.output:
            value = hook.output(producers.get(output.name), values[output.name])
            found[output.name] = value.astype(np.float16) if output.name in self._half else value
        return found

    def _enter(
        self, graph: onnx.GraphProto, values: ChainMap[str, Any], outer: frozenset[str]
    ) -> frozenset[str]:
        """Put the initializers of a graph among its values and return the names of all constants."""
        held = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
        held |= {tensor.values.name: dense(tensor) for tensor in graph.sparse_initializer}
        values.update(held)
        known = {*outer, *held}
        for node in graph.node:
            if node.op_type == "Constant" or (node.op_type == "Identity" and node.input[0] in known):
                known.add(node.output[0])
        return frozenset(known)

    def _evaluate(
        self, graph: onnx.GraphProto, values: ChainMap[str, Any], constants: frozenset[str]
    ) -> dict[str, onnx.NodeProto]:
        producers = {}
        for node in graph.node:
            read = [
                self._hook.read(node, i, values[name], name in constants) if name else None
                for i, name in enumerate(node.input)
            ]
            results = self._node(node, read, values, constants)
            for name, result in zip(node.output, results, strict=False):
                if name:
                    values[name] = result if name in constants else self._hook.made(result)
                    producers[name] = node
        return producers

    def _node(
        self, node: onnx.NodeProto, read: list[Any], values: ChainMap[str, Any], constants: frozenset[str]
    ) -> list[Any]:
        inner = {"If": self._if, "Loop": self._loop, "Scan": self._scan}.get(node.op_type)
        if inner:
            return inner(node, read, values, constants)
        if node.op_type in ("Optional", "OptionalGetElement"):
            return [read[0]]
        if node.op_type == "OptionalHasElement":
            return [np.asarray(read[0] is not None)]
        attribute = next((a for a in node.attribute if a.name == "sparse_value"), None)
        if attribute is not None:
            return [dense(attribute.sparse_tensor)]
        return self._plain(node, read, values, constants)

    def _plain(
        self, node: onnx.NodeProto, read: list[Any], around: ChainMap[str, Any], constants: frozenset[str]
    ) -> list[Any]:
        """Run a node under names of its places, for it may read one tensor twice and not the same of it."""
        alone = onnx.NodeProto(op_type=node.op_type, domain=node.domain)
        alone.attribute.extend(node.attribute)
        alone.input.extend(f"i{i}" if name else "" for i, name in enumerate(node.input))
        alone.output.extend(f"o{i}" if name else "" for i, name in enumerate(node.output))
        values = {f"i{i}": value for i, value in enumerate(read) if value is not None}
        fixed = {
            f"i{i}"
            for i, name in enumerate(node.input)
            if name in constants and read[i] is around[name]  # kernels pack weights and add in another order
        }
        found = self._runner.run(alone, values, fixed)
        return [found.get(name) for name in alone.output]

    def _body(
        self,
        node: onnx.NodeProto,
        name: str,
        given: list[Any],
        values: ChainMap[str, Any],
        constants: frozenset[str],
    ) -> list[Any]:
        body = next(a.g for a in node.attribute if a.name == name)
        inner = values.new_child()
        known = self._enter(body, inner, constants - {v.name for v in body.input})
        inner.update({v.name: value for v, value in zip(body.input, given, strict=True)})
        self._evaluate(body, inner, known)
        return [inner[value.name] for value in body.output]

    def _if(self, node: onnx.NodeProto, read: list[Any], *around: Any) -> list[Any]:
        return self._body(node, "then_branch" if bool(read[0].reshape(())) else "else_branch", [], *around)

    def _loop(self, node: onnx.NodeProto, read: list[Any], *around: Any) -> list[Any]:
        trips = _MOST_ROUNDS if read[0] is None else int(read[0].reshape(()))
        going = len(read) < 2 or read[1] is None or bool(read[1].reshape(()))
        states, collected = list(read[2:]), []
        for i in range(trips):
            if not going:
                break
            more, *results = self._body(node, "body", [np.asarray(i), np.asarray(True), *states], *around)
            states, going = results[: len(states)], bool(more.reshape(()))
            collected.append(results[len(states) :])
        if not collected and len(node.output) > len(states):
            raise Unsupported("a Loop of no rounds")
        return [*states, *(np.stack(items) for items in zip(*collected, strict=True))]

    def _scan(self, node: onnx.NodeProto, read: list[Any], *around: Any) -> list[Any]:
        attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        count = attrs["num_scan_inputs"]
        states, scanned = list(read[: len(read) - count]), read[len(read) - count :]
        if "scan_output_axes" in attrs:
            raise Unsupported("scan_output_axes")
        axes = attrs.get("scan_input_axes", [0] * count)
        back = attrs.get("scan_input_directions", [0] * count)
        lines = [
            np.moveaxis(a, axis, 0)[:: -1 if b else 1] for a, axis, b in zip(scanned, axes, back, strict=True)
        ]
        collected = []
        for elements in zip(*lines, strict=True):
            results = self._body(node, "body", [*states, *elements], *around)
            states = results[: len(states)]
            collected.append(results[len(states) :])
        ends = [np.stack(items) for items in zip(*collected, strict=True)]
        turned = attrs.get("scan_output_directions", [0] * len(ends))
        return [*states, *(a[:: -1 if b else 1] for a, b in zip(ends, turned, strict=True))]


def must_stay_float32(node: onnx.NodeProto, index: int) -> bool:
    """Return whether the schema wants an input of float32, as it does of the scales of Resize."""
    if node.op_type in ("Upsample", "Resize") and len(node.input) == 2:
        return index == 1  # scales, before opset 11
    if not onnx.defs.has(node.op_type, domain=node.domain):
        return False  # an operator of ONNX Runtime
    schema = onnx.defs.get_schema(node.op_type, domain=node.domain)
    parameter = schema.inputs[min(index, len(schema.inputs) - 1)]
    return bool(parameter.type_str == "tensor(float)")


def dense(tensor: onnx.SparseTensorProto) -> np.ndarray:
    """Return a sparse tensor as an array."""
    values, indices = numpy_helper.to_array(tensor.values), numpy_helper.to_array(tensor.indices)
    array = np.zeros(list(tensor.dims), values.dtype)
    at = tuple(indices.T) if indices.ndim == 2 else np.unravel_index(indices, array.shape)
    array[at] = values
    return array


def inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model without functions; onnx's inliner knows no defaults, so that calls name them all."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    defaults = {(f.domain, f.name, f.overload): f.attribute_proto for f in copy.functions}
    for one in (copy.graph, *copy.functions):
        for node in (node for graph in graphs(one) for node in graph.node):
            given = {attribute.name for attribute in node.attribute}
            known = defaults.get((node.domain, node.op_type, node.overload), ())
            node.attribute.extend(default for default in known if default.name not in given)
    return onnx.inliner.inline_local_functions(copy)


def graphs(graph: Any) -> Iterator[Any]:
    """Yield a graph, or a function, and all bodies in it."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                if body.node or body.output:
                    yield from graphs(body)


def widened(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of a model in which float32 stands for float16."""
    copy = onnx.shape_inference.infer_shapes(model)
    for graph in graphs(copy.graph):
        _round_bounds(graph)
        for tensor in graph.initializer:
            _widen(tensor)
        del graph.value_info[:]
        for value in (*graph.input, *graph.output):
            for kind in (value.type.tensor_type, value.type.sequence_type.elem_type.tensor_type):
                if kind.elem_type == TensorProto.FLOAT16:
                    kind.elem_type = TensorProto.FLOAT
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.name in ("to", "dtype") and attribute.i == TensorProto.FLOAT16:
                    attribute.i = TensorProto.FLOAT
                if attribute.type == onnx.AttributeProto.TENSOR:
                    _widen(attribute.t)
    return copy


def _round_bounds(graph: onnx.GraphProto) -> None:
    """Round the bounds that a Clip of float16 has as attributes: they are numbers of its type."""
    types = {v.name: v.type.tensor_type.elem_type for v in (*graph.value_info, *graph.output)}
    for node in graph.node:
        if node.op_type == "Clip" and types.get(node.output[0]) == TensorProto.FLOAT16:
            for attribute in node.attribute:
                attribute.f = float(np.float16(attribute.f))


def _widen(tensor: onnx.TensorProto) -> None:
    if tensor.data_type == TensorProto.FLOAT16:
        wide = numpy_helper.to_array(tensor).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(wide, tensor.name))
