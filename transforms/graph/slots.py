"""How values pass through nodes and bodies: in, out, and from one iteration to the next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from transforms.graph import walk


@dataclass(frozen=True)
class Slot:
    """The indices at which one value passes through a node; None where it does not."""

    bodies: tuple[gs.Graph, ...]
    node_input: int | None
    body_input: int | None
    body_output: int | None
    node_output: int | None


def slots(node: gs.Node) -> list[Slot]:
    """Return the slots of an If, a Loop or a Scan; empty for other nodes."""
    return list(_SLOTS[node.op](node)) if node.op in _SLOTS else []


def passed_on(node: gs.Node) -> Iterator[tuple[gs.Tensor, gs.Tensor]]:
    """Yield pairs of a tensor passed into a body, to the next iteration or out, and its name there."""
    for slot in slots(node) or _map_slots(node):
        outer_input = None if slot.node_input is None else node.inputs[slot.node_input]
        outer_output = None if slot.node_output is None else node.outputs[slot.node_output]
        if outer_input is not None and outer_output is not None:
            yield outer_input, outer_output  # without any round
        for body in slot.bodies:
            read = None if slot.body_input is None else body.inputs[slot.body_input]
            result = None if slot.body_output is None else body.outputs[slot.body_output]
            pairs = (outer_input, read), (result, read), (result, outer_output)
            yield from ((a, b) for a, b in pairs if a is not None and b is not None)


def _if_slots(node: gs.Node) -> Iterator[Slot]:
    bodies = (node.attrs["then_branch"], node.attrs["else_branch"])
    for index in range(len(node.outputs)):
        yield Slot(bodies, None, None, index, index)


def _loop_slots(node: gs.Node) -> Iterator[Slot]:
    body = node.attrs["body"]
    states = len(body.inputs) - 2  # after the iteration number and the condition
    for index in range(len(node.outputs)):
        carried = index < states
        yield Slot((body,), index + 2 if carried else None, index + 2 if carried else None, index + 1, index)


def _scan_slots(node: gs.Node) -> Iterator[Slot]:
    body = node.attrs["body"]
    states = len(node.inputs) - node.attrs["num_scan_inputs"]
    for index in range(states):
        yield Slot((body,), index, index, index, index)
    for index in range(states, len(node.inputs)):
        yield Slot((body,), index, index, None, None)
    for index in range(states, len(node.outputs)):
        yield Slot((body,), None, None, index, index)


def _map_slots(node: gs.Node) -> Iterator[Slot]:
    """Yield the slots of a SequenceMap, whose body takes elements of sequences; empty for other nodes."""
    for body in walk.bodies(node):
        yield from (Slot((body,), index, index, None, None) for index in range(len(body.inputs)))
        yield from (Slot((body,), None, None, index, index) for index in range(len(body.outputs)))


_SLOTS: dict[str, Callable[[gs.Node], Iterator[Slot]]] = {
    "If": _if_slots,
    "Loop": _loop_slots,
    "Scan": _scan_slots,
}

Carries = Callable[[gs.Node, int], bool]
"""Whether the values of an input of a node reach its outputs."""


class Spread:
    """The paths of values through a graph and its bodies: in, out and from iteration to iteration."""

    def __init__(self, graph: gs.Graph, carries: Carries) -> None:
        """Find how values pass through control flow; ``carries`` decides for all other nodes."""
        self._carries = carries
        self._after: dict[int, list[gs.Tensor]] = {}
        self._before: dict[int, list[gs.Tensor]] = {}
        for node in walk.nodes(graph):
            for outer, read in passed_on(node):
                self._after.setdefault(id(outer), []).append(read)
                self._before.setdefault(id(read), []).append(outer)

    def onwards(self, sources: Iterable[gs.Tensor]) -> dict[int, gs.Tensor]:
        """Return the tensors, by id, that values of the sources reach, including the sources."""
        return _reach(sources, self._next)

    def backwards(self, ends: Iterable[gs.Tensor]) -> dict[int, gs.Tensor]:
        """Return the tensors, by id, whose values reach the ends, including the ends."""
        return _reach(ends, self._last)

    def _next(self, tensor: gs.Tensor) -> list[gs.Tensor]:
        carried = (node.outputs for node, index in walk.uses(tensor) if self._carries(node, index))
        return [*self._after.get(id(tensor), ()), *(output for outputs in carried for output in outputs)]

    def _last(self, tensor: gs.Tensor) -> list[gs.Tensor]:
        node = walk.producer(tensor)
        read = enumerate(node.inputs) if node is not None else ()
        carried = [source for index, source in read if node is not None and self._carries(node, index)]
        return [*self._before.get(id(tensor), ()), *carried]


def _reach(
    starts: Iterable[gs.Tensor], neighbours: Callable[[gs.Tensor], Iterable[gs.Tensor]]
) -> dict[int, gs.Tensor]:
    reached: dict[int, gs.Tensor] = {}
    waiting = list(starts)
    while waiting:
        tensor = waiting.pop()
        if id(tensor) not in reached:
            reached[id(tensor)] = tensor
            waiting += neighbours(tensor)
    return reached
