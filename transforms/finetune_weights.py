"""Tuning the weights of a quantized model layer by layer, so that it makes what the float model makes.

Layers go in execution order. Each is fitted to the outputs of the float layer on the inputs that it has in
the quantized model as tuned so far, by linear algebra on sums over rows (:mod:`transforms.gram`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from transforms import walk
from transforms.devices import CPU, array_module
from transforms.finetune_checkpoint import Checkpoint, as_report
from transforms.gram import Sums
from transforms.layer_input import layer_input
from transforms.match_layers import LeftAlone, MatchedLayer, match_layers
from transforms.partial_run import SteppedModel, Store
from transforms.row_weights import stream_of
from transforms.run_model import RunOptions
from transforms.tune_layer import Candidate, Tuned, TuneOptions, tune_layer
from transforms.wanted_rows import AHEAD, RowChoice, WantedReader
from transforms.write_layer import write_layer

Feed = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class WalkOptions:
    """How the layers are walked through.

    * ``op_types``: layers of these operators alone;
    * ``held_out``: one of so many samples is kept to judge by;
    * ``most_rows``, ``least_rows``: sums are over so many rows for each input of a layer, but not less than
      so many, evenly picked; ``seed``: of the picking;
    * ``memory_limit``: bytes of tensors of each model that stay in memory, the rest goes to files;
    * ``device``: where the sums are made; ``run``: how the models run.
    """

    tune: TuneOptions = field(default_factory=TuneOptions)
    op_types: tuple[str, ...] = ()
    held_out: int = 5
    most_rows: int = 32
    least_rows: int = 4096
    memory_limit: int | None = None
    device: str = CPU
    seed: int = 0
    run: RunOptions = field(default_factory=RunOptions)


@dataclass(frozen=True)
class LayerReport:
    """What became of a layer: its error on held-out samples before and after, of ``power``, and how long."""

    name: str
    op: str
    before: float
    after: float
    power: float
    what: str
    seconds: float

    @property
    def is_kept(self) -> bool:
        """Whether the layer has new weights or a new bias."""
        return self.after < self.before


@dataclass
class FineTuned:
    """The layers in order, and those that were left alone."""

    layers: list[LayerReport] = field(default_factory=list)
    left_alone: list[LeftAlone] = field(default_factory=list)


@dataclass(frozen=True)
class Memory:
    """A checkpoint, and the name under which a walk is in it."""

    checkpoint: Checkpoint
    recipe: str


Progress = Callable[[LayerReport, int, int], None]


def finetune_weights(
    float_graph: gs.Graph,
    quantized_graph: gs.Graph,
    feeds: Sequence[Feed],
    options: WalkOptions | None = None,
    *,
    judge: Callable[[], float] | None = None,
    memory: Memory | None = None,
    progress: Progress | None = None,
) -> FineTuned:
    """Tune the quantized graph in place; see :func:`transforms.match_layers.match_layers` for which layers.

    A layer is given new weights if they are better on the samples that are held out, and if ``judge``, where
    it is given, returns a lower number after that than before. ``progress`` is called with what became of a
    layer, how many are done and how many there are. ``memory`` keeps what was found, and gives it back to
    another run on the same models and data.

    Raises ValueError for fewer than two samples, a model that fails on one and operator types of which no
    layer is there.
    """
    options = options or WalkOptions()
    if len(feeds) < 2:
        raise ValueError(f"{len(feeds)} sample, at least 2 are needed: one to fit to, one to judge by")
    layers, left = match_layers(float_graph, quantized_graph)
    layers, others = _targeted(layers, options.op_types)
    done = FineTuned(left_alone=left + others)
    with (
        Store(options.memory_limit) as floats,
        Store(options.memory_limit) as quantized,
        Store(options.memory_limit) as rows,
    ):
        stores = _Stores(floats, quantized, rows)
        walked = _Walk(float_graph, quantized_graph, feeds, layers, options, stores, judge)
        for number, layer in enumerate(layers):
            report = walked.visit(layer, number, memory)
            done.layers.append(report)
            if progress:
                progress(report, number + 1, len(layers))
    return done


def _targeted(
    layers: list[MatchedLayer], op_types: Sequence[str]
) -> tuple[list[MatchedLayer], list[LeftAlone]]:
    """Return the layers of operator types, and the others with the reason; all without types."""
    if not op_types:
        return layers, []
    for op in op_types:
        if layers and all(layer.node.op != op for layer in layers):
            found = ", ".join(sorted({layer.node.op for layer in layers}))
            raise ValueError(f"operator type '{op}': no layer of it can be tuned, only of {found}")
    others = [
        LeftAlone(layer.name, layer.node.op, "its operator is not asked for")
        for layer in layers
        if layer.node.op not in op_types
    ]
    return [layer for layer in layers if layer.node.op in op_types], others


@dataclass(frozen=True)
class _Stores:
    """Of the tensors of both models, and of the rows that are wanted."""

    floats: Store
    quantized: Store
    rows: Store


class _Walk:
    """Both models on their way through the layers."""

    def __init__(
        self,
        float_graph: gs.Graph,
        quantized_graph: gs.Graph,
        feeds: Sequence[Feed],
        layers: Sequence[MatchedLayer],
        options: WalkOptions,
        stores: _Stores,
        judge: Callable[[], float] | None,
    ) -> None:
        self._graph, self._count, self._options = quantized_graph, len(feeds), options
        self._names = walk.Names(quantized_graph)
        streams = [stream_of(float_graph, layer.target) for layer in layers]
        wanted = [layer.target for layer in layers] + [name for name in streams if name is not None]
        reference = SteppedModel(float_graph, feeds, wanted, stores.floats, options.run)
        choice = RowChoice(len(feeds), options.most_rows, options.least_rows, options.seed)
        limit = AHEAD if options.memory_limit is None else min(AHEAD, options.memory_limit)
        self._wanted = WantedReader(reference, layers, streams, choice, stores.rows, limit)
        self._inputs = [layer_input(layer.source) for layer in layers]
        sources = [one.name for one in self._inputs]
        self._tuned = SteppedModel(quantized_graph, feeds, sources, stores.quantized, options.run)
        self._judge = judge
        self._judged = judge() if judge else 0.0

    def visit(self, layer: MatchedLayer, number: int, memory: Memory | None) -> LayerReport:
        """Tune a layer, or do again what was found earlier; return what became of it."""
        known = memory.checkpoint.get(memory.recipe, number) if memory else None
        if known is None:
            return self._tune(layer, number, memory)
        self._wanted.skip(number)
        self._tuned.forget(self._inputs[number].name)
        return self._repeat(layer, *known)

    def _repeat(self, layer: MatchedLayer, found: Candidate | None, report: Mapping[str, Any]) -> LayerReport:
        if found is not None:
            write_layer(self._graph, layer, found, self._names)
        return LayerReport(**report)

    def _tune(self, layer: MatchedLayer, number: int, memory: Memory | None) -> LayerReport:
        start = time.perf_counter()
        fit, held = self._collect(layer, number)
        found = tune_layer(layer, current(layer), fit, held, self._options.tune)
        if found.after < found.before:
            found = self._write(layer, found)
        seconds = time.perf_counter() - start
        numbers = found.before, found.after, found.power
        report = LayerReport(layer.name, layer.node.op, *numbers, found.best.what, seconds)
        if memory:
            kept = found.best if report.is_kept else None
            memory.checkpoint.put(memory.recipe, number, kept, as_report(report))
        return report

    def _write(self, layer: MatchedLayer, found: Tuned) -> Tuned:
        before = current(layer)
        write_layer(self._graph, layer, found.best, self._names)
        if self._judge is None:
            return found
        judged = self._judge()
        if judged < self._judged:
            self._judged = judged
            return found
        write_layer(self._graph, layer, before, self._names)
        return Tuned(before, found.before, found.before, found.power)

    def _collect(self, layer: MatchedLayer, number: int) -> tuple[Sums, Sums]:
        """Return the sums over the rows of the samples to fit to, and of those to judge by."""
        groups, outputs, positions, channels = layer.layer.size
        module, read = array_module(self._options.device), self._inputs[number]
        fit, held = (Sums.zeros(groups, outputs, positions * channels, module) for _ in range(2))
        pairs = zip(self._wanted.take(number), self._tuned.advance([read.name], last=True), strict=True)
        for i, ((wanted, made), given) in enumerate(pairs):
            rows = layer.layer.rows(read.centred(given[read.name]), wanted.shape, wanted.picked)
            sums = held if is_held_out(i, self._count, self._options) else fit
            sums.add(read.scaled(rows), made, wanted.weights)
        return fit.on_host(), held.on_host()


def is_held_out(sample: int, count: int, options: WalkOptions) -> bool:
    """Return whether a sample of so many is one to judge by: one in five, at least one."""
    every = min(options.held_out, count)
    return sample % every == every - 1


def current(layer: MatchedLayer) -> Candidate:
    """Return the weights and the bias that a layer has."""
    packed = layer.layer.pack(layer.weight.values()).astype(np.float64)
    groups, outputs = packed.shape[:2]
    bias = np.zeros((groups, outputs))
    if layer.bias is not None and layer.bias.stored is not None:
        bias += layer.bias.stored.values().astype(np.float64).reshape(groups, outputs) * layer.bias.gain
    return Candidate("as it was", packed.reshape(groups, outputs, -1), bias, layer.weight.scale)
