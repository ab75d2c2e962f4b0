"""Tuning the weights of a quantized model layer by layer, so that it makes what the float model makes.

Layers go in execution order. Each is fitted to the outputs of the float layer on the inputs that it has in
the quantized model as tuned so far, by linear algebra on sums over rows (:mod:`transforms.gram`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from transforms import walk
from transforms.devices import CPU, array_module
from transforms.finetune_checkpoint import Checkpoint, as_report
from transforms.following_relu import limits_behind, relax
from transforms.gram import Sums
from transforms.layer_problem import Array
from transforms.layer_sums import LayerSums
from transforms.match_layers import match_layers, of_operators
from transforms.matched_layer import LeftAlone, MatchedLayer
from transforms.mixed_rows import reads_product
from transforms.partial_run import SteppedModel, Store
from transforms.row_weights import stream_of, weigh
from transforms.run_model import RunOptions
from transforms.tune_layer import Candidate, Tuned, TuneOptions, tune_layer
from transforms.write_layer import current, write_layer

Feed = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class WalkOptions:
    """How the layers are walked through.

    * ``op_types``: layers of these operators alone;
    * ``held_out``: one of so many samples is kept to judge by;
    * ``most_rows``, ``least_rows``: sums are over so many rows for each input of a layer, but not less than
      so many, evenly picked; ``seed``: of the picking;
    * ``memory_limit``: bytes of tensors of each model that stay in memory, the rest goes to files;
    * ``following_relu``: what a Relu or Clip behind a layer cuts off does not count;
    * ``device``: where the sums are made; ``run``: how the models run.
    """

    tune: TuneOptions = field(default_factory=TuneOptions)
    op_types: tuple[str, ...] = ()
    held_out: int = 5
    most_rows: int = 32
    least_rows: int = 8192
    memory_limit: int | None = None
    following_relu: bool = False
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
    layers, others = of_operators(layers, options.op_types)
    done = FineTuned(left_alone=left + others)
    with Store(options.memory_limit) as floats, Store(options.memory_limit) as quantized:
        walked = _Walk(float_graph, quantized_graph, feeds, layers, options, floats, quantized, judge)
        for number, layer in enumerate(layers):
            report = walked.visit(layer, number, memory)
            done.layers.append(report)
            if progress:
                progress(report, number + 1, len(layers))
    return done


_ADD = 0.95
"""What an Add behind a MatMul has to bring the held-out error down to: it is one more node to run."""


class _Walk:
    """Both models on their way through the layers."""

    def __init__(
        self,
        float_graph: gs.Graph,
        quantized_graph: gs.Graph,
        feeds: Sequence[Feed],
        layers: Sequence[MatchedLayer],
        options: WalkOptions,
        floats: Store,
        quantized: Store,
        judge: Callable[[], float] | None,
    ) -> None:
        self._graph, self._count, self._options = quantized_graph, len(feeds), options
        self._names = walk.Names(quantized_graph)
        users = [user for layer in layers for user in layer.users]
        self._streams = {id(layer): _streams_of(float_graph, layer) for layer in layers}
        self._limits = {
            user.target: limits_behind(float_graph, user.target) if options.following_relu else None
            for user in users
        }
        targets = [user.target for user in users]
        targets += [name for names in self._streams.values() for name in names]
        sources = [user.source.name for user in users]
        self._reference = SteppedModel(float_graph, feeds, targets, floats, options.run)
        self._tuned = SteppedModel(quantized_graph, feeds, sources, quantized, options.run)
        self._judge = judge
        self._judged = judge() if judge else 0.0

    def visit(self, layer: MatchedLayer, number: int, memory: Memory | None) -> LayerReport:
        """Tune a layer, or do again what was found earlier; return what became of it."""
        known = memory.checkpoint.get(memory.recipe, number) if memory else None
        report = self._repeat(layer, *known) if known else self._tune(layer, number, memory)
        for name in (*(user.target for user in layer.users), *self._streams[id(layer)]):
            self._reference.forget(name)
        for user in layer.users:
            self._tuned.forget(user.source.name)
        return report

    def _repeat(self, layer: MatchedLayer, found: Candidate | None, report: Mapping[str, Any]) -> LayerReport:
        if found is not None:
            write_layer(self._graph, layer, found, self._names)
        return LayerReport(**report)

    def _tune(self, layer: MatchedLayer, number: int, memory: Memory | None) -> LayerReport:
        start = time.perf_counter()
        fit, held = self._collect(layer)
        fit = _of_products(layer, fit)
        before, tune = current(layer), self._options.tune
        found = tune_layer(layer, before, fit, held, tune)
        if not all(fit.has_bias) and all(user.bias for user in layer.users):
            with_add = tune_layer(layer, before, fit.freed(), held.freed(), tune)
            found = with_add if with_add.after < _ADD * found.after else found
        if found.after < found.before:
            found = self._write(layer, found)
        seconds = time.perf_counter() - start
        numbers = found.before, found.after, found.power
        report = LayerReport(_title(layer), layer.node.op, *numbers, found.best.what, seconds)
        if memory:
            kept = found.best if report.is_kept else None
            memory.checkpoint.put(memory.recipe, number, kept, as_report(report))
        return report

    def _write(self, layer: MatchedLayer, found: Tuned) -> Tuned:
        before, after = current(layer), found.after
        self._put(layer, found.best)
        if layer.others:  # what some read may come from others, and be another now
            held = self._collect(layer)[1]
            after = float(held.error(found.best.weights, found.best.bias).sum())
        if after < found.before and self._is_better():
            return Tuned(found.best, found.before, after, found.power)
        self._put(layer, before)
        return Tuned(before, found.before, found.before, found.power)

    def _put(self, layer: MatchedLayer, candidate: Candidate) -> None:
        write_layer(self._graph, layer, candidate, self._names)
        if layer.others:
            self._tuned.restart()  # what ran between the users ran with other weights

    def _is_better(self) -> bool:
        """Return whether the judge, if any, likes the model better than it did."""
        if self._judge is None:
            return True
        judged = self._judge()
        is_better, self._judged = judged < self._judged, min(judged, self._judged)
        return is_better

    def _collect(self, layer: MatchedLayer) -> tuple[LayerSums, LayerSums]:
        """Return the sums over the rows of the samples to fit to, and of those to judge by."""
        count, options, streams = self._count, self._options, self._streams[id(layer)]
        fit, held = (self._no_sums(layer) for _ in range(2))
        random = np.random.default_rng([options.seed, count])
        targets = [user.target for user in layer.users]
        pairs = zip(
            self._reference.advance([*targets, *streams]),
            self._tuned.advance([user.source.name for user in layer.users]),
            strict=True,
        )
        for i, (wanted, given) in enumerate(pairs):
            chosen = held if is_held_out(i, count, options) else fit
            for user, sums, stream in zip_longest(layer.users, chosen.parts, streams):
                residual = None if stream is None else wanted[stream]
                self._add(sums, user, given[user.source.name], wanted[user.target], residual, random)
        return fit.on_host(), held.on_host()

    def _no_sums(self, layer: MatchedLayer) -> LayerSums:
        groups, outputs, positions, channels = layer.layer.size
        module = array_module(self._options.device)
        return LayerSums(
            tuple(Sums.zeros(groups, outputs, positions * channels, module) for _ in layer.users),
            tuple(user.bias is not None and not user.bias.is_extra for user in layer.users),
        )

    def _add(
        self,
        sums: Sums,
        user: MatchedLayer,
        x: Array,
        y: Array,
        stream: Array | None,
        random: np.random.Generator,
    ) -> None:
        """Add rows of one sample of a layer's inputs and outputs, weighed by the residual stream, if any."""
        options, inputs, layer = self._options, sums.xx.shape[-1], user.layer
        share = -(-max(options.least_rows, options.most_rows * inputs) // self._count)
        weights = None if stream is None else weigh(layer, y.shape, stream)
        picked = _pick(layer.count(y.shape), share, random)
        rows, made = layer.rows(x, y.shape, picked), layer.outputs(y, picked)
        limits = self._limits[user.target]
        if limits is not None:
            near = rows @ user.float_weight.reshape(*made.shape[::2], -1).swapaxes(1, 2)
            made = relax(made, near + user.float_bias[:, None], limits)
        sums.add(rows, made, None if weights is None else weights[picked])


def _streams_of(graph: gs.Graph, layer: MatchedLayer) -> list[str]:
    """Return the residual stream of each user of a weight; none at all unless all have one.

    Rows weighed by a stream do not add up with rows that are not.
    """
    streams = [stream_of(graph, user.target) for user in layer.users]
    found = [stream for stream in streams if stream is not None]
    return found if len(found) == len(streams) else []


def _title(layer: MatchedLayer) -> str:
    return f"{layer.name} and {len(layer.others)} more" if layer.others else layer.name


def _of_products(layer: MatchedLayer, fit: LayerSums) -> LayerSums:
    """Let users that read a product of computed tensors stand for their own rounding alone."""
    parts = (
        part.of_layer(layer.float_weight.reshape(part.yx.shape), user.float_bias)
        if reads_product(user.source)
        else part
        for part, user in zip(fit.parts, layer.users, strict=True)
    )
    return LayerSums(tuple(parts), fit.has_bias)


def is_held_out(sample: int, count: int, options: WalkOptions) -> bool:
    """Return whether a sample of so many is one to judge by: one in five, at least one."""
    every = min(options.held_out, count)
    return sample % every == every - 1


def _pick(rows: int, most: int, random: np.random.Generator) -> NDArray[np.int64] | slice:
    """Return which rows of a sample are taken: all, or one at random from each of ``most`` equal parts."""
    if rows <= most:
        return slice(None)
    edges = np.linspace(0, rows, most + 1)
    return np.minimum((edges[:-1] + random.random(most) * np.diff(edges)).astype(np.int64), rows - 1)
