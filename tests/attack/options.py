"""Random valid graphs through the options beside presets: see README.md, and ``graphs/conversions.py``."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.attack.graphs.build import Built, build
from tests.attack.graphs.conversions import CONVERSIONS
from tests.attack.graphs.run import keep, kept, try_with
from tests.attack.graphs.trial import Trial

__all__ = ["attack", "keep", "replay"]


def attack(seed: int, folder: Path) -> str | None:
    """Build the graph of a seed and convert it in every way; return None, or what fell in one line."""
    return _try_all(build(seed), seed, folder)


def replay(path: Path, folder: Path) -> str | None:
    """Do with a model that was kept what :func:`attack` does with that of a seed."""
    return _try_all(kept(path), int(path.stem.rpartition("_")[2]), folder)


def _try_all(built: Built, seed: int, folder: Path) -> str | None:
    return try_with(built, folder, lambda trial, samples: _all(trial, samples, seed))


def _all(trial: Trial, samples: Path | None, seed: int) -> None:
    for index, (name, convert) in enumerate(CONVERSIONS.items()):
        if samples:
            trial.attempt(name, convert, trial, samples, np.random.default_rng([seed, 9, index]))
