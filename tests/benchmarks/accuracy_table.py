"""The accuracy of presets before and after a change: ``python -m tests.benchmarks.accuracy_table --help``.

``measure FILE`` quantizes every model with every preset on calibration samples, by rules (``--fast``), as the
preset says, and tuned on the same samples, and writes SNR on evaluation data in dB and seconds of the
processor to a JSON file; cells that the file has are not measured again. ``compare BEFORE AFTER`` prints what
has changed between two such files: for each preset and stage the mean, the 5th percentile and the worst of
the differences, and the ratio of the seconds.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks import bench_accuracy as bench

import numpy as np  # isort: skip

from tests.helpers import real_models, tunable  # isort: skip

PRESETS = ("A8W8", "U8S8", "A16W8", "W4A8", "XINT8", "BFP16", "MX6", "FP16")
STAGES = ("fast", "preset", "tuned")
_INTEGERS = ("A8W8", "U8S8", "A16W8", "W4A8", "XINT8")
_SMALL = {"convolutions": tunable.conv_net, "products": tunable.matmul_net}

Table = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Row:
    """What a cell of the table is of."""

    model: str
    preset: str
    samples: int
    draw: int

    def key(self, stage: str) -> str:
        """Return the name of the cell of a stage."""
        return f"{self.model}|{self.preset}|{self.samples}|{self.draw}|{stage}"


def measure(job: argparse.Namespace) -> None:
    """Add the cells that are not in the file yet, each as soon as it is known."""
    table: Table = json.loads(job.file.read_text()) if job.file.exists() else {}
    for samples in job.samples:
        for draw in range(job.draws):
            for subject in _subjects(job.models, samples, draw):
                for preset in job.presets:
                    row = Row(subject.name, preset, samples, draw)
                    for key, cell in _cells(row, subject, job.stages, table):
                        table[key] = {"snr": cell.snr, "seconds": round(cell.seconds, 3)}
                        print(key, cell, flush=True)
                        job.file.write_text(json.dumps(table, indent=1))


def _cells(
    row: Row, subject: bench.Subject, stages: Sequence[str], known: Table
) -> Iterator[tuple[str, bench.Cell]]:
    left = [stage for stage in stages if row.key(stage) not in known]
    if row.preset not in _INTEGERS:
        left = [stage for stage in left if stage != "fast"]  # no rules but the preset's own
    if not left:
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data, plain = folder / "data", folder / "q.onnx"
        data.mkdir()
        for i, feed in enumerate(subject.feeds):
            np.savez(data / f"{i:04d}.npz", **dict(feed))
        source = ("--input", subject.model, "--config", row.preset, "--data", data)
        if "fast" in left:
            yield from _made(row.key("fast"), bench.made(subject, plain, "quantize", *source, "--fast"))
        if "preset" in left or "tuned" in left:
            found = bench.made(subject, plain, "quantize", *source)
            yield from _made(row.key("preset"), found)
            if "tuned" in left and isinstance(found, bench.Cell):
                pair = ("--float", subject.model, "--quantized", plain, "--data", data)
                tuned = bench.made(subject, folder / "t.onnx", "finetune", *pair)
                yield from _made(row.key("tuned"), tuned)


def _made(key: str, cell: bench.Cell | str) -> Iterator[tuple[str, bench.Cell]]:
    if isinstance(cell, bench.Cell):
        yield key, cell
    else:
        print(key, cell, flush=True)


def _subjects(names: Sequence[str], samples: int, draw: int) -> Iterator[bench.Subject]:
    for name in [*real_models.NAMES, *_SMALL]:
        if names and name not in names:
            continue
        yield _small(name, samples, draw) if name in _SMALL else _drawn(name, samples, draw)


def _drawn(name: str, samples: int, draw: int) -> bench.Subject:
    """Return a real model; draw 0 is spread over its calibration samples, others are random."""
    feeds = real_models.task(name).calib
    if draw == 0:
        return bench.real(name, samples)
    count = min(samples, len(feeds))
    chosen = sorted(np.random.default_rng(draw).choice(len(feeds), count, replace=False))
    return bench.real(name, samples, [feeds[int(i)] for i in chosen])


def _small(name: str, samples: int, draw: int) -> bench.Subject:
    """Return a network of the tests, its weights by the draw, judged on samples of its own."""
    path = Path(tempfile.mkdtemp()) / "model.onnx"
    model = _SMALL[name](seed=draw)
    path.write_bytes(model.SerializeToString())
    feeds = tunable.samples(model, samples + 64, seed=draw + 1)
    return bench.judged(name, path, feeds[:samples], feeds[samples:])


def compare(before: Table, after: Table) -> Iterator[str]:
    """Yield a line for each preset and stage: how many cells, and how they differ."""
    yield f"{'preset':<10}{'stage':<8}{'cells':>6}{'mean':>8}{'5 %':>8}{'worst':>8}  {'of':<32}{'time':>6}"
    shared = [key for key in before if key in after]
    for preset in dict.fromkeys(key.split("|")[1] for key in shared):
        for stage in STAGES:
            keys = [key for key in shared if key.split("|")[1] == preset and key.endswith(f"|{stage}")]
            if keys:
                yield _difference(preset, stage, keys, before, after)


def _difference(
    preset: str,
    stage: str,
    keys: Sequence[str],
    before: Mapping[str, Mapping[str, float]],
    after: Mapping[str, Mapping[str, float]],
) -> str:
    gains = np.array([after[key]["snr"] - before[key]["snr"] for key in keys])
    gains = np.nan_to_num(gains)  # exact in both
    seconds = [sum(table[key]["seconds"] for key in keys) for table in (before, after)]
    worst = keys[int(gains.argmin())].replace(f"|{preset}|", " ").removesuffix(f"|{stage}")
    figures = f"{gains.mean():>+8.2f}{np.percentile(gains, 5):>+8.2f}{gains.min():>+8.2f}"
    return f"{preset:<10}{stage:<8}{len(keys):>6}{figures}  {worst:<32}{seconds[1] / seconds[0]:>6.2f}"


def main() -> None:
    """Measure, or compare two files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    modes = parser.add_subparsers(dest="mode", required=True)
    one = modes.add_parser("measure", help="write the table of this checkout")
    one.add_argument("file", type=Path)
    one.add_argument("--models", nargs="+", default=[], help="names of models (default: all)")
    one.add_argument("--presets", nargs="+", default=PRESETS, help=f"default: {' '.join(PRESETS)}")
    one.add_argument("--stages", nargs="+", default=STAGES, choices=STAGES, help="default: all")
    one.add_argument("--samples", nargs="+", type=int, default=[8, 32], help="default: 8 32")
    one.add_argument("--draws", type=int, default=2, help="choices of samples (default: 2)")
    two = modes.add_parser("compare", help="print the difference of two tables")
    two.add_argument("before", type=Path)
    two.add_argument("after", type=Path)
    job = parser.parse_args()
    if job.mode == "measure":
        measure(job)
    else:
        tables = (json.loads(path.read_text()) for path in (job.before, job.after))
        print("\n".join(compare(*tables)))


if __name__ == "__main__":
    main()
