"""How long layers, and whole models, take in each format on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from ops.array_types import Feed
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.graph import walk
from transforms.graph.if_nodes import copied
from transforms.graph.typed import Graph
from transforms.precision.candidates import Candidate, layers_of
from transforms.precision.mixed_model import Mix, MixedModel
from transforms.run.instrumented_model import InstrumentedModel
from transforms.run.turns import Timer, Timing, saving
from transforms.runtime.session import RunOptions
from transforms.scheme.layer_rule import LayerRule

_SECONDS, _WHOLE = 60.0, 10.0
"""About how long all layers together are timed, sessions being opened aside, and whole models."""

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

    All of them took turns. ``is_refused``: layers were moved, and that was not faster than the baseline.
    """

    float_run: Timing
    before: Timing
    after: Timing | None
    is_refused: bool = False


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
    what it takes between layers of other formats, with the roundings of what it reads and makes.
    """
    nodes = layers_of(model.graph)
    alone = {one.name: layer_alone(one.name, model.graph, nodes[one.name]) for one in candidates}
    read = dict.fromkeys(str(t.name) for graph in alone.values() for t in graph.inputs)
    arrays = InstrumentedModel(model.graph, read, run).run(feed)
    scheme = model.scheme.with_(optimize=False, **_NO_PATTERNS)
    times: dict[tuple[str, str], LayerTime] = {}
    for number, (name, graph) in enumerate(alone.items(), 1):
        own = {str(t.name): arrays[str(t.name)] for t in graph.inputs}
        layer = MixedModel(graph, scheme)
        mixes: list[Mix] = [{}, *({name: choice} for choice in choices)]
        layer.measure(CalibrationData([own]), mixes)
        graphs = [layer.in_float().graph, *(layer.build(mix).graph for mix in mixes)]
        plain, before, *moved = timer(graphs, [own], run, _SECONDS / len(alone))
        floats, baseline = Timing.of(plain), Timing.of(before)
        for choice, found in zip(choices, moved, strict=True):
            saved = saving(before, found)
            times[name, choice.label] = LayerTime(Timing.of(found), baseline, floats, saved)
        if progress:
            progress(number, len(alone))
    return times


def time_whole(
    graphs: Sequence[gs.Graph], feeds: Sequence[Feed], run: RunOptions, timer: Timer
) -> WholeTimes:
    """Return the times of a float model, the baseline and, if there is a third, the model with layers moved.

    That is refused if it was not faster than the baseline in three of four rounds.
    """
    plain, before, *moved = timer(graphs, feeds[:_SAMPLES], run, _WHOLE)
    after = Timing.of(moved[0]) if moved else None
    is_refused = bool(moved) and saving(before, moved[0]).low <= 0
    return WholeTimes(Timing.of(plain), Timing.of(before), after, is_refused)


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
