"""The benchmark's model is what it claims to be, and its stop-watch tells the truth."""

from __future__ import annotations

import importlib
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.benchmarks import bench_convert, bench_finetune, bench_moves, bench_scale
from tests.benchmarks.bench_convert import Cost, Costs
from tests.benchmarks.transformer import SMALL, Size, transformer
from tests.examples.write_samples import IMAGES, write
from transforms.pipelines import decide

FOLDER = Path(bench_scale.__file__).parent


def parameters(model: onnx.ModelProto) -> int:
    return sum(int(np.prod(weight.dims)) for weight in model.graph.initializer)


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("bench_*.py")))
def test_names_that_a_benchmark_imports_are_there(name: str) -> None:
    importlib.import_module(f"tests.benchmarks.{name}")


def test_tuning_is_counted_and_compared_with_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "digits")
    model = IMAGES.with_name("digits.onnx")
    arguments = [str(model), str(tmp_path / "digits"), "--samples", "8", "--rounds", "1"]
    monkeypatch.setattr(sys, "argv", ["bench_finetune", *arguments])
    bench_finetune.main()
    said = capsys.readouterr().out
    assert all(f"\n{part}: " in said for part in ("solvers", "sums over rows", "tuning"))


def test_a_move_is_told_by_the_models_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: figures that are made up; the move takes three runs of a budget of five."""

    def _made(
        subject: object, preset: str, moves: list[Callable[[object], None]], effort: str
    ) -> list[float]:
        for move in moves:
            move(best)
        return [30.0 if len(moves) == 2 else 28.5, float(len(moves))]

    def _two(best: SimpleNamespace) -> None:
        best.budget.runs -= 2

    def _three(best: SimpleNamespace) -> None:
        best.budget.runs -= 3

    best = SimpleNamespace(budget=SimpleNamespace(runs=5))
    monkeypatch.setattr(decide, "MOVES", (_two, _three))
    monkeypatch.setattr(bench_moves, "made", _made)
    found: dict[str, bench_moves.Totals] = {}
    bench_moves.measure(SimpleNamespace(name="net"), "U8S8", "normal", found)  # type: ignore[arg-type]
    assert found["_three"].cells() == ["+1.50", "+1.5 (net)", "1 of 1", "3", "1.0"]


def test_default_size_is_200_megabytes() -> None:
    size = Size()
    inside = 12 * size.width**2 * size.layers  # 4 projections, and 2 of 4 times the width
    tables = (size.vocabulary + size.positions) * size.width
    assert 4 * (inside + tables) == pytest.approx(200e6, rel=0.02)


def test_parameters_grow_as_that_estimate_says() -> None:
    more = Size(**{**vars(SMALL), "layers": SMALL.layers + 1})
    grown = parameters(transformer(more)) - parameters(transformer(SMALL))
    assert grown == 12 * SMALL.width**2 + 13 * SMALL.width  # 9 biases of the width and 4 rows of norms


def test_generated_twice_is_the_same() -> None:
    assert transformer(seed=3) == transformer(seed=3)
    assert transformer(seed=3) != transformer(seed=4)


def test_transformer_is_valid_decomposed_and_ignores_masked_words() -> None:
    model = transformer()
    onnx.checker.check_model(model, full_check=True)
    kinds = {node.op_type for node in model.graph.node}
    assert {"Gather", "Erf", "Softmax", "ReduceMean", "Sqrt"} <= kinds
    assert not kinds & {"LayerNormalization", "Gelu"}
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    mask = np.array([[1, 1, 1, 0]])
    one, two = (
        session.run(None, {"input_ids": np.array([[5, 6, 7, last]]), "attention_mask": mask})[0][:, :3]
        for last in (8, 9)
    )
    assert one.std() > 0.1
    assert np.array_equal(one, two)


MEASURE_TWO = """
import time
from tests.benchmarks.bench_convert import measure
for command in ("x = b'1' * 100_000_000", "import time; time.sleep(0.5); x = b'1' * 300_000_000"):
    start = time.perf_counter()
    cost = measure(["-c", command])
    print(time.perf_counter() - start, cost.seconds, cost.megabytes)
"""


def test_measure_sees_time_and_memory_of_the_child_alone() -> None:
    # From a process of its own, as in the benchmark: a child's peak starts at what its parent holds.
    done = subprocess.run(
        [sys.executable, "-c", MEASURE_TWO],
        cwd=bench_convert.ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    (around_small, *small), (around_large, *large) = (map(float, x.split()) for x in done.stdout.splitlines())
    small, large = Cost(*small), Cost(*large)
    assert 0 < small.seconds <= around_small
    assert 0.5 <= large.seconds <= around_large  # that of no other child, and all that this one slept
    assert large.megabytes - small.megabytes == pytest.approx(200, rel=0.015)  # MB, not MiB


def test_measure_refuses_a_failed_command() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        bench_convert.measure(["-c", "raise SystemExit(3)"])


def test_printed_ratios_are_medians_of_rounds_beside_their_targets() -> None:
    plain = Costs([Cost(1, 100), Cost(2, 100), Cost(1, 100)], tiny=0.5)
    converted = Costs([Cost(2, 120), Cost(8, 110), Cost(2, 150)], tiny=0.75)
    lines = list(bench_convert.conversion_lines(plain, converted))
    assert [line.split("target")[0].split()[-1] for line in lines[-3:]] == ["2.00x", "2.50x", "1.20x"]
    assert lines[-1].endswith(": met")
    slow = Costs([Cost(4, 100)] * 3, tiny=0.75)
    assert list(bench_convert.conversion_lines(plain, slow))[-3].endswith(": MISSED")


@pytest.mark.heavy
def test_scale_measures_every_part_and_draws_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Oracle: what was asked for, named in the table and in the drawing. Its jobs run in this process."""
    pytest.importorskip("matplotlib")
    jobs: list[list[str]] = []
    monkeypatch.setattr(
        bench_scale, "anonymous_peak", lambda arguments: jobs.append(arguments) or _run(arguments)
    )
    monkeypatch.setattr(bench_scale, "_processor_seconds", time.process_time)
    plot = tmp_path / "scale.svg"
    parts = ["--sizes", "1", "--nodes", "60", "120", "--samples", "1", "--sides", "8", "--plot", str(plot)]
    monkeypatch.setattr(sys, "argv", ["bench_scale", *parts])
    bench_scale.main()
    printed = capsys.readouterr().out
    for part, number in {"size, MB": 2, "nodes": 18, "samples": 1, "image side": 1}.items():
        assert len([line for line in printed.splitlines() if line.startswith(f"{part} ")]) == number
    assert len(jobs) == 22 and printed.count("exponent over nodes") == 6
    assert "<svg" in plot.read_text(encoding="utf-8")


def _run(arguments: list[str]) -> int:
    """Do what ``python ARGUMENTS`` does; return some bytes of peak memory."""
    kind, what, *rest = arguments
    if kind == "-c":
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["-c", *rest])
            exec(what, {})
    else:
        assert importlib.import_module(what).main(rest) == 0
    return 1_000_000


def test_scale_sees_time_and_memory_of_a_process_alone() -> None:
    work = "x = b'1' * 100_000_000; end = 1; exec('for i in range(3_000_000): end += i')"
    small, large = (bench_scale.measure("part", "job", 1, ["-c", text]) for text in ("pass", work))
    assert large.seconds > small.seconds + 0.05
    assert large.megabytes - small.megabytes == pytest.approx(100, rel=0.05)


def test_exponent_is_that_of_the_times_less_the_start() -> None:
    times = {30: 2.0, 1000: 3.0, 2000: 6.0, 4000: 18.0}  # net 1, 4, 16: quadratic
    figures = [bench_scale.Figure("nodes", "job", n, seconds, 1.0) for n, seconds in times.items()]
    assert bench_scale.exponent(figures) == pytest.approx(2)
    plain = [bench_scale.Figure("nodes", "plain", n, 3.0, 1.0) for n in times]
    slope, ratio, _ = bench_scale.target_lines([*figures, *plain])
    assert "2.00  target 1.1: MISSED" in slope
    assert "4,000 nodes to plain job" in ratio and "6.00  target 4.0: MISSED" in ratio
