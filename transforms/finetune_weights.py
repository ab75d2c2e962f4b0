"""Tuning the weights of a quantized model layer by layer, so that it makes what the float model makes.

Layers go in execution order. Each is fitted to the outputs of the float layer on the inputs that it has in
the quantized model as tuned so far, by linear algebra on sums over rows (:mod:`transforms.gram`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from transforms import walk
from transforms.gram import Sums
from transforms.match_layers import LeftAlone, MatchedLayer, match_layers
from transforms.partial_run import SteppedModel, Store
from transforms.run_model import RunOptions
from transforms.tune_layer import Candidate, Tuned, TuneOptions, tune_layer
from transforms.write_layer import input_scale, write_layer

Feed = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class WalkOptions:
    """How the layers are walked through.

    ``held_out``: one of so many samples is kept to judge by. ``most_rows``: of so many rows for each input
    of a layer the sums are made, evenly picked; ``memory_limit``: bytes of tensors between layers that stay
    in memory, the rest goes to files.
    """

    tune: TuneOptions = field(default_factory=TuneOptions)
    held_out: int = 5
    most_rows: int = 32
    least_rows: int = 8192
    memory_limit: int | None = None
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


Progress = Callable[[LayerReport, int, int], None]


def finetune_weights(
    float_graph: gs.Graph,
    quantized_graph: gs.Graph,
    feeds: Sequence[Feed],
    options: WalkOptions | None = None,
    *,
    progress: Progress | None = None,
) -> FineTuned:
    """Tune the quantized graph in place; see :func:`transforms.match_layers.match_layers` for which layers."""
    options = options or WalkOptions()
    if len(feeds) < 2:
        raise ValueError(f"{len(feeds)} sample, at least 2 are needed: one to fit to, one to judge by")
    layers, left = match_layers(float_graph, quantized_graph)
    done = FineTuned(left_alone=left)
    names = walk.Names(quantized_graph)
    with Store(options.memory_limit) as floats, Store(options.memory_limit) as quantized:
        sources = [layer.source.name for layer in layers]
        targets = [layer.target for layer in layers]
        reference = SteppedModel(float_graph, feeds, targets, floats, options.run)
        tuned = SteppedModel(quantized_graph, feeds, sources, quantized, options.run)
        for number, layer in enumerate(layers):
            start = time.perf_counter()
            fit, held = _collect(layer, reference, tuned, len(feeds), options)
            found = _tune(layer, fit, held, options, names, quantized_graph)
            reference.forget(layer.target)
            tuned.forget(layer.source.name)
            report = LayerReport(
                layer.name,
                layer.node.op,
                found.before,
                found.after,
                found.power,
                found.best.what,
                time.perf_counter() - start,
            )
            done.layers.append(report)
            if progress:
                progress(report, number + 1, len(layers))
    return done


def is_held_out(sample: int, count: int, options: WalkOptions) -> bool:
    """Return whether a sample of so many is one to judge by: one in five, at least one."""
    every = min(options.held_out, count)
    return sample % every == every - 1


def _collect(
    layer: MatchedLayer, reference: SteppedModel, tuned: SteppedModel, count: int, options: WalkOptions
) -> tuple[Sums, Sums]:
    """Return the sums over the rows of the samples to fit to, and of those to judge by."""
    groups, outputs, positions, channels = layer.layer.size
    inputs = positions * channels
    fit, held = Sums.zeros(groups, outputs, inputs), Sums.zeros(groups, outputs, inputs)
    most = max(options.least_rows, options.most_rows * inputs)
    share = -(-most // count)
    random = np.random.default_rng([options.seed, count])
    pairs = zip(reference.advance([layer.target]), tuned.advance([layer.source.name]), strict=True)
    for i, (wanted, given) in enumerate(pairs):
        y, x = wanted[layer.target], given[layer.source.name]
        picked = _pick(layer.layer.count(y.shape), share, random)
        sums = held if is_held_out(i, count, options) else fit
        sums.add(layer.layer.rows(x, y.shape, picked), layer.layer.outputs(y, picked))
    return fit, held


def _pick(rows: int, most: int, random: np.random.Generator) -> NDArray[np.int64] | slice:
    """Return which rows of a sample are taken: all, or one at random from each of ``most`` equal parts."""
    if rows <= most:
        return slice(None)
    edges = np.linspace(0, rows, most + 1)
    return np.minimum((edges[:-1] + random.random(most) * np.diff(edges)).astype(np.int64), rows - 1)


def _tune(
    layer: MatchedLayer,
    fit: Sums,
    held: Sums,
    options: WalkOptions,
    names: walk.Names,
    graph: gs.Graph,
) -> Tuned:
    found = tune_layer(layer, current(layer), fit, held, options.tune, input_scale(layer))
    if found.after < found.before:
        write_layer(graph, layer, found.best, names)
    return found


def current(layer: MatchedLayer) -> Candidate:
    """Return the weights and the bias that a layer has."""
    packed = layer.layer.pack(layer.weight.values()).astype(np.float64)
    groups, outputs = packed.shape[:2]
    bias = np.zeros((groups, outputs))
    if layer.bias is not None and layer.bias.stored is not None:
        bias += layer.bias.stored.values().astype(np.float64).reshape(groups, outputs) * layer.bias.gain
    return Candidate("as it was", packed.reshape(groups, outputs, -1), bias)
