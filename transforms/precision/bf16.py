"""The fewest layers that stay float so that a conversion to BF16 is as faithful as asked for.

Layers are chosen as for any other format (:mod:`transforms.precision.reach`), in a session in which they are
switched. The model that the conversion writes is judged on samples that were not used for it.
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
"""By the name of a node of the prepared model, those of the loaded one that it was made of."""


@dataclass(frozen=True)
class KeptFloat:
    """Patterns of nodes to exclude, in the order of the model: those of ``layers``, of ``count``.

    ``before`` and ``after``: the metric without and with them, and ``error`` the standard error of the
    latter.
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
    """Return the nodes to keep in float, beside those excluded anyway, for a target.

    ``graph`` is the model as loaded, constants lifted, and is not changed. Layers are chosen on ``feeds``;
    the target is that of the outputs of the model which the conversion then makes, against the float model
    on the ``judging`` feeds. Nodes are given by patterns that match their names alone, as ``exclude_node``
    takes them, those without a name by what they make. Nodes that the conversion fuses are kept together.
    Nodes with bodies stay float, with all in them, only where nothing else is enough. Raises TargetError
    where no choice of nodes reaches the target, ValueError as a conversion does.
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
    if form.bodies and not target.is_shown(bench.scored(form.keeping(form.names))):
        form.fixed = form.bodies
        first = form.keeping(())
        if target.is_shown(after := bench.scored(first)):
            return KeptFloat(form.fixed, (), 0, before.value, after.value, after.error)
    switched = SwitchedLayers(bench.viewed(form.prepared), bench.viewed(form.with_casts()), run)
    layers = {node for part in switched.parts for node in part.nodes}
    if not target.is_shown(bench.scored(form.keeping(layers))):
        form.layers = layers
    found = choose_layers(
        first,
        lambda: switched,
        form.names.keys,
        form.keeping,
        feeds,
        bench,
        "float32",
        is_low=lambda graph: True,  # numbers may be rounded to bfloat16 in float32
    )
    kept = form.patterns(node for layer in found.layers for node in layer.nodes)
    return KeptFloat(kept, found.layers, found.count, before.value, found.after, found.error)


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
    """The float model as it is converted, and the models in which nodes of it are kept.

    ``bodies``: patterns of the nodes with bodies; ``fixed``: patterns that are kept in any case; ``layers``:
    names of the nodes that are chosen, if others after them are kept with them.
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
        """Return the patterns of all that is kept with some nodes of the prepared model."""
        kept = with_followers(self.prepared, set(nodes), self.layers) if self.layers else nodes
        names = {name for node in kept for name in self.names.get(node, ())}
        return (*self.fixed, *_patterns(self._graph, names))

    def keeping(self, nodes: Iterable[str]) -> gs.Graph:
        """Return the model that the conversion makes with some nodes of the prepared model kept."""
        return _converted(self._graph, self._options.excluding(self.patterns(nodes)))

    def with_casts(self) -> gs.Graph:
        """Return a model of the same numbers whose nodes can be told by name from those that round."""
        form = self._options.format if self._options.format == "simulate_bf16" else "with_cast"
        options = self._options.excluding(self.fixed)
        return _converted(self._graph, replace(options, format=form, keep_io_types=True))


def _prepared(graph: gs.Graph, options: Bf16Options) -> gs.Graph:
    """Return the float model in the form that is converted."""
    prepared = copy_graph(graph)
    leave_out_biases(prepared)
    prepare_bf16(prepared, replace(options, keep_io_types=True), Conversion(options.format))
    return prepared


def _converted(graph: gs.Graph, options: Bf16Options) -> gs.Graph:
    """Return the model that a conversion makes, in float32 with its results rounded, for any runtime."""
    converted = copy_graph(graph)
    convert_bf16(converted, options)
    widen_bf16(converted)
    return converted


def names_as_loaded(loaded: gs.Graph, prepared: gs.Graph) -> Names:
    """Return the names under which the nodes of the main graph, and its outputs, are chosen in a model.

    Nodes that are fused go together. A node that is new belongs to those that read what it makes.
    """
    matches = counterparts(loaded, prepared)
    found: dict[int, dict[str, None]] = {}
    for node in reversed(list(walk.nodes(loaded))):
        if not matches[id(node)] and any(map(_is_float, node.outputs)):
            users = (user for tensor in node.outputs for user in tensor.outputs)
            matches[id(node)] = [match for user in users for match in matches.get(id(user), ())]
        for match in matches[id(node)]:
            found.setdefault(id(match), {}).setdefault(label_of(node))
    for node in reversed(prepared.nodes):
        if id(node) not in found:
            users = (user for tensor in node.outputs for user in tensor.outputs)
            found[id(node)] = dict.fromkeys(name for user in users for name in found.get(id(user), ()))
    names = {
        label_of(node): list(found[id(node)])
        for node in prepared.nodes
        if found[id(node)] and not any(walk.bodies(node))
    }
    ends = {f"{OUTPUT}{tensor.name}": walk.producer(tensor) for tensor in prepared.outputs}
    return names | {end: list(found[id(node)]) for end, node in ends.items() if node and found.get(id(node))}


def with_followers(prepared: gs.Graph, chosen: Set[str], layers: Set[str]) -> Set[str]:
    """Return chosen nodes with those after them that round nothing themselves, as a Relu.

    A conversion leaves a number as it is on its way from one node that is kept to another.
    """
    found = set(chosen)
    for node in prepared.nodes:
        makers = [walk.producer(tensor) for tensor in node.inputs if _is_float(tensor)]
        labels = {label_of(maker) for maker in makers if maker is not None}
        if labels and labels <= found and label_of(node) not in layers:
            found.add(label_of(node))
    return found


def _is_float(tensor: gs.Tensor) -> bool:
    return dtypes.element_type(tensor) in (dtypes.FLOAT, dtypes.FLOAT16)


def _patterns(graph: gs.Graph, names: Set[str]) -> tuple[str, ...]:
    """Return patterns of the nodes of these names, in the order of the model."""
    labels = dict.fromkeys(label_of(node) for node in walk.nodes(graph))
    return tuple(escape(label) for label in labels if label in names)
