"""Time of comparing two folders of results against reading them.

Run it from the project's root: ``python -m tests.benchmarks.bench_evaluate``. Pairs of float32 files of 1 MB,
which lie in the page cache, are compared and read by ``np.load`` into new memory, in turns. The target is
twice the time of reading.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from time import perf_counter

import numpy as np

from tests.benchmarks.bench_quantize import verdict
from transforms.compare.compare_results import compare, pair_files

TARGET = 2.0


def write_pairs(folder: Path, count: int) -> None:
    """Write random files, and the same with small errors."""
    random = np.random.default_rng(0)
    for name in ("baseline", "quantized"):
        (folder / name).mkdir()
    for i in range(count):
        x = random.standard_normal((1, 1 << 18)).astype(np.float32)
        np.save(folder / "baseline" / f"{i}.npy", x)
        np.save(folder / "quantized" / f"{i}.npy", x + np.float32(0.01))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Compare comparing with reading.")
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    reading, comparing = [], []
    with tempfile.TemporaryDirectory() as name:
        write_pairs(Path(name), options.pairs)
        pairs = pair_files(Path(name) / "baseline", Path(name) / "quantized")
        list(compare(pairs))  # imports what it needs
        for _ in range(options.rounds):
            start = perf_counter()
            held = [(np.load(pair.baseline), np.load(pair.quantized)) for pair in pairs]
            middle = perf_counter()
            del held
            list(compare(pairs))
            reading.append(middle - start)
            comparing.append(perf_counter() - middle)
    print(f"{options.pairs} pairs read in {statistics.median(reading):.3f} s")
    ratios = [one / other for one, other in zip(comparing, reading, strict=True)]
    print(verdict("comparing to reading", statistics.median(ratios), TARGET))


if __name__ == "__main__":
    main()
