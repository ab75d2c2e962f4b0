"""What layers in float for the outputs bring and cost: ``python -m tests.benchmarks.bench_lossy --help``.

Every model is quantized without the move ``try_lossy_layers`` and with it, on the same calibration samples. A
row has the SNR of evaluation data that neither has seen in dB, the layers that stay float, how many
percent of bytes the file has more, and how many times as long making it takes, in processor time.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.benchmarks.bench_accuracy import Subject, subjects

import numpy as np  # isort: skip

import onnx_narrow
from transforms.moves import lossy_layers
from transforms.pipelines.decide import MOVES

WITHOUT = [move for move in MOVES if move is not lossy_layers.try_lossy_layers]


def row(subject: Subject, preset: str, folder: Path, effort: str) -> tuple[list[str], list[float]]:
    """Return the cells of a row; and dB gained, percent of bytes and ratio of seconds as numbers."""
    snrs, sizes, seconds, layers = [], [], [], 0
    for name, moves in (("without", WITHOUT), ("with", MOVES)):
        start = time.process_time()
        path = folder / f"{name}.onnx"
        made = onnx_narrow.quantize(
            subject.model, path, config=preset, data=list(subject.feeds), moves=moves, effort=effort
        )
        seconds.append(time.process_time() - start)
        snrs.append(subject.judge(path))
        sizes.append(path.stat().st_size)
        layers = next((one.change for one in made.decided if one.move == "layers in float" and one.kept), "0")
    more, ratio = 100 * (sizes[1] / sizes[0] - 1), seconds[1] / seconds[0]
    cells = [f"{snrs[0]:.1f} -> {snrs[1]:.1f}", str(layers).split()[0], f"{more:+.1f} %", f"{ratio:.2f}"]
    return cells, [snrs[1] - snrs[0], more, ratio]


def table(models: Sequence[str], presets: Sequence[str], samples: int, effort: str) -> Iterator[str]:
    """Yield the lines of a Markdown table, each as soon as it is measured, and of all rows at the end."""
    yield "| model | preset | dB | layers in float | bytes | time |"
    yield "|---|---|---|---|---|---|"
    numbers = []
    for subject in subjects(models, samples):
        for preset in presets:
            with tempfile.TemporaryDirectory() as name:
                try:
                    cells, found = row(subject, preset, Path(name), effort)
                except ValueError as error:  # nothing to quantize
                    yield f"| {subject.name} | {preset} | {error} | | | |"
                    continue
            numbers.append(found)
            yield f"| {' | '.join([subject.name, preset, *cells])} |"
    gains, bytes_more, ratios = np.array(numbers).T
    tenth = np.percentile(gains, 10)
    yield (
        f"{len(numbers)} rows: {gains.mean():+.2f} dB in the mean, 10th percentile {tenth:+.2f} dB, "
        f"{bytes_more.mean():+.1f} % bytes, {ratios.mean():.2f} times the processor time"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", nargs="+", default=[], help="names of models (default: all)")
    parser.add_argument("--presets", nargs="+", default=["U8S8", "A8W8"], help="default: U8S8 A8W8")
    parser.add_argument("--samples", type=int, default=8, help="calibration samples (default: 8)")
    parser.add_argument("--effort", default="normal", help="low, normal (default) or high")
    parser.add_argument("--per-percent", type=float, default=None, help="dB for a percent of bytes, another")
    job = parser.parse_args()
    if job.per_percent is not None:
        vars(lossy_layers)["PER_PERCENT"] = job.per_percent
    for line in table(job.models, job.presets, job.samples, job.effort):
        print(line, flush=True)


if __name__ == "__main__":
    main()
