"""What each move of the default brings and costs: ``python -m tests.benchmarks.bench_moves --help``.

Every model is quantized as by default, and again without each move. A row has how many dB the move brings on
evaluation data that no choice has seen, in the mean over models and where most, in how many models it changes
the outputs, the runs that it takes of the budget, and the processor time, both in the mean.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.benchmarks.bench_accuracy import Subject, subjects

import numpy as np  # isort: skip

import onnx_narrow
from transforms.moves.improve import Best, Move
from transforms.pipelines import decide

_CHANGES = 0.05
"""dB from which on a move counts as having changed the outputs."""


@dataclass
class Totals:
    """What is known of a move: dB that it brings by model, runs and seconds."""

    gains: dict[str, float] = field(default_factory=dict)
    runs: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def cells(self) -> list[str]:
        """Return the cells of a row."""
        most = max(self.gains, key=self.gains.__getitem__)
        changed = sum(abs(gain) >= _CHANGES for gain in self.gains.values())
        return [
            f"{np.mean(list(self.gains.values())):+.2f}",
            f"{self.gains[most]:+.1f} ({most})",
            f"{changed} of {len(self.gains)}",
            f"{np.mean(self.runs):.0f}",
            f"{np.mean(self.seconds):.1f}",
        ]


def counting(move: Move, runs: list[int]) -> Move:
    """Return a move that notes how many runs of the budget it takes."""

    def _move(best: Best) -> None:
        before = best.budget.runs
        move(best)
        runs.append(before - best.budget.runs)

    return _move


def made(subject: Subject, preset: str, moves: Sequence[Move], effort: str) -> tuple[float, float]:
    """Return dB on evaluation data and processor seconds of the model that some moves make."""
    start = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        path, data = Path(folder) / "made.onnx", list(subject.feeds)
        onnx_narrow.quantize(subject.model, path, config=preset, data=data, moves=moves, effort=effort)
        seconds = time.process_time() - start
        return subject.judge(path), seconds


def measure(subject: Subject, preset: str, effort: str, found: dict[str, Totals]) -> None:
    """Add what each move does to a model to what is known."""
    moves = {move.__name__: move for move in decide.MOVES}
    taken: dict[str, list[int]] = {name: [] for name in moves}
    every = [counting(move, taken[move.__name__]) for move in decide.MOVES]
    base, seconds = made(subject, preset, every, effort)
    for name in moves:
        some = [move for move in decide.MOVES if move.__name__ != name]
        without, less = made(subject, preset, some, effort)
        one = found.setdefault(name, Totals())
        one.gains[subject.name] = base - without
        one.seconds.append(seconds - less)
        one.runs.append(sum(taken[name]))


def table(models: Sequence[str], preset: str, samples: int, effort: str) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    found: dict[str, Totals] = {}
    for subject in subjects(models, samples):
        measure(subject, preset, effort, found)
    yield "| move | dB | most | changes | runs | seconds |"
    yield "|---|---|---|---|---|---|"
    ordered = sorted(found.items(), key=lambda one: -float(np.mean(list(one[1].gains.values()))))
    for name, totals in ordered:
        yield f"| `{name}` | {' | '.join(totals.cells())} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", nargs="+", default=[], help="names of models (default: all)")
    parser.add_argument("--preset", default="U8S8", help="default: U8S8")
    parser.add_argument("--samples", type=int, default=8, help="calibration samples (default: 8)")
    parser.add_argument("--effort", default="normal", help="low, normal (default) or high")
    job = parser.parse_args()
    for line in table(job.models, job.preset, job.samples, job.effort):
        print(line, flush=True)


if __name__ == "__main__":
    main()
