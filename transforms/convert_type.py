"""True bfloat16: nodes that compute on bfloat16 tensors where the schemas of their operators allow it."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx_graphsurgeon as gs

from transforms.graph import dtypes, schemas, walk
from transforms.graph.rewire import detach, drop
from transforms.graph.selection import Choice, Exclusion, NodeSet, resolve
from transforms.graph.slots import Slot, slots
from transforms.insert_cast import cast_pair, insert_cast
from transforms.plan.rounding_plan import RoundingPair, is_downcast, is_upcast


def convert_type(
    graph: gs.Graph,
    dtype: str = "bfloat16",
    *,
    nodes: Choice | None = None,
    exclude: Exclusion = None,
    keep_io_types: bool = True,
    kernels: Collection[str] = (),
) -> int:
    """Make float32 nodes compute in ``dtype``; return how many tensors were rounded and nodes changed.

    First every tensor gets its pair of Casts (:func:`transforms.insert_cast.insert_cast`, also before Relu);
    then each node between upcasts and downcasts, whose schema at the model's opset allows the type at every
    float input and output, is connected to the inside of the pairs, and the Casts around it are removed. Both
    forms compute the same numbers if a node rounds its float32 result once. All other nodes stay in float32
    between Casts: operators without that type, excluded nodes, arithmetic on shapes and positions, producers
    of inputs that must stay float32. Inputs and outputs of the bodies of If, Loop and Scan are converted like
    any tensor. ``kernels``: the operators for which the runtime has kernels of the type, all if empty; other
    operators stay in float32 between Casts, too.
    """
    excluded = resolve(
        exclude, graph, nodes
    )  # once: later, Casts of their inputs would belong to the selection
    rounded = insert_cast(graph, dtype, exclude=excluded, keep_io_types=keep_io_types, round_before_relu=True)
    carried = convert_bodies(graph, dtype, exclude=excluded)
    retyped = _Converter(graph, cast_pair(dtype).element, excluded, kernels).convert()
    if carried or retyped:
        _drop_dead_casts(graph)
    return rounded + carried + retyped


_OUTPUT_TYPES = ("Cast", "ConstantOfShape")
"""Operators whose output type is set by an attribute."""


class _Converter:
    def __init__(self, graph: gs.Graph, element: int, exclude: NodeSet, kernels: Collection[str]) -> None:
        self._graph, self._element, self._exclude, self._kernels = graph, element, exclude, kernels
        self._opsets = schemas.versions(graph)

    def convert(self) -> int:
        """Convert the nodes that can be converted, and return their number."""
        count = 0
        for inner in walk.graphs(self._graph):
            outputs = {id(tensor) for tensor in inner.outputs}
            for node in inner.nodes:
                if self._can_convert(node, outputs):
                    self._convert(node)
                    count += 1
        return count

    def _can_convert(self, node: gs.Node, graph_outputs: set[int]) -> bool:
        if is_downcast(node, self._element) or is_upcast(node, self._element):
            return False
        if node in self._exclude or any(walk.bodies(node)):
            return False
        if self._kernels and node.op not in (*self._kernels, *_OUTPUT_TYPES):
            return False
        variables = (
            variable for variable in (*node.inputs, *node.outputs) if isinstance(variable, gs.Variable)
        )
        if any(variable.type != "tensor_type" for variable in variables):
            return False  # elements of a sequence would have to change along its whole path
        if any(not t.is_empty() and dtypes.element_type(t) is None for t in node.inputs):
            return False  # it may be float32, which does not fit the element type
        inputs = [i for i in _floats(node.inputs) if not schemas.must_stay_float32(node, i, self._opsets)]
        outputs = _floats(node.outputs)
        if not (inputs or outputs) or not schemas.allows(node, self._element, self._opsets):
            return False
        return (
            all(any(is_upcast(p, self._element) for p in node.inputs[i].inputs) for i in inputs)
            and all(_is_narrowed(node.outputs[i], self._element, graph_outputs) for i in outputs)
            and all(
                node.op in _OUTPUT_TYPES or schemas.output_follows(node, i, inputs, self._opsets)
                for i in outputs
            )
        )

    def _convert(self, node: gs.Node) -> None:
        for index in _floats(node.inputs):
            if not schemas.must_stay_float32(node, index, self._opsets):
                node.inputs[index] = node.inputs[index].inputs[0].inputs[0]
        for index in _floats(node.outputs):
            _absorb_downcasts(node, index, self._element)
        if node.op in _OUTPUT_TYPES and _floats(node.outputs) == []:
            _set_output_type(node, self._element)


def _floats(tensors: list[gs.Tensor]) -> list[int]:
    return [index for index, tensor in enumerate(tensors) if dtypes.is_type(tensor, dtypes.FLOAT)]


def _set_output_type(node: gs.Node, element: int) -> None:
    """Set the attribute for the output type of a Cast or ConstantOfShape to the element type."""
    if node.op == "ConstantOfShape":
        value = node.attrs.get("value")
        values = np.zeros(1, np.float32) if value is None else value.values
        name = getattr(value, "name", "value")
        node.attrs["value"] = gs.Constant(name, values.astype(dtypes.NUMPY[element]))
    elif node.attrs["to"] == dtypes.FLOAT:
        node.attrs["to"] = element


def _drop_dead_casts(graph: gs.Graph) -> None:
    """Remove Casts without consumers that are not outputs of their graph."""
    for inner in walk.graphs(graph):
        outputs = {id(tensor) for tensor in inner.outputs}
        casts = [node for node in inner.nodes if node.op == "Cast"]
        drop(inner, [n for n in casts if not any(t.outputs or id(t) in outputs for t in n.outputs)])


def convert_bodies(graph: gs.Graph, dtype: str, *, exclude: Exclusion = None) -> int:
    """Let control flow carry ``dtype`` if every float32 value that it carries is rounded around it.

    The graph must already have all pairs of Casts (:func:`transforms.insert_cast.insert_cast` with
    ``round_before_relu``). The Casts around a carried value move into the body: its producer there is
    followed by a downcast, and its consumers no longer need one. Returns how many values changed their type.
    A value stays float32 if the schema does not allow the type, if a node reads it unrounded, and around
    excluded nodes.
    """
    pair = cast_pair(dtype)
    names = walk.Names(graph)
    opsets = schemas.versions(graph)
    excluded = resolve(exclude, graph)
    count = 0
    for inner in walk.graphs(graph):
        outputs = {id(tensor) for tensor in inner.outputs}
        for node in inner.nodes:
            node_slots = slots(node)
            if node_slots and node not in excluded and schemas.allows(node, pair.element, opsets):
                count += sum(_convert_slot(node, slot, pair, names, outputs) for slot in node_slots)
    for inner in walk.graphs(graph):
        inner.nodes = [node for node in inner.nodes if node.outputs]  # without the Casts that moved
    return count


def _convert_slot(node: gs.Node, slot: Slot, pair: RoundingPair, names: walk.Names, outputs: set[int]) -> int:
    if not _is_rounded_around(node, slot, pair.element, outputs):
        return 0
    if slot.node_input is not None:
        node.inputs[slot.node_input] = node.inputs[slot.node_input].inputs[0].inputs[0]
    for body in slot.bodies:
        if slot.body_input is not None:
            _narrow_body_input(body, body.inputs[slot.body_input], pair.element)
        if slot.body_output is not None:
            _narrow_body_output(body, slot.body_output, pair, names)
    if slot.node_output is not None:
        _absorb_downcasts(node, slot.node_output, pair.element)
    return 1


def _is_rounded_around(node: gs.Node, slot: Slot, element: int, outputs: set[int]) -> bool:
    if slot.node_input is not None:
        source = node.inputs[slot.node_input]
        if not dtypes.is_type(source, dtypes.FLOAT) or not any(is_upcast(n, element) for n in source.inputs):
            return False
    if slot.node_output is not None and not _is_narrowed(node.outputs[slot.node_output], element, outputs):
        return False
    return all(_is_rounded_inside(body, slot, element) for body in slot.bodies)


def _is_rounded_inside(body: gs.Graph, slot: Slot, element: int) -> bool:
    if slot.body_output is not None and not dtypes.is_type(body.outputs[slot.body_output], dtypes.FLOAT):
        return False
    if slot.body_input is None:
        return True
    tensor = body.inputs[slot.body_input]
    carried_output = {id(body.outputs[slot.body_output])} if slot.body_output is not None else set()
    further_outputs = {id(output) for output in body.outputs} - carried_output
    return _is_narrowed(tensor, element, further_outputs)


def _is_narrowed(tensor: gs.Tensor, element: int, outputs: set[int]) -> bool:
    """Return whether a tensor is float32, not one of the outputs, and read only by downcasts."""
    if not dtypes.is_type(tensor, dtypes.FLOAT) or id(tensor) in outputs:
        return False
    return all(is_downcast(user, element) for user in tensor.outputs)


def _narrow_body_input(body: gs.Graph, tensor: gs.Tensor, element: int) -> None:
    for cast in {id(cast): cast for cast in tensor.outputs}.values():
        low = cast.outputs[0]
        detach(cast)
        walk.redirect(low, tensor)
        body.outputs = [tensor if output is low else output for output in body.outputs]
    tensor.dtype = element


def _narrow_body_output(body: gs.Graph, index: int, pair: RoundingPair, names: walk.Names) -> None:
    """Make the body output the rounded value, of an existing pair or of a new downcast."""
    tensor = body.outputs[index]
    if dtypes.is_type(tensor, pair.element):
        return  # an input of the body that it passes on
    if any(is_upcast(node, pair.element) for node in tensor.inputs):
        body.outputs[index] = tensor.inputs[0].inputs[0]
        return
    rounded = [node.outputs[0] for node in tensor.outputs if is_downcast(node, pair.element)]
    if not rounded:
        rounded = [dtypes.variable(names.derive(tensor.name, pair.suffix), pair.element, tensor)]
        cast = pair.downcast(names, tensor, rounded[0])
        producers = [i for i, node in enumerate(body.nodes) if any(t is tensor for t in node.outputs)]
        body.nodes.insert(producers[0] + 1 if producers else 0, cast)
    body.outputs[index] = rounded[0]


def _absorb_downcasts(node: gs.Node, index: int, element: int) -> None:
    """Make the node itself produce the outputs of the downcasts after one of its outputs."""
    casts = list({id(cast): cast for cast in node.outputs[index].outputs}.values())
    if not casts:
        node.outputs[index].dtype = element
        return
    first, *further = [cast.outputs[0] for cast in casts]
    for cast in casts:
        detach(cast)
    for other in further:
        walk.redirect(other, first)
    node.outputs[index] = first
