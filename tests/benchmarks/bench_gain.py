"""Size, time and accuracy of presets: ``python -m tests.benchmarks.bench_gain [MODEL DATA TEST]``.

DATA is a folder of samples to quantize with, TEST an .npz file with an array for the only input, the batch
first, and ``labels``. Without them: the example. Each preset is also a command, ``python -m tools.quantize``.
Times are medians of single samples on one thread, float and quantized in turns.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import onnxruntime

import onnx_narrow
import ops
from tests.examples import write_samples

EXAMPLE = Path(write_samples.__file__).with_name("digits.onnx")
ROWS: dict[str, dict[str, object]] = {
    "`BF16` with Casts": {"config": "BF16", "assignments": {"bfloat16_as": "cast"}},
    "`A8W8`": {"config": "A8W8"},
    "`--target ort-cpu` (`U8S8`)": {"target": "ort-cpu"},
    "`A16W8`": {"config": "A16W8"},
    "`MX9`, packed": {"config": "MX9", "storage": "packed"},
    "`MX6`, packed": {"config": "MX6", "storage": "packed"},
    "`W4A8_ADAQUANT`": {"config": "W4A8_ADAQUANT"},
}
"""The rows of the table, and the options of each."""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("files", nargs="*", type=Path, metavar="MODEL DATA TEST")
    parser.add_argument("--rounds", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        model, data, test = options.files or _example(work)
        arrays = dict(np.load(test))
        labels = arrays.pop("labels")
        ((name, images),) = arrays.items()
        print("| | bytes | time | top-1 |\n|---|---|---|---|")
        baseline = _session(model)
        print(f"| float | {model.stat().st_size:,} | 1.00 | {_top1(baseline, name, images, labels):.1%} |")
        for row, given in ROWS.items():
            path = work / "quantized.onnx"
            onnx_narrow.quantize(model, path, data=data, force=True, **given)  # type: ignore[arg-type]
            session = _session(path)
            times = _times(baseline, session, {name: images[:1]}, options.rounds)
            top1 = _top1(session, name, images, labels)
            print(f"| {row} | {path.stat().st_size:,} | {times[1] / times[0]:.2f} | {top1:.1%} |", flush=True)


def _example(work: Path) -> tuple[Path, Path, Path]:
    write_samples.write(work / "digits")
    images, labels = (np.load(EXAMPLE.with_name(f"digits_test_{part}.npy")) for part in ("images", "labels"))
    np.savez(work / "test.npz", images=images, labels=labels)
    return EXAMPLE, work / "digits", work / "test.npz"


def _session(path: Path) -> onnxruntime.InferenceSession:
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    ops.register_custom_ops(settings)
    return onnxruntime.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])


def _top1(session: onnxruntime.InferenceSession, name: str, images: np.ndarray, labels: np.ndarray) -> float:
    found = [session.run(None, {name: images[i : i + 25]})[0] for i in range(0, len(images), 25)]
    return float((np.concatenate(found).reshape(len(images), -1).argmax(axis=1) == labels).mean())


def _times(
    first: onnxruntime.InferenceSession,
    second: onnxruntime.InferenceSession,
    feed: dict[str, np.ndarray],
    rounds: int,
) -> list[float]:
    spent: list[list[float]] = [[], []]
    for _ in range(rounds):
        for session, times in zip((first, second), spent, strict=True):
            start = time.perf_counter()
            session.run(None, feed)
            times.append(time.perf_counter() - start)
    return [statistics.median(times) for times in spent]


if __name__ == "__main__":
    main()
