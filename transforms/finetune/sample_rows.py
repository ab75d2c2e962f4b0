"""Outputs of the float model for the rows that layers are tuned on, read for several layers at once.

The float model does not change meanwhile: the fewer steps it runs in, the less time it takes. Only the
sampled rows of its outputs are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ops.array_types import Float64Array
from transforms.finetune.layer_targets import weigh
from transforms.layers.linear_layer import LinearLayer, Rows
from transforms.layers.matched_layer import MatchedLayer
from transforms.run.segmented_model import ActivationStore, SegmentedRun

AHEAD = 1 << 28  # bytes of rows of layers that are read together


@dataclass(frozen=True)
class RowSampler:
    """Which rows are used: ``most`` for each input of a layer, but at least ``least``.

    They are sampled evenly from all ``samples``, with ``seed``.
    """

    samples: int
    most: int
    least: int
    seed: int

    def share(self, layer: LinearLayer) -> int:
        """Return the largest number of rows of one sample."""
        _, _, positions, channels = layer.size
        return -(-max(self.least, self.most * positions * channels) // self.samples)


@dataclass(frozen=True)
class SampledRows:
    """Rows of a sample: the ``shape`` of the output, the indices of rows, and the weight of each."""

    shape: tuple[int, ...]
    picked: Rows | slice
    weights: Float64Array | None


class SampledRowReader:
    """Reads rows of the float model, layer after layer."""

    def __init__(
        self,
        model: SegmentedRun,
        layers: Sequence[MatchedLayer],
        streams: Sequence[str | None],
        choice: RowSampler,
        store: ActivationStore,
        ahead: int = AHEAD,
    ) -> None:
        """Start before the first layer.

        The model must offer the targets and ``streams`` (see transforms.finetune.layer_targets) of all
        layers. Rows of at most ``ahead`` bytes are read together, or those of one layer, and kept in the
        store.
        """
        self._model, self._layers, self._streams = model, layers, streams
        self._choice, self._store, self._ahead = choice, store, ahead
        self._read: dict[int, list[SampledRows]] = {}

    def read(self, number: int, *, last: bool = False) -> Iterator[tuple[SampledRows, NDArray[Any]]]:
        """Yield the rows of a layer, sample by sample, with the outputs of the float layer [G, R, N].

        Layers are read or forgotten in their order. Rows are dropped by :meth:`forget`, or while they are
        read if this is the ``last`` time.
        """
        if number not in self._read:
            self._read_on(number)
        for i, rows in enumerate(self._read.pop(number) if last else self._read[number]):
            outputs = self._store.get(i, str(number))
            if last:
                self._store.drop(i, str(number))
            yield rows, outputs

    def forget(self, number: int) -> None:
        """Drop the rows of a layer, or skip it if they have not been read."""
        if number in self._read:
            for i in range(len(self._read.pop(number))):
                self._store.drop(i, str(number))
            return
        for name in self._names(number):
            self._model.forget(name)

    def _names(self, number: int) -> list[str]:
        stream = self._streams[number]
        return [self._layers[number].target, *([] if stream is None else [stream])]

    def _read_on(self, first: int) -> None:
        numbers = range(first, self._end(first))
        randoms = [np.random.default_rng([self._choice.seed, self._choice.samples]) for _ in numbers]
        names = [name for number in numbers for name in self._names(number)]
        self._read = {number: [] for number in numbers}
        for i, found in enumerate(self._model.advance(names, last=True)):
            for number, random in zip(numbers, randoms, strict=True):
                layer, y = self._layers[number].layer, found[self._layers[number].target]
                rows = self._choose(number, found, random)
                self._read[number].append(rows)
                self._store.put(i, str(number), layer.outputs(y, rows.picked))

    def _end(self, first: int) -> int:
        """Return the number after the last layer that is read together with the first."""
        size, end = 0, first
        while end < len(self._layers):
            layer = self._layers[end].layer
            groups, outputs, _, _ = layer.size
            size += 4 * self._choice.samples * self._choice.share(layer) * groups * outputs
            if size > self._ahead and end > first:
                break
            end += 1
        return end

    def _choose(
        self, number: int, found: dict[str, NDArray[Any]], random: np.random.Generator
    ) -> SampledRows:
        layer, stream = self._layers[number].layer, self._streams[number]
        shape = found[self._layers[number].target].shape
        picked = _pick(layer.count(shape), self._choice.share(layer), random)
        weights = None if stream is None else weigh(layer, shape, found[stream])
        return SampledRows(shape, picked, None if weights is None else weights[picked])


def _pick(rows: int, most: int, random: np.random.Generator) -> Rows | slice:
    """Return the indices of sampled rows: all, or one at random from each of ``most`` equal parts."""
    if rows <= most:
        return slice(None)
    places = (np.arange(most) + random.random(most)) * (rows / most)
    return np.minimum(places.astype(np.int64), rows - 1)
