"""Accuracy of presets before and after tuning: ``python -m tests.benchmarks.bench_accuracy --help``.

Every preset quantizes every model on calibration samples, ``tools.finetune`` tunes the result on the same
samples, and both are judged on evaluation data that neither has seen, beside onnxruntime's
``quantize_static`` (MinMax, after its pre-processing) per tensor and per channel. SNR is that of all
evaluation samples together, in dB, the mean over outputs; seconds are of the processor, from file to file.

Models are those with evaluation data beside the project, where there are any, and otherwise the example of
the guide with its test images.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.cli.calls import keep_products_on_one_thread

keep_products_on_one_thread()

import numpy as np  # noqa: E402
import onnxruntime  # noqa: E402

from tests.helpers import real_models  # noqa: E402

EXAMPLES = Path(__file__).parents[1] / "examples"
PRESETS = ("A8W8", "U8S8", "A16W8", "W4A8", "BF16", "BFP16", "MX9", "MX6", "MXINT8", "MXFP8E4M3", "MXFP4E2M1")
PEERS = {"A8W8": ("QInt8", True), "U8S8": ("QUInt8", False)}
"""The presets beside which onnxruntime's quantizer stands: their activations there, whether symmetric."""

Judge = Callable[[Path], float]


@dataclass(frozen=True)
class Subject:
    """A float model, its calibration samples, and the SNR of a model quantized from it."""

    name: str
    model: Path
    feeds: Sequence[Mapping[str, np.ndarray]]
    judge: Judge


@dataclass(frozen=True)
class Cell:
    """A figure of the table; ``seconds`` of the processor to make the model."""

    snr: float
    seconds: float

    def __str__(self) -> str:
        return f"{self.snr:.1f} ({self.seconds:.1f} s)"


def subjects(names: Sequence[str], samples: int) -> Iterator[Subject]:
    """Yield the models of those names, all where there are none."""
    if not real_models.NAMES:
        yield _example(samples)
    for name in real_models.NAMES:
        if not names or name in names:
            yield real(name, samples)


def _example(samples: int) -> Subject:
    images = np.load(EXAMPLES / "digits_test_images.npy")
    session = onnxruntime.InferenceSession(str(EXAMPLES / "digits.onnx"))
    (source,) = session.get_inputs()
    feeds = [{source.name: image[None].astype(np.float32)} for image in images]
    return judged("digits", EXAMPLES / "digits.onnx", feeds[:samples], feeds[samples:])


def judged(
    name: str,
    path: Path,
    feeds: Sequence[Mapping[str, np.ndarray]],
    unseen: Sequence[Mapping[str, np.ndarray]],
) -> Subject:
    """Return a model that is judged by its first output on unseen samples."""
    session = onnxruntime.InferenceSession(str(path))
    expected = [session.run(None, dict(feed))[0] for feed in unseen]

    def _judge(model: Path) -> float:
        opened = real_models.session(model, optimized=True)
        pairs = [(x, opened.run(None, dict(feed))[0]) for x, feed in zip(expected, unseen, strict=True)]
        noise = sum(float(np.sum((x - y) ** 2)) for x, y in pairs)
        return float(10 * np.log10(sum(float(np.sum(x**2)) for x, _ in pairs) / noise))

    return Subject(name, path, feeds, _judge)


def real(name: str, samples: int, chosen: Sequence[Mapping[str, np.ndarray]] | None = None) -> Subject:
    """Return a model beside the project; ``chosen``: its samples, otherwise so many, spread over all."""
    feeds = real_models.task(name).calib
    if chosen is None:
        chosen = [feeds[int(i)] for i in np.linspace(0, len(feeds) - 1, min(samples, len(feeds)))]
    path = real_models.MODELS / name / "model.onnx"
    baseline = real_models.all_outputs(path, name)

    def _judge(model: Path) -> float:
        return real_models.snr_db(name, baseline, real_models.all_outputs(model, name))

    return Subject(name, path, chosen, _judge)


def row(subject: Subject, preset: str, folder: Path, *, tuned: bool) -> list[Cell | str]:
    """Return the figures of a preset: before tuning, after it, of the peer per tensor and per channel."""
    data, plain, better = folder / "data", folder / "q.onnx", folder / "t.onnx"
    cells: list[Cell | str] = [
        made(subject, plain, "quantize", "--input", subject.model, "--config", preset, "--data", data)
    ]
    if tuned:
        options = ("--float", subject.model, "--quantized", plain, "--data", data)
        cells.append(made(subject, better, "finetune", *options) if isinstance(cells[0], Cell) else "-")
    for per_channel in (False, True):
        cells.append(_peer(subject, folder, preset, per_channel=per_channel) if preset in PEERS else "")
    return cells


def made(subject: Subject, output: Path, tool: str, *options: object) -> Cell | str:
    """Return the figure of what a tool writes, or its error."""
    import importlib

    main = importlib.import_module(f"tools.{tool}").main
    arguments = [*map(str, options), "--output", str(output), "--force"]
    err = io.StringIO()
    start = time.process_time()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(err):
        code = main(arguments)
    seconds = time.process_time() - start
    if code:
        return err.getvalue().strip()[-60:] or "nothing to do"
    return Cell(subject.judge(output), seconds)


def _peer(subject: Subject, folder: Path, preset: str, *, per_channel: bool) -> Cell | str:
    """Return the figure of onnxruntime's static quantization of the same samples."""
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class _Reader(quantization.CalibrationDataReader):
        def __init__(self) -> None:
            self._feeds = iter([dict(feed) for feed in subject.feeds])

        def get_next(self) -> Any:
            return next(self._feeds, None)

    ready, output = folder / "ready.onnx", folder / "peer.onnx"
    activations, symmetric = PEERS[preset]
    start = time.process_time()
    try:
        # the pre-processing leaves data in the current folder
        with contextlib.redirect_stdout(io.StringIO()), contextlib.chdir(folder):
            quant_pre_process(str(subject.model.resolve()), str(ready), skip_symbolic_shape=True)
            quantization.quantize_static(
                str(ready),
                str(output),
                _Reader(),
                per_channel=per_channel,
                activation_type=quantization.QuantType[activations],
                weight_type=quantization.QuantType.QInt8,
                extra_options={"ActivationSymmetric": symmetric},
            )
        seconds = time.process_time() - start
        return Cell(subject.judge(output), seconds)
    except Exception as error:  # whatever stops the peer is its result
        return type(error).__name__


def write_table(job: argparse.Namespace) -> Iterator[str]:
    """Yield the lines of a Markdown table, each as soon as it is measured."""
    heads = ["model", "preset", "quantized", *([] if job.no_tuning else ["tuned"])]
    heads += ["quantize_static", "per channel"]
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for subject in subjects(job.models, job.samples):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "data").mkdir()
            for i, feed in enumerate(subject.feeds):
                np.savez(folder / "data" / f"{i:04d}.npz", **dict(feed))
            for preset in job.presets:
                cells = row(subject, preset, folder, tuned=not job.no_tuning)
                yield f"| {' | '.join([subject.name, preset, *map(str, cells)])} |"


def main() -> None:
    """Print the table, and write it to ``--output``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", nargs="+", default=[], help="names of models (default: all)")
    parser.add_argument("--presets", nargs="+", default=PRESETS, help=f"default: {' '.join(PRESETS)}")
    parser.add_argument("--samples", type=int, default=32, help="calibration samples (default: 32)")
    parser.add_argument("--no-tuning", action="store_true", help="leave out tools.finetune")
    parser.add_argument("--output", type=Path, help="file to write the table to")
    job = parser.parse_args()
    lines = []
    for line in write_table(job):
        print(line, flush=True)
        lines.append(line)
    if job.output:
        job.output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
