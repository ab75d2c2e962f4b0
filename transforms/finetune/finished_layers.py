"""Store fitted or tuned layers in files until their model is written, so that a stopped job can resume.

The files hold what was decided for each layer. A resumed job runs the models as before, through every layer
in order, so that it ends with the same bytes as one that was never stopped.
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
    """A folder for all passes over the layers of one job.

    ``others``: the number of layers stored by other jobs, if the first pass found none of its own.
    """

    def __init__(self, folder: Path) -> None:
        """Take the folder, which is created when needed; OSError if it cannot be."""
        self.folder = folder
        self.others, self._is_new = 0, not folder.exists()
        self._opened = list[Path]()
        folder.mkdir(parents=True, exist_ok=True)

    def walk(self, *parts: str) -> LayerFiles:
        """Return the files of one pass, named by all that its results depend on and by our versions."""
        key = hashlib.sha256("\n".join((provenance.software(), *parts)).encode()).hexdigest()[:16]
        folder = self.folder / f"{_PREFIX}{key}"
        if not self._opened and not folder.exists():
            self.others = sum(1 for _ in self.folder.glob(f"{_PREFIX}*/*.npz"))
        self._opened.append(folder)
        folder.mkdir(parents=True, exist_ok=True)
        clear_leftovers(folder)
        return LayerFiles(folder)

    def remove(self) -> None:
        """Remove the stored layers of this job, after its model was written."""
        for path in self._opened:
            shutil.rmtree(path, ignore_errors=True)
        if self._is_new:
            with suppress(OSError):  # other processes may have put files there
                self.folder.rmdir()


class LayerFiles:
    """Decisions for the layers of one pass, by number."""

    def __init__(self, folder: Path) -> None:
        """Take a folder used only by this pass."""
        self._folder = folder

    @property
    def count(self) -> int:
        """The number of stored layers."""
        return sum(1 for _ in self._folder.glob("*.npz"))

    def get(self, number: int, before: LayerSolution) -> tuple[LayerSolution, tuple[float, ...]] | None:
        """Return the stored weights and figures of a layer, or None.

        ``before``: its present weights, returned if they were not changed.
        """
        try:
            arrays = read_arrays(self._path(number))
            figures = tuple(arrays[_FIGURES].tolist())
            return (_solution(arrays) if _WEIGHTS in arrays else before), figures
        except FileNotFoundError:
            return None
        except Exception as error:  # a truncated file may raise anything
            log.info("'%s' is not used: %r", self._path(number), error)
            return None

    def put(self, number: int, solution: LayerSolution | None, figures: tuple[float, ...]) -> None:
        """Store the weights of a layer (None: unchanged) and figures; the file appears at once."""
        arrays: dict[str, AnyArray] = {_FIGURES: np.array(figures, np.float64)}
        if solution is not None:
            arrays |= {
                _WEIGHTS: solution.weights.astype(np.float32),  # as they are written, whatever computed them
                _BIAS: solution.bias,
                _WORDS: np.frombuffer(solution.what.encode(), np.uint8),
            }
        if solution is not None and solution.scale is not None:
            scale, zero_point = solution.scale
            arrays |= {_SCALE: scale, _ZERO_POINT: zero_point.astype(np.int64)}  # archives have no uint4
        with replacing(self._path(number)) as file:
            write_arrays(file, arrays)

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:06d}.npz"


def _solution(arrays: Mapping[str, AnyArray]) -> LayerSolution:
    scale = (arrays[_SCALE], arrays[_ZERO_POINT]) if _SCALE in arrays else None
    return LayerSolution(arrays[_WORDS].tobytes().decode(), arrays[_WEIGHTS], arrays[_BIAS], scale)
