"""The table of page one, measured on the models beside the project: ``python -m tests.benchmarks.page_one``.

``--update`` writes it into the README, ``--check`` ends with 1 where the README says something else than was
measured, beyond ``TOLERANCES``. Files are made from up to 64 calibration samples. Top-1 is of evaluation
data, time that of the last lines of a command: of the processor, one thread, beside the float model.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import onnx_narrow
from tests.benchmarks.bench_accuracy import real
from tests.helpers import real_models

README = Path(__file__).parents[2] / "README.md"
MODELS = {
    "resnet8_cifar10": ("ResNet-8, CIFAR-10", "top1_jpeg"),
    "mobilenet_v1_025": ("MobileNetV1 0.25, ImageNet", "top1"),
}
"""The columns of the table, and the metric of each."""

ROWS: dict[str, dict[str, object]] = {
    "`--target ort-cpu` (`U8S8`)": {"target": "ort-cpu"},
    "`A8W8`": {"config": "A8W8"},
    "`BF16` with Casts": {"config": "BF16", "assignments": {"bfloat16_as": "cast"}},
}
"""The rows below that of the float model, and the keywords of each."""

TOLERANCES = (0.03, 0.15, 0.02)
"""Of bytes, as a share: kept layers depend on times; of the ratio of times, by as much on other machines of
this kind; of top-1, as a difference: four of 250 images are one standard error of the share that changes."""

_SAMPLES = 64
Row = list[tuple[int, float, float]]


def main() -> int:
    """Measure; print, write or check the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--update", action="store_true", help="write the table into the README")
    parser.add_argument("--check", action="store_true", help="compare the README with what is measured")
    job = parser.parse_args()
    table = measured()
    lines = list(shown(table))
    print("\n".join(lines))
    text = README.read_text()
    if job.update:
        README.write_text(re.sub(r"\| \| ResNet-8(.+\n)+", "\n".join(lines) + "\n", text))
    wrong = list(differences(text, table)) if job.check else []
    print("\n".join(wrong), file=sys.stderr)
    return int(bool(wrong))


def measured() -> dict[str, Row]:
    """Return bytes, ratio of times and top-1 of each row for each model."""
    table: dict[str, Row] = {name: [] for name in ("float", *ROWS)}
    for name, (_, metric) in MODELS.items():
        subject = real(name, _SAMPLES)
        baseline = real_models.all_outputs(subject.model, name)
        top1 = real_models.metrics(name, baseline, baseline)[metric]
        table["float"].append((subject.model.stat().st_size, 1.0, top1))
        for row, given in ROWS.items():
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "made.onnx"
                made = onnx_narrow.quantize(subject.model, path, data=list(subject.feeds), **given)  # type: ignore[arg-type]
                top1 = real_models.metrics(name, baseline, real_models.all_outputs(path, name))[metric]
                ratio = made.time.ratio.median if made.time else math.nan
                table[row].append((path.stat().st_size, ratio, top1))
    return table


def shown(table: Mapping[str, Row]) -> Iterator[str]:
    """Yield the lines of the table in Markdown."""
    titles = " | ".join(f"{title}: bytes | time | top-1" for title, _ in MODELS.values())
    yield f"| | {titles} |"
    yield "|---" * (1 + 3 * len(MODELS)) + "|"
    for name, cells in table.items():
        words = " | ".join(f"{size:,} | {ratio:.2f} | {top1:.1%}" for size, ratio, top1 in cells)
        yield f"| {name} | {words} |"


def differences(text: str, table: Mapping[str, Row]) -> Iterator[str]:
    """Yield a line for each figure of the README that is not what was measured."""
    for name, cells in table.items():
        (line,) = re.findall(rf"^\| {re.escape(name)} \| (.+) \|$", text, re.MULTILINE)
        said = [float(word.rstrip("%").replace(",", "")) for word in line.split(" | ")]
        for place, (size, ratio, top1) in enumerate(cells):
            bytes_said, time_said, percent = said[3 * place : 3 * place + 3]
            off = abs(bytes_said / size - 1), abs(time_said / ratio - 1), abs(percent / 100 - top1)
            if any(one > most for one, most in zip(off, TOLERANCES, strict=True)):
                yield f"README: {name}: {line}, measured {size:,} bytes, {ratio:.2f}, {top1:.1%}"


if __name__ == "__main__":
    sys.exit(main())
