"""Cases that fell once, kept in ``cases/`` and run ever after.

A kind with functions ``keep(seed, path)`` and ``replay(path, folder)`` keeps files, of which the
``.onnx`` is replayed; any other has a line in ``KIND.txt``: a seed, and what fell.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

from tests.attack import kinds

FOLDER = Path(__file__).parent / "cases"


def remember(kind: str, seed: int, failure: str) -> None:
    """Keep a case, once."""
    FOLDER.mkdir(exist_ok=True)
    module = importlib.import_module(f"tests.attack.{kind}")
    if hasattr(module, "keep"):
        module.keep(seed, FOLDER / f"{kind}_{seed}")
    elif seed not in _seeds(kind):
        with (FOLDER / f"{kind}.txt").open("a", encoding="utf-8") as file:
            file.write(f"{seed} {' '.join(failure.split())[:160]}\n")


def kept() -> Iterator[tuple[str, str]]:
    """Yield kind and seed, or kind and name of a file, of every case that was kept."""
    for kind in kinds.found():
        yield from ((kind, str(seed)) for seed in _seeds(kind))
        yield from ((kind, path.name) for path in sorted(FOLDER.glob(f"{kind}_*.onnx")))


def rerun(kind: str, case: str, folder: Path) -> str | None:
    """Run a case that was kept, as the function ``attack`` of its kind runs one."""
    if not case.endswith(".onnx"):
        return kinds.load(kind)(int(case), folder)
    found: str | None = importlib.import_module(f"tests.attack.{kind}").replay(FOLDER / case, folder)
    return found


def _seeds(kind: str) -> list[int]:
    path = FOLDER / f"{kind}.txt"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [int(line.split()[0]) for line in lines]
