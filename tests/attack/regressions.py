"""Cases that fell once: kept in ``cases/KIND.txt``, a seed and what fell in each line, and run ever after."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).parent / "cases"


def remember(kind: str, seed: int, failure: str) -> None:
    """Add a case to those of its kind, once."""
    if seed in dict(kept(kind)):
        return
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / f"{kind}.txt").open("a", encoding="utf-8") as file:
        file.write(f"{seed} {' '.join(failure.split())[:160]}\n")


def kept(kind: str) -> Iterator[tuple[int, str]]:
    """Yield the seeds of a kind and what fell then."""
    path = FOLDER / f"{kind}.txt"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for line in lines:
        seed, _, failure = line.partition(" ")
        yield int(seed), failure
