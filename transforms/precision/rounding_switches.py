"""A model in which parts can be switched between BF16 and float at every run.

One session then tells what any choice of nodes that stay float is worth; nothing is built again between them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_graphsurgeon as gs

import ops
from transforms.graph import dtypes, walk
from transforms.graph.if_nodes import Branch, add_switch, choose
from transforms.graph.rewire import Insertions
from transforms.insert_cast import cast_pair
from transforms.plan.infinities import meant_infinities
from transforms.plan.rounding_plan import Rounding, RoundingPlan
from transforms.saturate import clip, clip_finite


def add_switches(
    graph: gs.Graph, plan: RoundingPlan, parts: Sequence[Sequence[gs.Node]], *, clipped: bool = False
) -> list[str]:
    """Round a graph, in place, as a plan says, except parts that are switched on; return the switches.

    Switches are new inputs of the model, given by name, of type bool and without dimensions, one for each
    part. The nodes of a part that is on compute in float32 as nodes do that a conversion excludes: they read
    inputs of the model, weights and what other such nodes make as they are, all else rounded. The plan must
    be one with ``round_before_relu``, which changes no number. ``clipped``: values are brought into
    the range of BF16 before they are rounded, as weights are anyway, except infinities that mean something.
    """
    return _Writer(graph, plan, parts, clipped).write()


class _Writer:
    """Lets each use of a rounded tensor read it as it is where the nodes at both ends are on, by an If."""

    def __init__(
        self, graph: gs.Graph, plan: RoundingPlan, parts: Sequence[Sequence[gs.Node]], clipped: bool
    ) -> None:
        self._graph, self._plan = graph, plan
        self._names, self._pair = walk.Names(graph), cast_pair("bfloat16")
        self._clipped, self._infinite = clipped, meant_infinities(graph, computed=clipped)
        self._switches = [add_switch(graph, f"part{i}", self._names) for i in range(len(parts))]
        owned = zip(self._switches, parts, strict=True)
        self._switch = {id(node): switch for switch, nodes in owned for node in nodes}
        self._both: dict[frozenset[int], gs.Tensor] = {}
        self._flags: list[gs.Node] = []

    def write(self) -> list[str]:
        """Rewrite the graph and return the names of the switches."""
        insertions = Insertions()
        for rounding in self._plan.roundings:
            insertions.add(rounding.owner, rounding.producer, self._nodes(rounding))
        insertions.place(self._graph)
        self._graph.nodes[:0] = self._flags
        return [str(switch.name) for switch in self._switches]

    def _nodes(self, rounding: Rounding) -> list[gs.Node]:
        """Redirect the uses of a tensor that is rounded; return the nodes that make what they read."""
        raw, producer = rounding.tensor, rounding.producer
        nodes: list[gs.Node] = []
        reads: dict[int, gs.Tensor] = {True: raw}  # by id of a switch

        def _read(is_on: gs.Tensor | bool) -> gs.Tensor:
            """Return what is read where a switch is on, always (True), or never (False)."""
            key = is_on if isinstance(is_on, bool) else id(is_on)
            if key not in reads:
                low, made = self._rounded(raw)
                if isinstance(is_on, gs.Tensor):
                    reads[key] = self._like(raw, "chosen")
                    made = [self._choice(is_on, raw, low, made, reads[key])]
                else:
                    reads[key] = low
                nodes.extend(made)
            return reads[key]

        is_made = True if producer is None else self._is_on(producer)
        for node, index in rounding.uses:
            node.inputs[index] = _read(self._and(is_made, self._is_on(node)))
        if rounding.is_output:
            output = self._like(raw, "raw")
            output.name, raw.name = raw.name, output.name
            nodes.append(self._copy(_read(is_made), output))
            self._graph.outputs = [output if one is raw else one for one in self._graph.outputs]
        return nodes

    def _choice(
        self, switch: gs.Variable, raw: gs.Tensor, low: gs.Tensor, made: list[gs.Node], target: gs.Tensor
    ) -> gs.Node:
        """Return an If that makes the target: a tensor as it is where a switch is on, else rounded."""
        high = self._like(raw, "high")
        if not made:  # a constant
            constant, low = low, self._like(raw, "low")
            made = [self._copy(constant, low)]
        return choose(
            self._graph,
            self._names.derive(raw.name, "choose"),
            switch,
            Branch([self._copy(raw, high)], [high]),
            Branch(made, [low]),
            [target],
        )

    def _copy(self, source: gs.Tensor, target: gs.Tensor) -> gs.Node:
        return gs.Node("Identity", self._names.derive(target.name, "copy"), {}, [source], [target])

    def _is_on(self, node: gs.Node) -> gs.Tensor | bool:
        return self._switch.get(id(node), self._plan.keeps(node))

    def _and(self, a: gs.Tensor | bool, b: gs.Tensor | bool) -> gs.Tensor | bool:
        if isinstance(a, bool) or a is b:
            return b if a else False
        if isinstance(b, bool):
            return a if b else False
        key = frozenset((id(a), id(b)))
        if key not in self._both:
            self._both[key] = gs.Variable(self._names.derive(a.name, "both"), np.bool_, [])
            name = self._names.derive(a.name, "and")
            self._flags.append(gs.Node("And", name, {}, [a, b], [self._both[key]]))
        return self._both[key]

    def _rounded(self, source: gs.Tensor) -> tuple[gs.Tensor, list[gs.Node]]:
        """Return a tensor rounded, and the nodes that round it."""
        is_meant = id(source) in self._infinite
        if isinstance(source, gs.Constant):
            values = (clip_finite if is_meant else clip)(source.values)
            rounded = np.asarray(ops.from_bfloat16(ops.to_bfloat16(values)))
            return gs.Constant(self._names.derive(source.name, "low"), rounded), []
        nodes = []
        if self._clipped and not is_meant:
            limits = (np.array(-dtypes.BFLOAT16_MAX), np.array(dtypes.BFLOAT16_MAX))
            bounds = [gs.Constant(self._names.derive(source.name, "bound"), limit) for limit in limits]
            within = self._like(source, "clipped")
            name = self._names.derive(within.name, "clip")
            nodes.append(gs.Node("Clip", name, {}, [source, *bounds], [within]))
            source = within
        half = dtypes.variable(self._names.derive(source.name, "bf16"), dtypes.BFLOAT16, source)
        low = self._like(source, "low")
        nodes.append(self._pair.downcast(self._names, source, half))
        nodes.append(self._pair.upcast(self._names, half, low))
        return low, nodes

    def _like(self, tensor: gs.Tensor, suffix: str) -> gs.Variable:
        return gs.Variable(self._names.derive(tensor.name, suffix), tensor.dtype, tensor.shape)
