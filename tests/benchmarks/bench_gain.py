"""Size, time and accuracy of presets: ``python -m tests.benchmarks.bench_gain [MODEL DATA TEST]``.

DATA are samples to quantize with, a folder or a file, TEST an .npz file with an array for the only input, the
batch first, and ``labels``. Without them: the example. Each preset is also a command of
``python -m tools.quantize``. Times are medians of single samples on one thread, float and quantized in turns.
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
from examples.digits import train

EXAMPLE = [Path(train.__file__).with_name(name) for name in ("resnet.onnx", "calibration.npz", "test.npz")]
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
        path = Path(temporary) / "quantized.onnx"
        model, data, test = options.files or EXAMPLE
        arrays = dict(np.load(test))
        labels = arrays.pop("labels")
        ((name, images),) = arrays.items()
        print("| | bytes | time | top-1 |\n|---|---|---|---|")
        baseline = _session(model)
        print(f"| float | {model.stat().st_size:,} | 1.00 | {_top1(baseline, name, images, labels):.1%} |")
        for row, given in ROWS.items():
            onnx_narrow.quantize(model, path, data=data, force=True, **given)  # type: ignore[arg-type]
            session = _session(path)
            times = _times(baseline, session, {name: images[:1]}, options.rounds)
            top1 = _top1(session, name, images, labels)
            print(f"| {row} | {path.stat().st_size:,} | {times[1] / times[0]:.2f} | {top1:.1%} |", flush=True)


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
