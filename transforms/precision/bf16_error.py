"""What a conversion to BF16 costs: the SQNR of the model that would be written, on samples.

For any choice of parts that stay float there is also one open session, in which they are switched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import Feed
from transforms.conversion.convert_bf16 import Bf16Options, Conversion, convert_bf16, prepare_bf16
from transforms.graph import dtypes, walk
from transforms.graph.number_shapes import judged_tensors
from transforms.graph.output_view import output_view
from transforms.graph.selection import NodeSet, counterparts, select
from transforms.model.copy_graph import copy_graph
from transforms.plan.rounding_plan import RoundingPlan
from transforms.precision.fused_groups import find_fused_groups
from transforms.precision.rounding_switches import add_switches
from transforms.run.instrumented_model import InstrumentedModel, open_showing
from transforms.runtime.session import OpenModel, RunOptions
from transforms.saturate import saturate_fills
from transforms.search.output_metrics import Outputs, least_sqnr
from transforms.simulate_bf16 import input_tensors
from transforms.widen_bf16 import widen_bf16

Shown = OpenModel | InstrumentedModel[str]

Progress = Callable[[int, str], None]
"""Told how many models were measured, and the SQNR of the last in words."""


class Bf16Error:
    """Samples with the outputs of the float model; tells how far from those a conversion is.

    All float outputs of all samples count as one vector: 10 log10(sum f^2 / sum (f - q)^2), in dB; of a model
    with logits, these without the mean of each row, and no caches. Where numbers decide how many rows an
    output has, what it is made of before counts instead.
    """

    def __init__(
        self,
        graph: gs.Graph,
        options: Bf16Options,
        feeds: Sequence[Feed],
        run: RunOptions | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Run the float model as it was loaded, which is not changed; ValueError without a float output."""
        self.graph, self.options, self.feeds, self.run = graph, options, feeds, run
        self._progress, self._count = progress, 0
        self._known: dict[frozenset[str], float] = {}
        judged = judged_tensors(graph)
        if any(judged[name] != [name] for name in judged):
            judged = judged_tensors(graph, walk.tensors(self._converted(())))
        self._view = output_view(graph)
        self._names = self._view.counted(dict.fromkeys(chain(*judged.values()))) or list(judged)
        model = self.opened(graph)
        self._expected = [self._view.of(_floats(model.run(feed, self._names))) for feed in feeds]
        if not all(self._expected):
            raise ValueError("the model has no float output to measure the SQNR of")

    def keeping(self, patterns: Iterable[str]) -> float:
        """Return the SQNR of the model with more nodes excluded, through the very code that converts.

        bfloat16 nodes run in float32 with their results rounded (:func:`transforms.widen_bf16.widen_bf16`).
        A choice that was asked for before is not converted again.
        """
        key = frozenset(patterns)
        if key not in self._known:
            self._known[key] = self.of(self.opened(self._converted(key)))
        return self._known[key]

    def _converted(self, patterns: Iterable[str]) -> gs.Graph:
        graph = copy_graph(self.graph)
        convert_bf16(graph, self.options.excluding(sorted(patterns)))
        widen_bf16(graph)
        return graph

    def opened(self, graph: gs.Graph) -> Shown:
        """Return a model that makes what is measured, as far as it has tensors of these names."""
        made = walk.tensors(graph)
        return open_showing(graph, [name for name in self._names if name in made], self.run)

    def of(self, model: Shown, flags: Feed | None = None, every: int = 1) -> float:
        """Return the SQNR of a model on every n-th sample, fed with flags as well."""
        value = least_sqnr(self._pairs(model, flags or {}, every))
        self._count += 1
        if self._progress:
            self._progress(self._count, f"{value:.2f} dB")
        return value

    def _pairs(self, model: Shown, flags: Feed, every: int) -> Iterator[tuple[Outputs, Outputs]]:
        for feed, expected in zip(self.feeds[::every], self._expected[::every], strict=True):
            found = model.run({**feed, **flags})
            yield {name: array for name, array in expected.items() if name in found}, self._view.of(found)


def _floats(outputs: Mapping[str, object]) -> dict[str, np.ndarray]:
    """Return the outputs that count: arrays of floats, no integers and no sequences."""
    return {
        name: value
        for name, value in outputs.items()
        if isinstance(value, np.ndarray) and value.dtype.kind == "f"
    }


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
