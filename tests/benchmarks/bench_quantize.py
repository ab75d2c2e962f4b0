"""Time and peak memory of a quantization, and the speed of what it makes.

Run it from the project's root: ``python -m tests.benchmarks.bench_quantize``.

* **A8W8** of a 200 MB transformer with 32 samples of 128 words, against a script that loads the model,
  creates one session, runs the same samples in float and saves the model. Both are fresh processes, started
  alternately; a ratio is the median of the rounds. Peak memory is the largest resident set, imports included,
  beside the size of the file.
* **Inference** of the same transformer in block formats on ONNX Runtime's CPU provider, against the float
  model: both sessions in one process, run alternately, medians of their times.

Nothing here fails when a target is missed: times depend on the machine, so the numbers are printed beside the
targets.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime

import ops
from tests.benchmarks.bench_convert import Cost, measure

SAMPLES, WORDS, VOCABULARY = 32, 128, 24000
TIME_TARGET, MEMORY_TARGET, RUN_TARGET = 3.0, 3.5, 3.0
BLOCK_FORMATS = ("BFP16", "MX9", "MXINT8", "MXFP4E2M1")

FLOAT_JOB = """
import sys, pathlib, numpy, onnx, onnxruntime
model = onnx.load(sys.argv[1])
session = onnxruntime.InferenceSession(sys.argv[1])
for path in sorted(pathlib.Path(sys.argv[2]).iterdir()):
    session.run(None, dict(numpy.load(path)))
onnx.save(model, sys.argv[3])
"""


def write_samples(folder: Path) -> None:
    """Write sentences of random words, without padding."""
    random = np.random.default_rng(0)
    for i in range(SAMPLES):
        words = random.integers(0, VOCABULARY, (1, WORDS))
        np.savez(folder / f"{i:04d}.npz", input_ids=words, attention_mask=np.ones_like(words))


def quantization_costs(model: Path, data: Path, folder: Path, rounds: int) -> tuple[list[Cost], list[Cost]]:
    """Run the float job and the quantization alternately; the first round is not counted."""
    tool = ["-m", "tools.quantize", "--config", "A8W8", "--force", "--calibration-data", str(data)]
    commands = (
        ["-c", FLOAT_JOB, str(model), str(data), str(folder / "copy.onnx")],
        [*tool, "--input", str(model), "--output", str(folder / "a8w8.onnx")],
    )
    found: list[list[Cost]] = [[measure(command) for command in commands] for _ in range(rounds + 1)]
    plain, quantized = zip(*found[1:], strict=True)
    return list(plain), list(quantized)


def quantization_lines(plain: list[Cost], quantized: list[Cost], size: int) -> Iterator[str]:
    """Yield medians, then the ratios beside their targets."""
    for name, costs in (("load, session, runs, save", plain), ("quantize A8W8", quantized)):
        seconds = statistics.median(cost.seconds for cost in costs)
        megabytes = statistics.median(cost.megabytes for cost in costs)
        yield f"{name:36}{seconds:6.2f} s {megabytes:8.0f} MB"
    ratio = statistics.median(b.seconds / a.seconds for a, b in zip(plain, quantized, strict=True))
    yield verdict("ratio of time", ratio, TIME_TARGET)
    peak = statistics.median(cost.megabytes for cost in quantized)
    yield verdict("peak memory to size of file", peak * 1e6 / size, MEMORY_TARGET)


def run_lines(model: Path, data: Path, folder: Path, rounds: int) -> Iterator[str]:
    """Yield the time of an inference in each block format beside that in float."""
    feed = dict(np.load(data / "0000.npz"))
    plain = session(model)
    for config in BLOCK_FORMATS:
        target = folder / f"{config}.onnx"
        tool = ["-m", "tools.quantize", "--config", config, "--force"]
        measure([*tool, "--input", str(model), "--output", str(target)])
        blocks, ratios = session(target), []
        for _ in range(rounds + 1):
            a, b = (run_seconds(one, feed) for one in (plain, blocks))
            ratios.append(b / a)
        yield verdict(f"inference in {config} to float", statistics.median(ratios[1:]), RUN_TARGET)
        target.unlink()


def session(model: Path) -> onnxruntime.InferenceSession:
    """Return a session on the CPU that knows our operators."""
    options = onnxruntime.SessionOptions()
    ops.register_custom_ops(options)
    return onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


def run_seconds(model: onnxruntime.InferenceSession, feed: dict[str, np.ndarray]) -> float:
    """Return how long a run takes."""
    start = time.perf_counter()
    model.run(None, feed)
    return time.perf_counter() - start


def verdict(name: str, value: float, target: float) -> str:
    """Return a line with a ratio beside its target."""
    return f"{name:36}{value:6.2f}x  target {target}x: {'met' if value <= target else 'MISSED'}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Compare a quantization with float runs of the same data.")
    parser.add_argument("--rounds", type=int, default=5, help="how often to run each (default: %(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = folder / "data"
        data.mkdir()
        write_samples(data)
        model = folder / "transformer.onnx"
        measure(["-m", "tests.benchmarks.transformer", str(model)])
        print(f"{model.name}: {model.stat().st_size / 1e6:.1f} MB, {os.cpu_count()} cores", flush=True)
        for line in quantization_lines(
            *quantization_costs(model, data, folder, options.rounds), model.stat().st_size
        ):
            print(line, flush=True)
        for line in run_lines(model, data, folder, options.rounds):
            print(line, flush=True)


if __name__ == "__main__":
    main()
