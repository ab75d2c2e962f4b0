"""The SQNR of a conversion to BF16 for any choice of parts that stay float, from one open session."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx_graphsurgeon as gs

from transforms.graph import dtypes
from transforms.graph.selection import NodeSet, counterparts, select
from transforms.keep_float.bf16_error import Bf16Error
from transforms.keep_float.fused_groups import find_fused_groups
from transforms.keep_float.rounding_switches import add_switches
from transforms.model.copy_graph import copy_graph
from transforms.pipelines.convert_bf16 import Bf16Options, Conversion, prepare_bf16
from transforms.plan.rounding_plan import RoundingPlan
from transforms.saturate import saturate_fills
from transforms.simulate_bf16 import input_tensors


class SwitchedRounding:
    """A model whose :attr:`parts` can be switched between BF16 and float.

    It computes what the converted model does, up to the order of float32 sums, while what is fused stays
    fused: excluding a node undoes the fusions that it takes part in, which float arithmetic does not notice.
    """

    def __init__(self, error: Bf16Error, options: Bf16Options) -> None:
        """Prepare the model as a conversion with these options does, and open it with its switches."""
        self._error = error
        graph = copy_graph(error.graph)
        kept = select(graph, names=options.exclude_node, op_types=options.exclude_op)
        loaded = copy_graph(graph)
        exclude = prepare_bf16(graph, options, Conversion(options.format)).resolve_in(graph)
        exclude |= NodeSet(_new_casts(loaded, graph))
        saturate_fills(graph, exclude=exclude)
        self.parts = find_fused_groups(loaded, graph, kept.resolve_in(loaded), exclude)
        plan = RoundingPlan(graph, dtypes.BFLOAT16, exclude=exclude, round_before_relu=True)
        if options.format == "simulate_bf16":
            _leave_activations(plan, graph)
        nodes = [part.nodes for part in self.parts]
        self._switches = add_switches(graph, plan, nodes, clipped=options.saturate_activations)
        self._model = error.opened(graph)
        self._known: dict[tuple[frozenset[int], int], float] = {}

    def keeping(self, parts: Iterable[int], every: int = 1) -> float:
        """Return the SQNR with these parts in float, given by their places, on every n-th sample.

        What was asked for before is not computed again.
        """
        key = frozenset(parts), every
        if key not in self._known:
            flags = {name: np.array(i in key[0]) for i, name in enumerate(self._switches)}
            self._known[key] = self._error.of(self._model, flags, every)
        return self._known[key]


def _new_casts(loaded: gs.Graph, prepared: gs.Graph) -> list[gs.Node]:
    """Return the new Casts of float16 inputs: they are float for each node that is, and round for others."""
    known = {id(node) for found in counterparts(loaded, prepared).values() for node in found}
    casts = [tensor.inputs[0] for tensor in input_tensors(prepared) if tensor.inputs]
    return [node for node in casts if id(node) not in known]


def _leave_activations(plan: RoundingPlan, graph: gs.Graph) -> None:
    inputs = {id(tensor) for tensor in input_tensors(graph)}
    plan.roundings = [
        one for one in plan.roundings if isinstance(one.tensor, gs.Constant) or id(one.tensor) in inputs
    ]
