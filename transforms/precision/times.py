"""How long layers, and whole models, take in each format on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import onnx_graphsurgeon as gs

from ops.array_types import Feed
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.graph import walk
from transforms.graph.if_nodes import copied
from transforms.graph.typed import Graph
from transforms.precision.candidates import Candidate, layers_of
from transforms.precision.mixed_model import Mix, MixedModel
from transforms.run.instrumented_model import InstrumentedModel
from transforms.run.speed import Speed, speed
from transforms.run.turns import Timer, Timing, ratio, saving
from transforms.runtime.session import RunOptions
from transforms.scheme.layer_rule import LayerRule

_SECONDS, _WHOLE = 40.0, 6.0
"""Seconds of the processor for which all layers together are timed, and whole models."""

_SAMPLES = 8
"""Samples at most that whole models are timed on, in turns."""

_NO_PATTERNS: Mapping[str, object] = {
    **{key: {} for key in ("layers", "tensors", "outliers", "calibrate_tensors", "input_shapes")},
    **dict.fromkeys(("op_types", "exclude_nodes", "exclude_op_types"), ()),
}
"""Keys that name parts of the whole model."""

_FUSED = frozenset({"Relu", "Clip"})
"""Operators that kernels of layers compute along with them; an Add of a constant is another."""


@dataclass(frozen=True)
class LayerTime:
    """Seconds of a layer alone in a format, in that of the baseline, in float, and what is saved by it."""

    run: Timing
    baseline: Timing
    float_run: Timing
    saved: Timing

    @property
    def columns(self) -> dict[str, float]:
        """Medians and quartiles by name."""
        parts = {"": self.run, "baseline_": self.baseline, "float_": self.float_run, "saved_": self.saved}
        found: dict[str, float] = {}
        for prefix, timing in parts.items():
            numbers = {"seconds": timing.median, "low": timing.low, "high": timing.high}
            found |= {f"{prefix}{name}": number for name, number in numbers.items()}
        return {**found, "runs": self.run.runs}


LayerTimes = Mapping[tuple[str, str], LayerTime]
"""By layer and label."""


@dataclass(frozen=True)
class WholeTimes:
    """Seconds of an inference in float, in the baseline, and with layers moved (None: none was).

    All of them took turns. ``gain``: ratio of the time with layers moved to that of the baseline;
    ``beside_float``: of that of the model that is left to that of the float model.
    """

    float_run: Timing
    before: Timing
    after: Timing | None
    gain: Timing | None
    beside_float: Timing

    @property
    def is_refused(self) -> bool:
        """Whether layers were moved, and that was not faster than the baseline."""
        return self.gain is not None and speed(self.gain) is not Speed.FASTER


def saved_seconds(times: LayerTimes) -> dict[tuple[str, str], float]:
    """Return what is saved where that is beyond the spread: in three of four rounds."""
    return {key: one.saved.median for key, one in times.items() if one.saved.low > 0}


def time_layers(
    model: MixedModel,
    candidates: Sequence[Candidate],
    choices: Sequence[LayerRule],
    feed: Feed,
    run: RunOptions,
    timer: Timer,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> LayerTimes:
    """Return the seconds of each layer alone on what it reads of one sample.

    A layer has its bias, Relu or Clip with it. It is a model of its own, quantized as the whole is: that is
    what it takes between layers of other formats, with the roundings of what it reads and makes. Of layers of
    the same structure one is timed.
    """
    nodes = layers_of(model.graph)
    alone = {one.name: layer_alone(one.name, model.graph, nodes[one.name]) for one in candidates}
    read = dict.fromkeys(str(t.name) for graph in alone.values() for t in graph.inputs)
    arrays = InstrumentedModel(model.graph, read, run).run(feed)
    scheme = model.scheme.with_(optimize=False, **_NO_PATTERNS)
    feeds = {name: {str(t.name): arrays[str(t.name)] for t in alone[name].inputs} for name in alone}
    kinds = {name: _structure(graph, feeds[name]) for name, graph in alone.items()}
    seconds, known = _SECONDS / max(1, len({*kinds.values()})), dict[str, list[LayerTime]]()
    for number, (name, graph) in enumerate(alone.items(), 1):
        if kinds[name] not in known:
            layer = MixedModel(graph, scheme)
            known[kinds[name]] = _time_layer(layer, name, choices, feeds[name], run, timer, seconds)
        if progress:
            progress(number, len(alone))
    return {
        (name, choice.label): time
        for name in alone
        for choice, time in zip(choices, known[kinds[name]], strict=True)
    }


def _time_layer(
    layer: MixedModel,
    name: str,
    choices: Sequence[LayerRule],
    feed: Feed,
    run: RunOptions,
    timer: Timer,
    seconds: float,
) -> list[LayerTime]:
    """Return the times of a layer that is a model of its own, one for each choice of formats."""
    mixes: list[Mix] = [{}, *({name: choice} for choice in choices)]
    layer.measure(CalibrationData([feed]), mixes)
    graphs = [layer.in_float().graph, *(layer.build(mix).graph for mix in mixes)]
    plain, before, *moved = timer(graphs, [feed], run, seconds)
    floats, baseline = Timing.of(plain), Timing.of(before)
    return [LayerTime(Timing.of(found), baseline, floats, saving(before, found)) for found in moved]


def _structure(graph: gs.Graph, feed: Feed) -> str:
    """Return what layers have in common that take the same time: operators, attributes, types and shapes."""
    numbers: dict[int, int] = {}

    def _end(tensor: gs.Tensor) -> tuple[object, ...]:
        number, is_constant = numbers.setdefault(id(tensor), len(numbers)), isinstance(tensor, gs.Constant)
        array = tensor if is_constant else feed.get(str(tensor.name))
        return number, is_constant, *(() if array is None else (str(array.dtype), *array.shape))

    nodes = [
        (
            node.op,
            node.domain,
            sorted(node.attrs.items()),
            [*map(_end, node.inputs)],
            [*map(_end, node.outputs)],
        )
        for node in graph.nodes
    ]
    return repr((nodes, [*map(_end, graph.outputs)]))


def time_whole(
    graphs: Sequence[gs.Graph], feeds: Sequence[Feed], run: RunOptions, timer: Timer
) -> WholeTimes:
    """Return the times of a float model, the baseline and, if there is a third, the model with layers moved.

    With layers moved it is refused if that was not faster than the baseline, beyond the spread.
    """
    plain, before, *moved = timer(graphs, feeds[:_SAMPLES], run, _WHOLE)
    after = Timing.of(moved[0]) if moved else None
    gain = ratio(moved[0], before) if moved else None
    found = WholeTimes(Timing.of(plain), Timing.of(before), after, gain, ratio(before, plain))
    if not moved or found.is_refused:
        return found
    return replace(found, beside_float=ratio(moved[0], plain))


def layer_alone(name: str, graph: gs.Graph, nodes: Sequence[gs.Node]) -> Graph:
    """Return a layer of a float model as a model of its own, with what its kernel computes along with it.

    Names of tensors and nodes are the same. Constants share their values.
    """
    chains = [[node, *_following(graph, node)] for node in nodes]
    every = [node for chain in chains for node in chain]
    made = {id(tensor) for node in every for tensor in node.outputs}
    copies: dict[int, gs.Tensor] = {}
    inputs: list[gs.Tensor] = []

    def _copy(tensor: gs.Tensor) -> gs.Tensor:
        if id(tensor) not in copies:
            copies[id(tensor)] = tensor.copy()
            if not (id(tensor) in made or tensor.is_empty() or isinstance(tensor, gs.Constant)):
                inputs.append(copies[id(tensor)])
        return copies[id(tensor)]

    new = [copied(one, one.name, [*map(_copy, one.inputs)], [*map(_copy, one.outputs)]) for one in every]
    return Graph(
        new,
        inputs=inputs,
        outputs=[copies[id(chain[-1].outputs[0])] for chain in chains],
        name=name,
        opset=graph.opset,
        import_domains=graph.import_domains,
        ir_version=graph.ir_version,
    )


def _following(graph: gs.Graph, node: gs.Node) -> Iterator[gs.Node]:
    """Yield an Add of a bias, Relu and Clip after a layer, as long as nothing else reads what they read."""
    tensor, main = node.outputs[0], {id(one) for one in graph.nodes}
    while walk.is_read_once(tensor) and not walk.is_output(tensor, graph):
        (user,) = tensor.outputs
        others = [one for one in user.inputs if one is not tensor and not one.is_empty()]
        is_bias = user.op == "Add" and tensor is node.outputs[0]
        if id(user) not in main or not (is_bias or user.op in _FUSED):
            return
        if not all(isinstance(one, gs.Constant) for one in others):
            return
        yield user
        tensor = user.outputs[0]
