"""Time of sensitivities of a 200 MB transformer against what they are made of.

Run it from the project's root: ``python -m tests.benchmarks.bench_mixing``.

Each MatMul and Gemm by itself in another format is set against as many runs of the float model: two for each
candidate and sample. The float model runs in the same process, in turns with the measurements, so that what
else the machine does hits both alike. The shares of building, writing, opening and running are printed.

Nothing here fails when a target is missed: times depend on the machine, so the numbers are printed beside the
targets.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.bench_quantize import VOCABULARY, WORDS, verdict
from tests.benchmarks.transformer import Size, transformer
from transforms import model_io
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.precision import measured_sensitivity, switch_worker
from transforms.precision.bench import Bench, mixing_bench
from transforms.precision.candidates import Candidate, find_candidates, measure_candidates
from transforms.precision.measured_sensitivity import measure_sensitivity
from transforms.precision.mixed_model import Mix, MixedModel
from transforms.run.task_log import TaskLog
from transforms.run.workers import Workers
from transforms.runtime.session import OpenModel, RunOptions, open_session
from transforms.scheme import preset
from transforms.scheme.layer_rule import LayerRule
from transforms.scheme.mixing_rule import MixingRule

SAMPLES = 2
MEASURED = (("A16W8", "int8"), ("BF16", "bfp16"))
RATIO = 1.5

Feed = dict[str, np.ndarray]


def sentences(count: int) -> list[Feed]:
    """Return sentences of random words, without padding."""
    random = np.random.default_rng(0)
    words = (random.integers(0, VOCABULARY, (1, WORDS)) for _ in range(count))
    return [{"input_ids": one, "attention_mask": np.ones_like(one)} for one in words]


class Prepared:
    """The transformer in the form that a scheme quantizes, measured for all formats."""

    def __init__(self, size: Size, config: str, labels: Sequence[str], samples: int) -> None:
        """Prepare it, and find its candidates."""
        scheme = preset(config).with_(auto_mixed_precision={"target": list(labels)})
        self.model = MixedModel(model_io.load(transformer(size)), scheme)
        self.feeds = sentences(samples)
        self.choices = [LayerRule(label, label) for label in labels]
        nodes = find_candidates(self.model, ())
        self._mixes: list[Mix] = [{}, *(dict.fromkeys(nodes, choice) for choice in self.choices)]
        self.model.measure(CalibrationData(self.feeds), self._mixes)
        self.candidates: list[Candidate] = measure_candidates(
            nodes, self.model.graph, self.feeds[0], RunOptions()
        )
        self.plain: OpenModel = open_session(self.model.graph)

    def bench(self) -> Bench:
        """Return where to measure."""
        return mixing_bench(self.model.graph, self.feeds, MixingRule(target=("int8",)), RunOptions())

    def run_plain(self) -> float:
        """Return how long the float model takes for all samples."""
        start = time.perf_counter()
        for feed in self.feeds:
            self.plain.run(feed)
        return time.perf_counter() - start


def measured_lines(size: Size, config: str, label: str, folder: Path) -> Iterator[str]:
    """Yield what measuring takes, in parts, beside as many float runs."""
    prepared = Prepared(size, config, [label], SAMPLES)
    plain: list[float] = []

    def _between(done: int, total: int, name: str) -> None:
        if done % 4 == 0:
            with clock.paused():
                plain.append(prepared.run_plain())

    bench, log = prepared.bench(), TaskLog(folder / f"{time.time_ns()}.jsonl")
    prepared.run_plain()
    with Clock() as clock:
        measure_sensitivity(
            *(prepared.model, prepared.candidates, prepared.choices, "sqnr", bench, log, Workers()),
            progress=_between,
        )
    count = len(prepared.candidates)
    reference = statistics.median(plain) * count * 2  # in the formats of the baseline and in others
    yield f"{config} -> {label}: {count} candidates, {SAMPLES} samples; measured in {clock.seconds:.2f} s"
    yield f"  {'as many float runs':36}{reference:6.2f} s ({len(plain) * SAMPLES} runs in turns with these)"
    for part, seconds in clock.parts():
        yield f"  {part:36}{seconds:6.2f} s {seconds / clock.seconds:6.1%}"
    yield verdict(f"measured {config} -> {label}", clock.seconds / reference, RATIO)


_PARTS: tuple[tuple[str, Any, str], ...] = (
    ("building quantized models", MixedModel, "build"),
    ("putting switches in", measured_sensitivity, "switched_model"),
    ("writing", measured_sensitivity, "write_folder"),
    ("opening the session", switch_worker, "open_model"),
)


class Clock:
    """Measures a block, and the calls of some functions in it."""

    def __enter__(self) -> Clock:
        self._spent: dict[str, float] = defaultdict(float)
        self._originals = [getattr(owner, name) for _, owner, name in _PARTS]
        for (part, owner, name), original in zip(_PARTS, self._originals, strict=True):
            setattr(owner, name, self._timed(part, original))
        self._left_out, self._start = 0.0, time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        self.seconds = time.perf_counter() - self._start - self._left_out
        for (_, owner, name), original in zip(_PARTS, self._originals, strict=True):
            setattr(owner, name, original)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave a block out."""
        start = time.perf_counter()
        yield
        self._left_out += time.perf_counter() - start

    def parts(self) -> Iterator[tuple[str, float]]:
        """Yield the parts and what is left, which is running."""
        yield from self._spent.items()
        yield "running and comparing", self.seconds - sum(self._spent.values())

    def _timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def _call(*given: Any, **named: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*given, **named)
            finally:
                self._spent[part] += time.perf_counter() - start

        return _call


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Compare sensitivities with float runs of the same data.")
    parser.add_argument("--layers", type=int, default=Size().layers, help="of the transformer, to try it out")
    options = parser.parse_args()
    size = Size(layers=options.layers)
    with tempfile.TemporaryDirectory() as name:
        for config, label in MEASURED:
            for line in measured_lines(size, config, label, Path(name)):
                print(line, flush=True)


if __name__ == "__main__":
    main()
