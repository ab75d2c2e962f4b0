"""Outputs of the float model for the rows that layers are tuned on, read by workers into a folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transforms.files.atomic_write import replacing
from transforms.finetune.sample_rows import AHEAD, RowSampler, RowSource, SampledRowReader, SampledRows
from transforms.layers.matched_layer import MatchedLayer
from transforms.run.segmented_model import SegmentedRun
from transforms.run.shared_steps import FolderStore, SharedSteps


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
        """Write the rows of a part."""
        for sample, found in samples:
            for number, source in self.sources.items():
                rows, outputs = source.choose(found, sample, self.choice)
                _write(_path(self.folder, sample, number), rows, outputs)
        return {}


def read_rows(folder: Path, sample: int, number: int) -> tuple[SampledRows, NDArray[Any]]:
    """Return the rows of a layer in a sample, with the outputs of the float layer [G, R, N]."""
    with np.load(_path(folder, sample, number), allow_pickle=False) as file:
        picked = file["picked"] if "picked" in file else slice(None)
        weights = file.get("weights")
        return SampledRows(tuple(int(size) for size in file["shape"]), picked, weights), file["outputs"]


def _write(path: Path, rows: SampledRows, outputs: NDArray[Any]) -> None:
    arrays = {"shape": np.array(rows.shape, np.int64), "outputs": outputs}
    if not isinstance(rows.picked, slice):
        arrays["picked"] = rows.picked
    if rows.weights is not None:
        arrays["weights"] = rows.weights
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def _path(folder: Path, sample: int, number: int) -> Path:
    return folder / f"{sample}-{number}.npz"
