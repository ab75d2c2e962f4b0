"""Keep the fewest layers in float with which a conversion to BF16 meets a target.

Layers are chosen as for any other format (:mod:`transforms.precision.reach`), in a session with a switch for
each layer. The converted model is judged on held-out samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from glob import escape

import onnx_graphsurgeon as gs

from ops.array_types import Feed
from transforms.conversion.convert_bf16 import Bf16Options, Conversion, convert_bf16, prepare_bf16
from transforms.graph import dtypes, walk
from transforms.graph.selection import counterparts, label_of
from transforms.judge.softmax_outputs import softmax_outputs
from transforms.model.copy_graph import copy_graph
from transforms.precision.bench import Progress, goal_bench
from transforms.precision.reach import choose_layers
from transforms.precision.readings import OUTPUT
from transforms.precision.switched_layers import Part, SwitchedLayers
from transforms.precision.unreached import too_few_samples
from transforms.runtime.session import RunOptions
from transforms.runtime_workarounds import leave_out_biases
from transforms.search.target import Scored, Target
from transforms.widen_bf16 import widen_bf16

Names = Mapping[str, Sequence[str]]
"""Names of nodes of the loaded model by the name of the node of the prepared model that replaces them."""


@dataclass(frozen=True)
class KeptFloat:
    """Patterns of nodes to exclude, in the order of the model, for ``layers``, out of ``count`` layers.

    ``before``, ``after``: the metric without and with these layers in float; ``error``: the standard error of
    ``after``.
    """

    patterns: tuple[str, ...]
    layers: tuple[Part, ...]
    count: int
    before: float
    after: float
    error: float


def keep_float(
    graph: gs.Graph,
    options: Bf16Options,
    feeds: Sequence[Feed],
    judging: Sequence[Feed],
    target: Target,
    *,
    run: RunOptions | None = None,
    progress: Progress | None = None,
) -> KeptFloat:
    """Return the nodes to keep in float for a target, in addition to those that ``options`` exclude.

    ``graph`` is the model as loaded, constants lifted, and is not changed. Layers are chosen on ``feeds``;
    the target holds for the outputs of the converted model against the float model on the ``judging`` feeds.
    Patterns match names of nodes exactly, as ``exclude_node`` takes them; nodes without a name are named by
    their first output. Nodes that the conversion fuses are kept together. Nodes with bodies stay float, with
    their bodies, only if the target cannot be reached otherwise. Raises TargetError if no choice of nodes
    reaches the target, ValueError as a conversion does.
    """
    form = _Form(graph, options)
    first, in_float = form.keeping(()), _converted(graph, options.excluding(["*"]))

    def _in_both() -> Set[str]:
        return walk.tensors(first).keys() & walk.tensors(in_float).keys()

    if softmax_outputs(graph).keys() - softmax_outputs(first).keys():  # a Softmax of bfloat16
        target = replace(target, before_softmax=False)
    bench = goal_bench(graph, judging, target, run, progress, known=_in_both)
    before = bench.scored(first)
    if target.is_shown(before):
        return KeptFloat((), (), 0, before.value, before.value, before.error)
    _require(target, before, bench.scored(in_float))
    # bodies have no switches: keep them first if all other nodes in float are not enough
    if form.bodies and not target.is_shown(bench.scored(form.keeping(form.names))):
        form.fixed = form.bodies
        first = form.keeping(())
        if target.is_shown(after := bench.scored(first)):
            return KeptFloat(form.fixed, (), 0, before.value, after.value, after.error)
    # what follows a kept layer without rounding is kept with it, if kept layers alone do not reach the target
    switched = SwitchedLayers(bench.viewed(form.prepared), bench.viewed(form.with_casts()), run)
    layers = {node for part in switched.parts for node in part.nodes}
    if not target.is_shown(bench.scored(form.keeping(layers))):
        form.layers = layers
    chosen = choose_layers(
        first,
        lambda: switched,
        form.names.keys,
        form.keeping,
        feeds,
        bench,
        "float32",
        is_low=lambda graph: True,  # numbers may be rounded to bfloat16 in float32
    )
    patterns = form.patterns(node for layer in chosen.layers for node in layer.nodes)
    return KeptFloat(patterns, chosen.layers, chosen.count, before.value, chosen.after, chosen.error)


def _require(target: Target, before: Scored, best: Scored) -> None:
    """Raise TargetError unless a model with everything in float is shown to meet the target."""
    if target.is_shown(best):
        return
    if target.holds(best.value):
        raise too_few_samples(target, best, "with every node in float32")
    raise target.unmet(
        f"no choice of nodes kept in float32 meets the target of {target.bound}: "
        f"{target.text(before.value)} with none kept, {target.text(best.value)} with all"
    )


class _Form:
    """The float model prepared for conversion; builds converted models with some of its nodes kept in float.

    ``bodies``: patterns of the nodes with bodies. ``fixed``: patterns that are always kept. ``layers``: names
    of the nodes to choose from, if their followers are kept with them; else empty.
    """

    def __init__(self, graph: gs.Graph, options: Bf16Options) -> None:
        self._graph, self._options = graph, options
        self.prepared = _prepared(graph, options)
        self.names = names_as_loaded(graph, self.prepared)
        self.bodies = _patterns(
            graph, {label_of(node) for node in walk.nodes(graph) if any(walk.bodies(node))}
        )
        self.fixed: tuple[str, ...] = ()
        self.layers: Set[str] = frozenset()

    def patterns(self, nodes: Iterable[str]) -> tuple[str, ...]:
        """Return the patterns to exclude so that these nodes of the prepared model stay float."""
        in_float = with_followers(self.prepared, set(nodes), self.layers) if self.layers else nodes
        names = {name for node in in_float for name in self.names.get(node, ())}
        return (*self.fixed, *_patterns(self._graph, names))

    def keeping(self, nodes: Iterable[str]) -> gs.Graph:
        """Return the converted model with some nodes of the prepared model kept in float."""
        return _converted(self._graph, self._options.excluding(self.patterns(nodes)))

    def with_casts(self) -> gs.Graph:
        """Return a converted model of the same numbers, in a format whose roundings are separate nodes."""
        form = self._options.format if self._options.format == "simulate_bf16" else "with_cast"
        options = self._options.excluding(self.fixed)
        return _converted(self._graph, replace(options, format=form, keep_io_types=True))


def _prepared(graph: gs.Graph, options: Bf16Options) -> gs.Graph:
    """Return a copy of the float model with the rewrites that precede the conversion."""
    prepared = copy_graph(graph)
    leave_out_biases(prepared)
    prepare_bf16(prepared, replace(options, keep_io_types=True), Conversion(options.format))
    return prepared


def _converted(graph: gs.Graph, options: Bf16Options) -> gs.Graph:
    """Return the converted model, widened to float32 arithmetic on rounded numbers, which any runtime has."""
    converted = copy_graph(graph)
    convert_bf16(converted, options)
    widen_bf16(converted)
    return converted


def names_as_loaded(loaded: gs.Graph, prepared: gs.Graph) -> Names:
    """Return the names of loaded nodes for each node of the prepared main graph, and each output.

    Nodes that are fused share an entry. A new node has the names of its consumers.
    """
    matches = counterparts(loaded, prepared)
    sources: dict[int, dict[str, None]] = {}
    for node in reversed(list(walk.nodes(loaded))):
        if not matches[id(node)] and any(map(_is_float, node.outputs)):
            users = (user for tensor in node.outputs for user in tensor.outputs)
            matches[id(node)] = [match for user in users for match in matches.get(id(user), ())]
        for match in matches[id(node)]:
            sources.setdefault(id(match), {}).setdefault(label_of(node))
    for node in reversed(prepared.nodes):
        if id(node) not in sources:
            users = (user for tensor in node.outputs for user in tensor.outputs)
            sources[id(node)] = dict.fromkeys(name for user in users for name in sources.get(id(user), ()))
    names = {
        label_of(node): list(sources[id(node)])
        for node in prepared.nodes
        if sources[id(node)] and not any(walk.bodies(node))
    }
    ends = {f"{OUTPUT}{tensor.name}": walk.producer(tensor) for tensor in prepared.outputs}
    return names | {
        end: list(sources[id(node)]) for end, node in ends.items() if node and sources.get(id(node))
    }


def with_followers(prepared: gs.Graph, chosen: Set[str], layers: Set[str]) -> Set[str]:
    """Return chosen nodes and the nodes after them, such as a Relu, that are in no layer of their own.

    A follower is added if all its float inputs come from nodes in the result: a conversion rounds nothing
    between two kept nodes.
    """
    in_float = set(chosen)
    for node in prepared.nodes:
        producers = [walk.producer(tensor) for tensor in node.inputs if _is_float(tensor)]
        labels = {label_of(producer) for producer in producers if producer is not None}
        if labels and labels <= in_float and label_of(node) not in layers:
            in_float.add(label_of(node))
    return in_float


def _is_float(tensor: gs.Tensor) -> bool:
    return dtypes.element_type(tensor) in (dtypes.FLOAT, dtypes.FLOAT16)


def _patterns(graph: gs.Graph, names: Set[str]) -> tuple[str, ...]:
    """Return patterns of the nodes of these names, in the order of the model."""
    labels = dict.fromkeys(label_of(node) for node in walk.nodes(graph))
    return tuple(escape(label) for label in labels if label in names)
