"""Outputs of the float model for the rows that layers are tuned on, read by workers into a folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transforms.finetune.sample_rows import AHEAD, RowSampler, RowSource, SampledRowReader, SampledRows
from transforms.layers.matched_layer import MatchedLayer
from transforms.run.folder_store import FolderStore, read_arrays, write_arrays
from transforms.run.segmented_model import SegmentedRun
from transforms.run.shared_steps import SharedSteps


class SharedRowReader(SampledRowReader):
    """Lets workers read rows of the float model, layer after layer; they are in the ``folder``."""

    def __init__(
        self,
        steps: SharedSteps,
        model: SegmentedRun,
        layers: Sequence[MatchedLayer],
        streams: Sequence[str | None],
        choice: RowSampler,
        stores: tuple[FolderStore, FolderStore],
        ahead: int = AHEAD,
    ) -> None:
        """Start before the first layer, with the stores of the model and of rows."""
        floats, sampled = stores
        super().__init__(model, layers, streams, choice, sampled, ahead)
        self._steps, self._floats, self.folder = steps, floats, sampled.folder

    def _drop(self, sample: int, number: int) -> None:
        _path(self.folder, sample, number).unlink(missing_ok=True)

    def _read_on(self, numbers: range) -> None:
        sources = {number: self._sources[number] for number in numbers}
        writer = RowWriter(sources, self._choice, self.folder)
        for _ in self._steps.run(self._model, self._floats, self._names(numbers), writer, last=True):
            pass
        self._read |= {number: [] for number in numbers}


@dataclass(frozen=True)
class RowWriter:
    """Chooses rows of layers by their numbers, and writes them to a folder."""

    sources: Mapping[int, RowSource]
    choice: RowSampler
    folder: Path

    def __call__(self, samples: Iterable[tuple[int, Mapping[str, np.ndarray]]]) -> dict[str, np.ndarray]:
        """Write the rows of a part, one file for each layer; they are in memory until then."""
        arrays: dict[int, dict[str, np.ndarray]] = {number: {} for number in self.sources}
        first: list[int] = []
        for sample, found in samples:
            first = first or [sample]
            for number, source in self.sources.items():
                arrays[number] |= _arrays(sample, *source.choose(found, sample, self.choice))
        for number, made in arrays.items():
            write_arrays(_path(self.folder, first[0], number), made)
        return {}


def read_rows(folder: Path, first: int, number: int) -> Mapping[str, np.ndarray]:
    """Return the rows of a layer in the part of a first sample, read as they are asked for."""
    return read_arrays(_path(folder, first, number))


def rows_of(arrays: Mapping[str, np.ndarray], sample: int) -> tuple[SampledRows, NDArray[Any]]:
    """Return rows of a sample, with the outputs of the float layer [G, R, N]."""
    shape, outputs = arrays[f"{sample}.shape"], arrays[f"{sample}.outputs"]
    picked = arrays.get(f"{sample}.picked")
    rows = slice(None) if picked is None else picked
    return SampledRows(tuple(int(size) for size in shape), rows, arrays.get(f"{sample}.weights")), outputs


def _arrays(sample: int, rows: SampledRows, outputs: NDArray[Any]) -> dict[str, np.ndarray]:
    arrays = {"shape": np.array(rows.shape, np.int64), "outputs": outputs}
    if not isinstance(rows.picked, slice):
        arrays["picked"] = rows.picked
    if rows.weights is not None:
        arrays["weights"] = rows.weights
    return {f"{sample}.{what}": array for what, array in arrays.items()}


def _path(folder: Path, first: int, number: int) -> Path:
    return folder / f"{first}-{number}"
