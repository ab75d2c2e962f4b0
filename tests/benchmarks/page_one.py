"""The figures of page one, of the example and the models beside it: ``python -m tests.benchmarks.page_one``.

``--update`` writes them into docs/measurements.md, of which ``tests.examples.pictures`` draws the picture of
the README; ``--check`` ends with 1 where that says something else than was measured, beyond ``TOLERANCES``.
Files are made from up to 64 calibration samples. Top-1 is of evaluation data, time that of the last lines of
a command: of the processor, one thread, relative to the float model.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import onnx_narrow
from tests.benchmarks.bench_accuracy import real
from tests.examples.gain_drawing import FLOAT, INT8, Figures, find_table, read_table
from tests.helpers import real_models

PAGE = Path(__file__).parents[2] / "docs" / "measurements.md"
EXAMPLE = Path(__file__).parents[2] / "examples" / "digits"
MODELS = {
    "digits": ("ResNet, digits", ""),
    "resnet8_cifar10": ("ResNet-8, CIFAR-10", "top1_jpeg"),
    "mobilenet_v1_025": ("MobileNetV1 0.25, ImageNet", "top1"),
}
"""The columns of the table, and the metric of each; the first is that of ``examples``."""

ROWS: dict[str, dict[str, object]] = {
    INT8: {"target": "ort-cpu"},
    "`U8S8`": {"config": "U8S8"},
    "`A8W8`": {"config": "A8W8"},
    "`BF16` with Casts": {"config": "BF16", "assignments": {"bfloat16_as": "cast"}},
}
"""The rows below that of the float model, and the keywords of each."""

TOLERANCES = (0.03, 0.15, 0.02)
"""Of bytes, as a share: kept layers depend on times; of the ratio of times, by as much on other machines of
this kind; of top-1, as a difference: four of 250 images are one standard error of the share that changes."""

_SAMPLES = 64


@dataclass(frozen=True)
class Subject:
    """A model, its calibration samples, and the top-1 of a file on its evaluation data."""

    model: Path
    data: object
    top1: Callable[[Path], float]


def main() -> int:
    """Measure; print, write or check the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--update", action="store_true", help="write the table into docs/measurements.md")
    parser.add_argument("--check", action="store_true", help="compare that page with what is measured")
    job = parser.parse_args()
    table = measured()
    lines = "\n".join(shown(table)) + "\n"
    print(lines, end="")
    text = PAGE.read_text(encoding="utf-8")
    if job.update:
        PAGE.write_text(text.replace(find_table(text), lines), encoding="utf-8")
    wrong = list(differences(read_table(text)[1], table)) if job.check else []
    print("\n".join(wrong), file=sys.stderr)
    return int(bool(wrong))


def measured() -> dict[str, list[Figures]]:
    """Return bytes, ratio of times and top-1 of each row for each model."""
    table: dict[str, list[Figures]] = {name: [] for name in (FLOAT, *ROWS)}
    for name in MODELS:
        subject = _example() if name == "digits" else _real(name)
        size = subject.model.stat().st_size
        table[FLOAT].append(Figures(size, 1.0, subject.top1(subject.model)))
        for row, given in ROWS.items():
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "made.onnx"
                made = onnx_narrow.quantize(subject.model, path, data=subject.data, **given)  # type: ignore[arg-type]
                ratio = made.time.ratio.median if made.time else math.nan
                table[row].append(Figures(path.stat().st_size, ratio, subject.top1(path)))
    return table


def _example() -> Subject:
    test = np.load(EXAMPLE / "test.npz")

    def _top1(model: Path) -> float:
        (logits,) = real_models.session(model, optimized=True).run(None, {"images": test["images"]})
        return float((logits.argmax(axis=1) == test["labels"]).mean())

    return Subject(EXAMPLE / "resnet.onnx", EXAMPLE / "calibration.npz", _top1)


def _real(name: str) -> Subject:
    subject = real(name, _SAMPLES)
    baseline = real_models.all_outputs(subject.model, name)

    def _top1(model: Path) -> float:
        outputs = real_models.all_outputs(model, name)
        return float(real_models.metrics(name, baseline, outputs)[MODELS[name][1]])

    return Subject(subject.model, list(subject.feeds), _top1)


def shown(table: Mapping[str, list[Figures]]) -> Iterator[str]:
    """Yield the lines of the table in Markdown."""
    titles = " | ".join(f"{title}: bytes | time | top-1" for title, _ in MODELS.values())
    yield f"| | {titles} |"
    yield "|---" * (1 + 3 * len(MODELS)) + "|"
    for name, cells in table.items():
        words = " | ".join(f"{one.size:,} | {one.time:.2f} | {one.top1:.1%}" for one in cells)
        yield f"| {name} | {words} |"


def differences(said: Mapping[str, list[Figures]], table: Mapping[str, list[Figures]]) -> Iterator[str]:
    """Yield a line for each figure of the page that is not what was measured."""
    for name, cells in table.items():
        for old, new in zip(said[name], cells, strict=True):
            off = abs(old.size / new.size - 1), abs(old.time / new.time - 1), abs(old.top1 - new.top1)
            if any(one > most for one, most in zip(off, TOLERANCES, strict=True)):
                yield f"{name}: {old} in {PAGE.name}, measured {new}"


if __name__ == "__main__":
    sys.exit(main())
