"""Time and peak memory against the size of the model, its nodes, the samples and the size of images.

Run it from the project's root: ``python -m tests.benchmarks.bench_scale``; ``--plot FILE`` draws the table.
``--sizes 10 --nodes 300 --samples 2 --sides 32`` takes a minute, ``--sizes`` without a figure skips a part.
Without options it takes about five minutes on a quiet machine.

Each figure is one fresh process:

* **time** is processor time, user and system, of all its threads, imports included: other processes on the
  machine change it little.
* **peak** is the memory that the system cannot take back: anonymous and shared pages. Pages of mapped files
  do not count. Linux only.

What is measured:

* **sizes**: both kinds of conversion of transformer encoders whose weights lie beside the model, sparse on
  disk; the results are not sparse. 16 GB is ``--sizes 16000``, and needs as much room.
* **nodes**: chains of Conv, Tanh and Mul through both converters to BF16, BFP16, and A8W8 with four samples,
  whose settings follow rules (``--fast``) or are chosen. The plain job loads the model, takes it through
  graph-surgeon, saves it and opens one session. The exponent of each job is the slope of its times in
  logarithms, less the time of the same job on 30 nodes, which is start-up.
* **samples** and **sides**: A8W8 with MSE ranges of a small convolutional network: 64 x 64 images, then 4
  images of each side.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.benchmarks.chain_models import chain
from tests.benchmarks.large_models import size_of, write_sparse
from tests.benchmarks.transformer import IR_VERSION, OPSET, Builder
from tests.helpers.peak_memory import anonymous_peak

SIZES, NODES, SAMPLES, SIDES = (10, 100, 1000, 4000), (1000, 4800, 14400), (8, 32, 128), (64, 256, 1024)
EXPONENT_TARGET, RATIO_TARGET = 1.1, 4.0
FEW_NODES, FEW_SAMPLES, SMALL_SIDE, CHANNELS = 30, 4, 64, 16

PLAIN = """
import sys, onnx, onnx_graphsurgeon as gs, onnxruntime
onnx.save(gs.export_onnx(gs.import_onnx(onnx.load(sys.argv[1]))), sys.argv[2])
onnxruntime.InferenceSession(sys.argv[2], providers=["CPUExecutionProvider"])
"""
Command = Callable[[Path, Path], list[str]]


@dataclass(frozen=True)
class Figure:
    """What one process took: processor seconds, and MB (10^6 bytes) that the system could not take back."""

    part: str
    job: str
    amount: int
    seconds: float
    megabytes: float


def plain(source: Path, target: Path) -> list[str]:
    """Return the arguments of the plain job."""
    return ["-c", PLAIN, str(source), str(target)]


def to_bf16(source: Path, target: Path, form: str = "with_cast") -> list[str]:
    """Return the arguments of a conversion to BF16."""
    return _tool("convert_fp32_to_bf16", source, target, "--format", form)


def to_bfp16(source: Path, target: Path) -> list[str]:
    """Return the arguments of a conversion to a block format."""
    return _tool("quantize", source, target, "--config", "BFP16")


def to_a8w8(source: Path, target: Path, *options: str) -> list[str]:
    """Return the arguments of A8W8 with the samples in ``data`` beside the model."""
    data = ["--data", str(source.parent / "data")]
    return _tool("quantize", source, target, "--config", "A8W8", *data, *options)


NODE_JOBS: dict[str, Command] = {
    "plain": plain,
    "with_cast": to_bf16,
    "customqdq": partial(to_bf16, form="customqdq"),
    "BFP16": to_bfp16,
    "A8W8 --fast": lambda source, target: to_a8w8(source, target, "--fast"),
    "A8W8": to_a8w8,
}


def _tool(name: str, source: Path, target: Path, *options: str) -> list[str]:
    return ["-m", f"tools.{name}", "--input", str(source), "--output", str(target), "--force", *options]


def measure(part: str, job: str, amount: int, arguments: list[str]) -> Figure:
    """Run ``python ARGUMENTS`` to its end; raise CalledProcessError if it fails."""
    before = _processor_seconds()
    peak = anonymous_peak(arguments)
    return Figure(part, job, amount, _processor_seconds() - before, peak / 1e6)


def _processor_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def size_figures(megabytes: list[int], folder: Path) -> Iterator[Figure]:
    """Yield what conversions take of models with so many MB of weights."""
    for amount in megabytes:
        model = folder / "model.onnx"
        write_sparse(model, size_of(amount / 1000))
        for name, job in {"with_cast": to_bf16, "BFP16": to_bfp16}.items():
            yield measure("size, MB", name, amount, job(model, folder / "result.onnx"))
            for left in folder.glob("result*"):
                left.unlink()


def node_figures(nodes: list[int], folder: Path) -> Iterator[Figure]:
    """Yield what a plain job, conversions and a quantization take of chains; 30 nodes before the others."""
    write_images(folder / "data", FEW_SAMPLES, (4, 4, 4))
    for amount in (FEW_NODES, *nodes) if nodes else ():
        model = folder / "chain.onnx"
        onnx.save(chain("shared", amount), model)
        for name, job in NODE_JOBS.items():
            yield measure("nodes", name, amount, job(model, folder / "result.onnx"))


def calibration_figures(part: str, cases: dict[int, tuple[int, int]], folder: Path) -> Iterator[Figure]:
    """Yield what calibration takes; a case is how many samples there are, and the side of their images."""
    for amount, (samples, side) in cases.items():
        with tempfile.TemporaryDirectory(dir=folder) as name:
            model = Path(name, "network.onnx")
            onnx.save(network(side), model)
            write_images(model.parent / "data", samples, (3, side, side))
            yield measure(part, "A8W8", amount, to_a8w8(model, model.parent / "result.onnx"))


def network(side: int) -> onnx.ModelProto:
    """Return three convolutions, each with a Relu, for images ``[1, 3, side, side]``."""
    builder, end, channels = Builder(np.random.default_rng(0)), "x", 3
    for name in ("first", "second", "third"):
        weight = builder.normal(f"{name}.weight", CHANNELS, channels, 1, 1, deviation=0.5)
        end = builder.node("Relu", f"{name}/Relu", builder.node("Conv", f"{name}/Conv", end, weight))
        channels = CHANNELS
    shapes = (("x", [1, 3, side, side]), (end, [1, CHANNELS, side, side]))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes]
    graph = helper.make_graph(builder.nodes, "network", ends[:1], ends[1:], builder.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)


def write_images(folder: Path, samples: int, shape: tuple[int, int, int]) -> None:
    """Write so many random images ``x``, float32 ``[1, *shape]``."""
    folder.mkdir(exist_ok=True)
    random = np.random.default_rng(0)
    for i in range(samples):
        np.savez(folder / f"{i:04d}.npz", x=random.standard_normal((1, *shape), np.float32))


def exponent(figures: list[Figure]) -> float:
    """Return the slope of the times over the amounts, both as logarithms, less the time of the first."""
    start, *others = figures
    net = [max(figure.seconds - start.seconds, 1e-3) for figure in others]
    return float(np.polyfit(np.log([figure.amount for figure in others]), np.log(net), 1)[0])


def target_lines(figures: list[Figure]) -> Iterator[str]:
    """Yield the exponent of each job over nodes, and its time to that of the plain job for the most nodes.

    Two numbers of nodes at least are needed, besides the first.
    """
    jobs: dict[str, list[Figure]] = {}
    for figure in figures:
        if figure.part == "nodes":
            jobs.setdefault(figure.job, []).append(figure)
    for job, found in jobs.items():
        if len(found) <= 2:
            continue
        if job == "plain":
            yield f"{'plain: exponent over nodes':36}{exponent(found):6.2f}"
        else:
            most = found[-1]
            ratio = most.seconds / jobs["plain"][-1].seconds
            yield _verdict(f"{job}: exponent over nodes", exponent(found), EXPONENT_TARGET)
            yield _verdict(f"{job}: {most.amount:,} nodes to plain job", ratio, RATIO_TARGET)


def _verdict(name: str, value: float, target: float) -> str:
    return f"{name:36}{value:6.2f}  target {target}: {'met' if value <= target else 'MISSED'}"


def line(figure: Figure) -> str:
    """Return a row of the table."""
    amount, seconds = f"{figure.amount:,}", f"{figure.seconds:.1f}"
    return f"{figure.part:12}{amount:>8}  {figure.job:12}{seconds:>10} s{figure.megabytes:10.0f} MB"


def draw(figures: list[Figure], path: Path) -> None:
    """Draw time and peak memory of each part to an SVG file; needs matplotlib (extra ``plot``)."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "scale"
    from matplotlib import pyplot

    parts = list(dict.fromkeys(figure.part for figure in figures))
    colors = {job: f"C{i}" for i, job in enumerate(dict.fromkeys(figure.job for figure in figures))}
    drawing, axes = pyplot.subplots(
        2, len(parts), figsize=(3.2 * len(parts), 5.4), squeeze=False, sharex="col", sharey="row"
    )
    for column, part in enumerate(parts):
        of_part = [f for f in figures if f.part == part and (part, f.amount) != ("nodes", FEW_NODES)]
        _curves(axes[0, column], of_part, "seconds", colors)
        _curves(axes[1, column], of_part, "megabytes", colors)
        axes[1, column].set_xlabel(part)
    axes[0, 0].set_ylabel("processor time, s")
    axes[1, 0].set_ylabel("peak memory, MB")
    lines = [pyplot.Line2D([], [], color=color, marker="o") for color in colors.values()]
    drawing.legend(lines, list(colors), loc="upper center", ncols=len(colors))
    drawing.tight_layout(rect=(0, 0, 1, 0.94))
    drawing.savefig(path, metadata={"Date": None})


def _curves(axis: Any, figures: list[Figure], quantity: str, colors: dict[str, str]) -> None:
    for job, color in colors.items():
        of_job = [figure for figure in figures if figure.job == job]
        axis.plot([f.amount for f in of_job], [getattr(f, quantity) for f in of_job], "o-", color=color)
    axis.set(xscale="log", yscale="log")
    axis.xaxis.minorticks_off()
    axis.grid(alpha=0.3)


def _figures(options: argparse.Namespace, folder: Path) -> Iterator[Figure]:
    yield from size_figures(options.sizes, folder)
    yield from node_figures(options.nodes, folder)
    by_samples = {samples: (samples, SMALL_SIDE) for samples in options.samples}
    yield from calibration_figures("samples", by_samples, folder)
    by_side = {side: (FEW_SAMPLES, side) for side in options.sides}
    yield from calibration_figures("image side", by_side, folder)


def main() -> None:
    """Measure, print and draw."""
    parser = argparse.ArgumentParser(description="Measure time and peak memory against sizes.")
    for name, default, words in (
        ("--sizes", SIZES, "MB of weights"),
        ("--nodes", NODES, "nodes of chains, up to 100000"),
        ("--samples", SAMPLES, "samples of calibration"),
        ("--sides", SIDES, "sides of images, in pixels"),
    ):
        shown = " ".join(map(str, default))
        parser.add_argument(
            name, type=int, nargs="*", default=list(default), help=f"{words} (default: {shown})"
        )
    parser.add_argument("--plot", type=Path, help="an SVG file to draw to; needs matplotlib")
    options = parser.parse_args()
    figures = []
    with tempfile.TemporaryDirectory() as name:
        for figure in _figures(options, Path(name)):
            figures.append(figure)
            print(line(figure), flush=True)
    for text in target_lines(figures):
        print(text)
    if options.plot:
        draw(figures, options.plot)


if __name__ == "__main__":
    main()
