"""Tuning a whole model against running it: ``python -m tests.benchmarks.bench_finetune MODEL.onnx DATA``.

MODEL is a float model, DATA a folder of samples as the tools read them. The model is quantized
(``--config A8W8``) and tuned by the default algorithm on at most ``--samples`` (64) of them. Printed are

* the seconds of the tuning, models in memory before and after;
* those of running the same samples through both models once, sessions created before;
* the floating point operations of the solvers, and what they take at half the rate of a large product in
  float32, measured here;
* those of the sums over rows that solvers start from (Gram matrices), the same way;
* the ratio of the first to the second and third together, of which 3 is the target, and with the fourth:
  the median of ``--rounds``, the least and the largest.

All is done in this process. Tuning runs each sample on two threads, half as many at once as there are cores;
where both models are run once, sessions have the threads that they choose. NumPy's products have one.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from unittest import mock

from ops.array_types import Feed
from tools.cli.calls import keep_products_on_one_thread

keep_products_on_one_thread()

import numpy as np  # noqa: E402
import onnx_graphsurgeon as gs  # noqa: E402

from ops import rounding  # noqa: E402
from ops.rounding import LayerProblem, Options, Quadratic  # noqa: E402
from ops.rounding.quadratic import Solve  # noqa: E402
from tests.benchmarks.product_rate import product_rate  # noqa: E402
from tools import quantize  # noqa: E402
from transforms import model_io  # noqa: E402
from transforms.conversion.float_reference import float_reference  # noqa: E402
from transforms.finetune import tune_layer  # noqa: E402
from transforms.finetune.finetune_model import finetune_model  # noqa: E402
from transforms.finetune.gram import GramStats  # noqa: E402
from transforms.finetune.options import FinetuneOptions  # noqa: E402
from transforms.finetune.tuned import TunedModel  # noqa: E402
from transforms.run.feeds import open_feeds  # noqa: E402
from transforms.runtime.inputs import model_inputs  # noqa: E402
from transforms.runtime.session import RunOptions, open_session  # noqa: E402

TARGET = 3.0
RUN = RunOptions()
OPTIONS = FinetuneOptions(run=RUN)


@dataclass
class Work:
    """Floating point operations of the solvers, and of the sums over rows."""

    solvers: float = 0.0
    sums: float = 0.0


@contextmanager
def counted() -> Iterator[Work]:
    """Count the operations of what is tuned meanwhile."""
    work = Work()
    form, solve, add = tune_layer.quadratic, tune_layer.solve_form, GramStats.add

    def _form(problem: LayerProblem, damping: float, *, shift: bool, solve: Solve | None) -> Quadratic:
        work.solvers += form_operations(problem, shift=shift)
        return form(problem, damping, shift=shift, solve=solve)

    def _solve(form: Quadratic, grid: rounding.Grid, algorithm: str, options: Options) -> object:
        work.solvers += solve_operations(form, options)
        return solve(form, grid, algorithm, options)

    def _add(sums: GramStats, x: np.ndarray, y: np.ndarray) -> None:
        work.sums += 2.0 * x.size * (x.shape[2] + y.shape[2])
        add(sums, x, y)

    with (
        mock.patch.object(tune_layer, "quadratic", _form),
        mock.patch.object(tune_layer, "solve_form", _solve),
        mock.patch.object(GramStats, "add", _add),
    ):
        yield work


def form_operations(problem: LayerProblem, *, shift: bool) -> float:
    """Return those of the shifted target: a Cholesky factor, N equations of K unknowns, once W H."""
    groups, outputs, inputs = _size(problem.weight)
    product = 0 if "residual" in vars(problem) else 2 * inputs**2 * outputs
    return groups * (product + inputs**3 / 3 + 2 * inputs**2 * outputs) * shift


def solve_operations(form: Quadratic, options: Options) -> float:
    """Return those of GPTQ (a Cholesky factor the first time, half a product) and of coordinate descent."""
    groups, outputs, inputs = _size(form.target)
    factor = 0 if "factors" in vars(form.ordered) else inputs**3 / 3
    return groups * (factor + inputs**2 * outputs + 2 * (1 + options.sweeps) * inputs**2 * outputs)


def _size(weight: np.ndarray) -> tuple[int, int, int]:
    *groups, outputs, inputs = weight.shape
    return int(np.prod(groups)), outputs, inputs


def seconds_of_runs(graphs: Sequence[gs.Graph], feeds: Sequence[Feed]) -> float:
    """Return the seconds in which models run all samples once."""
    models = [open_session(graph, RUN) for graph in graphs]
    for model in models:
        model.run(feeds[0])
    start = perf_counter()
    for feed in feeds:
        for model in models:
            model.run(feed)
    return perf_counter() - start


def make_quantized(model: Path, data: Path, config: str) -> gs.Graph:
    """Quantize a model as the tool does."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "quantized.onnx"
        paths = ["--input", str(model), "--output", str(output), "--calibration-data", str(data)]
        if quantize.main([*paths, "--config", config]) != 0:
            raise SystemExit(1)
        return model_io.load(output)


@dataclass(frozen=True)
class Round:
    """Seconds of running both models once, and of tuning right after it."""

    runs: float
    tuning: float


def measure(twin: gs.Graph, quantized: gs.Graph, feeds: Sequence[Feed], rounds: int) -> Iterator[Round]:
    """Yield rounds: both are slower where the machine is busy, so they are compared side by side."""
    for _ in range(rounds):
        runs, start = seconds_of_runs((twin, quantized), feeds), perf_counter()
        finetune_model(twin, quantized, feeds, OPTIONS)
        yield Round(runs, perf_counter() - start)


def report(done: TunedModel, rounds: Sequence[Round], work: Work, rate: float) -> Iterator[str]:
    """Yield the terms, their ratio and what was won."""
    solvers, sums = 2 * work.solvers / rate, 2 * work.sums / rate
    runs, tuning = (median(getattr(one, name) for one in rounds) for name in ("runs", "tuning"))
    yield f"outputs on held-out samples: error {done.before:.4g} -> {done.after:.4g}"
    yield f"running both models once: {runs:.2f} s; products: {rate / 1e9:.0f} GFLOP/s"
    yield f"solvers: {work.solvers / 1e9:.2f} GFLOP, {solvers:.2f} s at half that rate"
    yield f"sums over rows: {work.sums / 1e9:.2f} GFLOP, {sums:.2f} s at half that rate"
    ratios = [sorted(one.tuning / (one.runs + own) for one in rounds) for own in (solvers, solvers + sums)]
    yield f"tuning: {tuning:.2f} s, {median(ratios[0]):.2f} times ({ratios[0][0]:.2f} to {ratios[0][-1]:.2f})"
    yield f"target {TARGET:g}; with the sums {median(ratios[1]):.2f} times"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--config", default="A8W8")
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    quantized = make_quantized(options.model, options.data, options.config)
    twin = float_reference(lambda: model_io.load(options.model), quantized)
    feeds = [feed for _, feed in open_feeds(options.data, model_inputs(twin), limit=options.samples)]
    with counted() as work:
        done = finetune_model(twin, quantized, feeds, OPTIONS)
    rounds = list(measure(twin, quantized, feeds, options.rounds))
    for line in report(done, rounds, work, product_rate()):
        print(line)


if __name__ == "__main__":
    main()
