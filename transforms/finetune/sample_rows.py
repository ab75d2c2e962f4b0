"""Outputs of the float model for the rows on which layers are tuned, read for several layers at once.

The float model does not change meanwhile: the fewer steps it runs in, the less time it takes. Only the
sampled rows of its outputs are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transforms.layers.linear_layer import LinearLayer, Rows
from transforms.layers.matched_layer import MatchedLayer
from transforms.run.kept_arrays import ActivationStore
from transforms.run.segmented_model import SegmentedRun

AHEAD = 1 << 28  # bytes of rows of layers that are read together


@dataclass(frozen=True)
class RowSampler:
    """The choice of rows: ``most`` for each input of a layer, but at least ``least``.

    A layer with more inputs than that uses as few, which take less memory than its Gram matrix would. Rows
    are sampled evenly from all ``samples``, with ``seed``.
    """

    samples: int
    most: int
    least: int
    seed: int

    def share(self, layer: LinearLayer) -> int:
        """Return the largest number of rows from one sample."""
        _, _, positions, channels = layer.size
        inputs = positions * channels
        return -(
            -(self.least if inputs > self.least else max(self.least, self.most * inputs)) // self.samples
        )

    def pick(self, rows: int, most: int, sample: int) -> Rows | slice:
        """Return the indices of rows of a sample: all, or a random one from each of ``most`` equal parts.

        Each sample has its own place in the sequence of random numbers, independent of the reader.
        """
        if rows <= most:
            return slice(None)
        random, start = self._random
        random.bit_generator.state = start
        random.bit_generator.advance(sample * most)  # type: ignore[attr-defined]
        places = (np.arange(most) + random.random(most)) * (rows / most)
        return np.minimum(places.astype(np.int64), rows - 1)

    @cached_property
    def _random(self) -> tuple[np.random.Generator, Mapping[str, Any]]:
        random = np.random.Generator(np.random.PCG64([self.seed, self.samples]))
        return random, random.bit_generator.state


@dataclass(frozen=True)
class SampledRows:
    """Rows of a sample: the ``shape`` of the output, and the indices of rows."""

    shape: tuple[int, ...]
    picked: Rows | slice


class SampledRowReader:
    """Reads rows of the float model, layer after layer."""

    def __init__(
        self,
        model: SegmentedRun,
        layers: Sequence[MatchedLayer],
        choice: RowSampler,
        store: ActivationStore,
        ahead: int = AHEAD,
    ) -> None:
        """Start before the first layer; the model must provide the targets of all layers.

        Rows of at most ``ahead`` bytes, or those of one layer, are read together and kept in the store.
        """
        self._layers = layers
        self._model, self._choice, self._store, self._ahead = model, choice, store, ahead
        self._read: dict[int, list[SampledRows]] = {}
        self._present = 1.0  # the last layers' share of the rows that may be chosen

    def prepare(self, number: int) -> None:
        """Run the model up to a layer and some further ones, unless that was done before."""
        if number not in self._read:
            self._read_on(range(number, self._end(number)))

    def read(self, number: int, *, last: bool = False) -> Iterator[tuple[SampledRows, NDArray[Any]]]:
        """Yield the rows of a layer, sample by sample, with the outputs of the float layer [G, R, N].

        Layers are read or forgotten in order. Rows are dropped by :meth:`forget`, or while they are read if
        this is the ``last`` time.
        """
        self.prepare(number)
        for i, rows in enumerate(self._read.pop(number) if last else self._read[number]):
            outputs = self._store.get(i, str(number))
            if last:
                self._store.drop(i, str(number))
            yield rows, outputs

    def forget(self, number: int) -> None:
        """Drop the rows of a layer, or skip it if they have not been read."""
        if number in self._read:
            del self._read[number]
            for i in range(self._choice.samples):
                self._drop(i, number)
            return
        self._model.forget(self._layers[number].target)

    def _drop(self, sample: int, number: int) -> None:
        self._store.drop(sample, str(number))

    def _read_on(self, numbers: range) -> None:
        self._read |= {number: [] for number in numbers}
        targets = [self._layers[number].target for number in numbers]
        size = 0
        for i, outputs in enumerate(self._model.advance(targets, last=True)):
            for number, target in zip(numbers, targets, strict=True):
                layer, output = self._layers[number].layer, outputs[target]
                picked = self._choice.pick(layer.count(output.shape), self._choice.share(layer), i)
                self._read[number].append(SampledRows(output.shape, picked))
                rows = layer.outputs(output, picked)
                size += rows.nbytes
                self._store.put(i, str(number), rows)
        self._present = size / sum(map(self._most_bytes, numbers))

    def _end(self, first: int) -> int:
        """Return the number after the last layer that is read together with the first."""
        size, end = 0.0, first
        while end < len(self._layers):
            size += self._present * self._most_bytes(end)
            if size > self._ahead and end > first:
                break
            end += 1
        return end

    def _most_bytes(self, number: int) -> int:
        """Return the bytes of a layer's rows if its outputs have as many as may be chosen."""
        layer = self._layers[number].layer
        groups, outputs, _, _ = layer.size
        return 4 * self._choice.samples * self._choice.share(layer) * groups * outputs
