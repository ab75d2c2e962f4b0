"""A model in which parts can be switched between BF16 and float at every run.

One session then tells what any choice of nodes that stay float is worth; nothing is built anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_graphsurgeon as gs

import ops
from transforms.graph import dtypes, walk
from transforms.graph.if_nodes import Branch, add_switch, choose, copied
from transforms.graph.rewire import Insertions, detach
from transforms.insert_cast import cast_pair
from transforms.plan.infinities import meant_infinities
from transforms.plan.rounding_plan import Edge, Rounding, RoundingPlan, reach
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
    """Moves each node of a part into both branches of an If: reading float, and reading what is rounded."""

    def __init__(
        self, graph: gs.Graph, plan: RoundingPlan, parts: Sequence[Sequence[gs.Node]], clipped: bool
    ) -> None:
        self._graph, self._plan = graph, plan
        self._names = walk.Names(graph)
        self._round = _Round(self._names)
        self._clipped, self._infinite = clipped, meant_infinities(graph, computed=clipped)
        self._switches = [add_switch(graph, f"part{i}", self._names) for i in range(len(parts))]
        owned = zip(self._switches, parts, strict=True)
        self._switch = {id(node): switch for switch, nodes in owned for node in nodes}
        self._raw = _read_raw(graph, plan)
        self._chosen: dict[int, gs.Variable] = {}  # what a part makes, rounded where it is off, by id
        self._float_inputs: dict[Edge, gs.Tensor] = {}
        self._round_inputs: dict[Edge, gs.Tensor] = {}
        self._insertions = Insertions()

    def write(self) -> list[str]:
        """Rewrite the graph and return the names of the switches."""
        for rounding in self._plan.roundings:
            self._plan_reads(rounding)
        self._insertions.place(self._graph, self._new)
        return [str(switch.name) for switch in self._switches]

    def _plan_reads(self, rounding: Rounding) -> None:
        """Say what each use of a tensor that is rounded reads, where its node is on and where it is off."""
        tensor, producer = rounding.tensor, rounding.producer
        switched = producer is not None and id(producer) in self._switch
        high: gs.Tensor = tensor
        if switched:
            high = self._chosen[id(tensor)] = _like(tensor, "chosen", self._names)
        low = self._low(rounding, high)
        if not (switched or producer is None or self._plan.keeps(producer)):
            high = low
        for node, index in rounding.uses:
            self._float_inputs[id(node), index] = high
            self._round_inputs[id(node), index] = high if self._plan.keeps(node) else low
        if rounding.is_output:
            high.name, tensor.name = tensor.name, self._names.derive(tensor.name, "raw")
            self._graph.outputs = [high if output is tensor else output for output in self._graph.outputs]

    def _low(self, rounding: Rounding, source: gs.Tensor) -> gs.Tensor:
        """Return the tensor rounded; nodes that round it will stand after what makes it."""
        if isinstance(source, gs.Constant):
            return gs.Constant(self._names.derive(source.name, "low"), self._values(source))
        low = _like(source, "low", self._names)
        self._insertions.add(rounding.owner, rounding.producer, self._nodes(rounding.tensor, source, low))
        return low

    def _new(self, node: gs.Node) -> gs.Node:
        """Return what takes the place of a node."""
        if id(node) not in self._switch:
            for index, tensor in enumerate(node.inputs):
                node.inputs[index] = self._round_inputs.get((id(node), index), tensor)
            return node
        on = self._branch(node, self._float_inputs, is_on=True)
        off = self._branch(node, self._round_inputs, is_on=False)
        results = [one for tensor in node.outputs for one in self._results(tensor)]
        detach(node)
        name = self._names.derive(node.name, "switched")
        return choose(self._graph, name, self._switch[id(node)], on, off, results)

    def _results(self, tensor: gs.Tensor) -> list[gs.Tensor]:
        """Return what an If hands out for an output of its node: the chosen value, the raw one if read."""
        chosen = self._chosen.get(id(tensor))
        found = [] if chosen is None else [chosen]
        if not tensor.is_empty() and (chosen is None or id(tensor) in self._raw):
            found.append(tensor)
        return found

    def _branch(self, node: gs.Node, reads: Mapping[Edge, gs.Tensor], *, is_on: bool) -> Branch:
        inputs = [reads.get((id(node), i), tensor) for i, tensor in enumerate(node.inputs)]
        made = [t if t.is_empty() else _like(t, "made", self._names) for t in node.outputs]
        nodes, results = [copied(node, self._names.derive(node.name, "copy"), inputs, made)], []
        for tensor, raw in zip(node.outputs, made, strict=True):
            for wanted in self._results(tensor):
                if wanted is tensor:
                    results.append(raw)
                    continue
                results.append(_like(raw, "result", self._names))
                nodes += self._handed_on(raw, results[-1]) if is_on else self._nodes(tensor, raw, results[-1])
        return Branch(nodes, results)

    def _nodes(self, tensor: gs.Tensor, source: gs.Tensor, target: gs.Tensor) -> list[gs.Node]:
        """Return nodes that make the target, which is a tensor rounded, of the source."""
        clipped = self._clipped and id(tensor) not in self._infinite
        return self._round.nodes(source, target, clipped=clipped)

    def _values(self, constant: gs.Constant) -> np.ndarray:
        clipped = clip_finite if id(constant) in self._infinite else clip
        return np.asarray(ops.from_bfloat16(ops.to_bfloat16(clipped(constant.values))))

    def _handed_on(self, source: gs.Tensor, target: gs.Tensor) -> list[gs.Node]:
        return [gs.Node("Identity", self._names.derive(target.name, "copy"), {}, [source], [target])]


class _Round:
    """Writes the nodes that round a tensor."""

    def __init__(self, names: walk.Names) -> None:
        self._names, self._pair = names, cast_pair("bfloat16")

    def nodes(self, source: gs.Tensor, target: gs.Tensor, *, clipped: bool) -> list[gs.Node]:
        """Return nodes that make the target of the source, brought into the range of BF16 if ``clipped``."""
        nodes = []
        if clipped:
            limits = (np.array(-dtypes.BFLOAT16_MAX), np.array(dtypes.BFLOAT16_MAX))
            bounds = [gs.Constant(self._names.derive(target.name, "bound"), limit) for limit in limits]
            within = _like(source, "clipped", self._names)
            nodes = [
                gs.Node("Clip", self._names.derive(within.name, "clip"), {}, [source, *bounds], [within])
            ]
            source = within
        low = dtypes.variable(self._names.derive(target.name, "bf16"), dtypes.BFLOAT16, source)
        nodes.append(self._pair.downcast(self._names, source, low))
        nodes.append(self._pair.upcast(self._names, low, target))
        return nodes


def _read_raw(graph: gs.Graph, plan: RoundingPlan) -> set[int]:
    """Return the ids of tensors of which something reads the value that is not rounded."""
    rounded, handed_out = reach(plan.roundings)
    found = {
        id(tensor)
        for node in walk.nodes(graph)
        for index, tensor in enumerate(node.inputs)
        if (id(node), index) not in rounded
    }
    for inner in walk.graphs(graph):
        found |= {id(t) for t in inner.outputs if inner is not graph or id(t) not in handed_out}
    return found


def _like(tensor: gs.Tensor, suffix: str, names: walk.Names) -> gs.Variable:
    return gs.Variable(names.derive(tensor.name, suffix), tensor.dtype, tensor.shape)
