"""Layers that are fitted or tuned, in files until their model is written: a stopped job goes on after them.

What is kept of a layer is what was decided for it. Models run as they did, through every layer in turn, so
that a job that goes on ends with the bytes of one that was never stopped.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np

from ops.array_types import AnyArray
from transforms.files.array_archive import read_arrays, write_arrays
from transforms.files.cleanup import replacing
from transforms.files.model_files import clear_leftovers
from transforms.finetune.tune_layer import LayerSolution
from transforms.model import provenance

log = logging.getLogger(__name__)

_PREFIX = "layers-"
_WEIGHTS, _BIAS, _SCALE, _ZERO_POINT = "weights", "bias", "scale", "zero_point"
_WORDS, _FIGURES = "words", "figures"


class FinishedLayers:
    """A folder for all walks over layers of one job.

    ``others``: how many layers are there of other jobs, if the first walk found none of its own.
    """

    def __init__(self, folder: Path) -> None:
        """Take the folder, which is made when it is needed; OSError if it cannot be."""
        self.folder = folder
        self.others, self._is_new = 0, not folder.exists()
        self._opened = list[Path]()
        folder.mkdir(parents=True, exist_ok=True)

    def walk(self, *parts: str) -> LayerFiles:
        """Return the files of one walk, by all that its results depend on beside our versions."""
        key = hashlib.sha256("\n".join((provenance.software(), *parts)).encode()).hexdigest()[:16]
        own = self.folder / f"{_PREFIX}{key}"
        if not self._opened and not own.exists():
            self.others = sum(1 for _ in self.folder.glob(f"{_PREFIX}*/*.npz"))
        self._opened.append(own)
        own.mkdir(parents=True, exist_ok=True)
        clear_leftovers(own)
        return LayerFiles(own)

    def remove(self) -> None:
        """Remove what this job has kept, now that its model is written."""
        for path in self._opened:
            shutil.rmtree(path, ignore_errors=True)
        if self._is_new:
            with suppress(OSError):  # others may have put something there
                self.folder.rmdir()


class LayerFiles:
    """What was decided for layers of one walk, by their numbers."""

    def __init__(self, folder: Path) -> None:
        """Take a folder of this walk alone."""
        self._folder = folder

    @property
    def count(self) -> int:
        """How many layers are there."""
        return sum(1 for _ in self._folder.glob("*.npz"))

    def get(self, number: int, before: LayerSolution) -> tuple[LayerSolution, tuple[float, ...]] | None:
        """Return the weights of a layer and the figures kept with them, None if they are not there.

        ``before``: those that it has, which are returned where they were not changed.
        """
        try:
            arrays = read_arrays(self._path(number))
            figures = tuple(arrays[_FIGURES].tolist())
            return (_solution(arrays) if _WEIGHTS in arrays else before), figures
        except FileNotFoundError:
            return None
        except Exception as error:  # of a file that was cut off, which may raise anything
            log.info("'%s' is not used: %r", self._path(number), error)
            return None

    def put(self, number: int, found: LayerSolution | None, figures: tuple[float, ...]) -> None:
        """Keep the weights of a layer, None for those that it has, and figures; the file appears whole."""
        arrays: dict[str, AnyArray] = {_FIGURES: np.array(figures, np.float64)}
        if found is not None:
            arrays |= {
                _WEIGHTS: found.weights.astype(np.float32),  # as they are written, whatever found them
                _BIAS: found.bias,
                _WORDS: np.frombuffer(found.what.encode(), np.uint8),
            }
        if found is not None and found.scale is not None:
            scale, zero_point = found.scale
            arrays |= {_SCALE: scale, _ZERO_POINT: zero_point.astype(np.int64)}  # archives have no uint4
        with replacing(self._path(number)) as file:
            write_arrays(file, arrays)

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:06d}.npz"


def _solution(arrays: Mapping[str, AnyArray]) -> LayerSolution:
    scale = (arrays[_SCALE], arrays[_ZERO_POINT]) if _SCALE in arrays else None
    return LayerSolution(arrays[_WORDS].tobytes().decode(), arrays[_WEIGHTS], arrays[_BIAS], scale)
