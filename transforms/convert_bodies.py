"""Inputs and outputs of the bodies of If, Loop and Scan, converted to another element type."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from transforms.graph import dtypes, schemas, walk
from transforms.graph.rewire import detach
from transforms.graph.selection import Exclusion, resolve
from transforms.graph.slots import Slot, slots
from transforms.insert_cast import cast_pair
from transforms.plan.rounding_plan import is_downcast, is_upcast
from transforms.plan.write_roundings import RoundingPair


def convert_bodies(graph: gs.Graph, dtype: str, *, exclude: Exclusion = None) -> int:
    """Let control flow carry ``dtype`` if every float32 value that it carries is rounded around it.

    To be called on a graph with all pairs of Casts (:func:`transforms.insert_cast.insert_cast` with
    ``round_before_relu``). The Casts around a carried value move into the body: its producer there is
    followed by a downcast, and its readers no longer need one. Returns how many values changed their
    type; a value stays float32 if the schema does not allow the type, if a node reads it unrounded, and
    around excluded nodes.
    """
    pair = cast_pair(dtype)
    names = walk.Names(graph)
    opsets = schemas.versions(graph)
    kept = resolve(exclude, graph)
    count = 0
    for inner in walk.graphs(graph):
        outputs = {id(tensor) for tensor in inner.outputs}
        for node in inner.nodes:
            found = slots(node)
            if found and node not in kept and schemas.allows(node, pair.element, opsets):
                for slot in found:
                    count += _convert(node, slot, pair, names, outputs)
    for inner in walk.graphs(graph):
        inner.nodes = [node for node in inner.nodes if node.outputs]  # without the Casts that moved
    return count


def _convert(node: gs.Node, slot: Slot, pair: RoundingPair, names: walk.Names, outputs: set[int]) -> int:
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
        absorb_downcasts(node, slot.node_output, pair.element)
    return 1


def _is_rounded_around(node: gs.Node, slot: Slot, element: int, outputs: set[int]) -> bool:
    if slot.node_input is not None:
        source = node.inputs[slot.node_input]
        if not dtypes.is_type(source, dtypes.FLOAT) or not any(is_upcast(n, element) for n in source.inputs):
            return False
    if slot.node_output is not None and not is_narrowed(node.outputs[slot.node_output], element, outputs):
        return False
    return all(_is_rounded_inside(body, slot, element) for body in slot.bodies)


def _is_rounded_inside(body: gs.Graph, slot: Slot, element: int) -> bool:
    if slot.body_output is not None and not dtypes.is_type(body.outputs[slot.body_output], dtypes.FLOAT):
        return False
    if slot.body_input is None:
        return True
    tensor = body.inputs[slot.body_input]
    own = {id(body.outputs[slot.body_output])} if slot.body_output is not None else set()
    others = {id(output) for output in body.outputs} - own
    return is_narrowed(tensor, element, others)


def is_narrowed(tensor: gs.Tensor, element: int, outputs: set[int]) -> bool:
    """Return whether a float32 tensor, not one of the outputs, is read by downcasts alone."""
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
    known = [node.outputs[0] for node in tensor.outputs if is_downcast(node, pair.element)]
    if not known:
        known = [dtypes.variable(names.derive(tensor.name, pair.suffix), pair.element, tensor)]
        cast = pair.downcast(names, tensor, known[0])
        producers = [i for i, node in enumerate(body.nodes) if any(t is tensor for t in node.outputs)]
        body.nodes.insert(producers[0] + 1 if producers else 0, cast)
    body.outputs[index] = known[0]


def absorb_downcasts(node: gs.Node, index: int, element: int) -> None:
    """Make the node itself produce the outputs of the downcasts after one of its outputs."""
    casts = list({id(cast): cast for cast in node.outputs[index].outputs}.values())
    if not casts:
        node.outputs[index].dtype = element
        return
    first, *others = [cast.outputs[0] for cast in casts]
    for cast in casts:
        detach(cast)
    for other in others:
        walk.redirect(other, first)
    node.outputs[index] = first
