"""Measured sensitivities. Oracles: the metric of rebuilt models, and the same measurement in this process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onnx_narrow.api import executors
from tests.helpers import mixing, plans, tunable
from tests.helpers.serial_executor import SerialExecutor
from tests.helpers.spread import spread
from transforms.model.graph_proto import model_hash
from transforms.precision import measured_sensitivity
from transforms.precision.bench import Bench, mixing_bench
from transforms.precision.candidates import find_candidates, measure_candidates, without_uneven
from transforms.precision.measured_sensitivity import measure_sensitivity
from transforms.precision.mixed_model import MixedModel
from transforms.precision.sensitivity import Sensitivity
from transforms.precision.switched_model import switched_model
from transforms.run.task_log import TaskLog
from transforms.run.workers import Workers
from transforms.scheme import preset
from transforms.scheme.mixing_rule import MixingRule
from transforms.search.output_metrics import METRICS, Outputs

CONV = tunable.conv_net()
FEEDS = tunable.samples(CONV, 3)
LABELS = ("bfp16", "mx6")

FRAGILE = """
import multiprocessing, os, pathlib
import numpy as np

MARKER = pathlib.Path(__file__).with_name("died")

def closeness(outputs):
    if multiprocessing.parent_process() is not None and not MARKER.exists():
        MARKER.touch()
        os._exit(1)
    return -float(np.mean([np.square(one["y"]).mean() for one in outputs]))
"""
"""A metric that ends the first process that calls it, but not the one that started all others."""


def bench(mixed: MixedModel) -> Bench:
    return mixing_bench(mixed.graph, FEEDS, MixingRule(target=LABELS), mixing.SIMULATED)


def log(folder: Path) -> TaskLog:
    folder.mkdir(exist_ok=True)
    return TaskLog(folder / "log")


def measured(
    folder: Path, metric: str = "l2", workers: Workers | None = None, labels: Sequence[str] = LABELS
) -> Sensitivity:
    mixed, _ = mixing.prepared(CONV, preset("BF16"), labels, FEEDS)
    nodes = find_candidates(mixed, ())
    candidates = measure_candidates(nodes, mixed.graph, FEEDS[0], mixing.SIMULATED)
    choices = [mixing.rule(label) for label in labels]
    return measure_sensitivity(
        mixed, candidates, choices, metric, bench(mixed), log(folder), workers or Workers()
    )


def alone() -> Callable[[str, str], list[Outputs]]:
    """Return what says what the float model makes with one layer alone in formats; none: the baseline's."""
    mixed, names = mixing.prepared(CONV, preset("BF16"), LABELS, FEEDS)

    def _made(layer: str, label: str = "") -> list[Outputs]:
        mix = dict.fromkeys(names, mixing.rule(label)) if label else {}
        base, other = mixed.in_float(), mixed.build(mix, finished=False)
        switches = switched_model(base, {label: other}, [(layer, label)])
        return mixing.outputs(base.graph, mixing.with_switch(FEEDS, switches, (layer, label)))

    return _made


@pytest.mark.parametrize("metric", spread(list(METRICS), of=2))
def test_values_are_those_of_rebuilt_models(tmp_path: Path, metric: str) -> None:
    found = measured(tmp_path / "a", metric)
    made_by = alone()
    mixed, names = mixing.prepared(CONV, preset("BF16"), LABELS, FEEDS)
    expected = mixing.outputs(mixed.graph, FEEDS, mixing.RunOptions(threads=1))
    assert [(one.layer, one.label) for one in found.damages] == [(n, x) for n in names for x in LABELS]

    for one in found.damages:
        made, plain = made_by(one.layer, one.label), made_by(one.layer)
        value = METRICS[metric].score(zip(expected, made, strict=True))
        # float sums in another order differ by 2^-23 of the outputs, whose errors are 2e-4 of them
        assert one.value == pytest.approx(value, rel=2**-23 / 2e-4)
        moved = METRICS[metric].score(zip(plain, made, strict=True))  # how far from the baseline's formats
        assert one.harm == METRICS[metric].error(moved)
    assert (found.metric, found.samples) == (metric, 3)


def test_as_many_samples_as_come_to_so_many_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four layers in three formats: 12 runs of a sample. The first and the last are the most unlike."""
    for runs, samples in ((11, 1), (24, 2), (999, 3)):
        monkeypatch.setattr(measured_sensitivity, "RUNS", runs)
        assert measured(tmp_path / "a").samples == samples  # in one folder: they are not mixed up
    monkeypatch.setattr(measured_sensitivity, "RUNS", 1)
    (tmp_path / "metric.py").write_text("def count(outputs):\n    return float(len(outputs))\n")
    assert {one.value for one in measured(tmp_path / "b", f"{tmp_path / 'metric.py'}:count").damages} == {3.0}


def test_a_second_run_measures_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = measured(tmp_path / "a")
    with (tmp_path / "a" / "log").open("a") as file:
        file.write('\n["l2/conv/bfp')  # as a run leaves it that was killed there

    def _never(task: object) -> float:
        raise AssertionError("everything is known")

    monkeypatch.setattr(measured_sensitivity, "measure", _never)
    monkeypatch.setattr(measured_sensitivity, "write_folder", _never)
    assert measured(tmp_path / "a") == first


def test_other_formats_in_the_same_folder_are_not_mixed_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Workers that live on have another model open by then, in which the switches mean something else.
    monkeypatch.setattr(measured_sensitivity, "forget", lambda: None)
    several = (("bfp16",), ("mx6", "bfp16"), ("mxfp4", "mx9"))
    found = [measured(tmp_path / "a", labels=labels) for labels in several]
    assert found == [measured(tmp_path / "_".join(labels), labels=labels) for labels in several]


def test_the_harm_of_a_function_is_what_it_returns_less_than_for_the_baseline(tmp_path: Path) -> None:
    (tmp_path / "metric.py").write_text("def first(outputs):\n    return float(outputs[0]['y'][0, 0])\n")
    found = measured(tmp_path / "a", f"{tmp_path / 'metric.py'}:first")
    made_by = alone()

    def _first(layer: str, label: str = "") -> float:
        return float(made_by(layer, label)[0]["y"][0, 0])

    for one in found.damages:
        assert one.value == _first(one.layer, one.label)
        assert one.harm == max(0.0, _first(one.layer) - one.value)
    assert len({one.value for one in found.damages}) > 3


class Elsewhere(SerialExecutor):
    """Runs tasks in another working folder, as workers on other machines do."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        with contextlib.chdir("/"):
            return super().submit(fn, *args, **kwargs)


def test_a_function_in_a_file_of_this_folder_is_found_by_workers_in_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "metric.py").write_text("def first(outputs):\n    return float(outputs[0]['y'][0, 0])\n")
    monkeypatch.chdir(tmp_path)
    found = measured(tmp_path / "b", "metric.py:first", Workers(Elsewhere))
    assert found == measured(tmp_path / "a", "metric.py:first")
    assert found.metric == "metric.py:first"


def test_a_function_that_was_written_anew_is_read_anew(tmp_path: Path) -> None:
    # One process, such as a notebook or a worker of a cluster, measures for several runs.
    place = f"{tmp_path / 'metric.py'}:one"
    for value in (1.0, 2.0):
        (tmp_path / "metric.py").write_text(f"def one(outputs):\n    return {value}  # version {value}\n")
        found = measured(tmp_path / str(value), place)
        assert {damage.value for damage in found.damages} == {value}


@pytest.mark.heavy
@pytest.mark.parametrize("dask", [None, pytest.param("local", marks=pytest.mark.heavy)])
def test_other_processes_one_of_which_dies_find_the_same(tmp_path: Path, dask: str | None) -> None:
    if dask:
        pytest.importorskip("distributed")
    (tmp_path / "metric.py").write_text(FRAGILE)
    place = f"{tmp_path / 'metric.py'}:closeness"
    alone = measured(tmp_path / "a", place)
    assert not (tmp_path / "died").exists()
    with executors.workers(2, dask) as workers:
        together = measured(tmp_path / "b", place, workers)
    assert (tmp_path / "died").exists()
    assert together == alone


def test_a_function_that_fails_ends_it_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "metric.py").write_text("def bad(outputs):\n    return float('nan')\n")
    with pytest.raises(ValueError, match=r"metric.py:bad' returned nan, it must be a finite number"):
        measured(tmp_path / "a", f"{tmp_path / 'metric.py'}:bad")


def test_computed_operands_and_sizes() -> None:
    model = mixing.attention()
    feeds = tunable.samples(model, 1)
    mixed, _ = mixing.prepared(model, preset("BF16"), ["bfp16"], feeds)
    found = measure_candidates(find_candidates(mixed, ()), mixed.graph, feeds[0], mixing.SIMULATED)
    sizes = {one.name: (one.op, one.weights, one.activations) for one in found}
    assert sizes["query"] == ("MatMul", 64, 48)
    assert sizes["scores"] == ("MatMul", 0, 2 * 48)  # [6, 8] and [8, 6]
    assert sizes["context"] == ("MatMul", 0, 36 + 48)
    query = found[0].size(mixing.rule("int16/int4"), preset("BF16"))
    assert (query.weight, query.activation, query.total) == (256, 768, 1024)
    assert found[0].size(mixing.rule("float32"), preset("BF16")).total == 32 * (64 + 48)


def test_which_layers_are_candidates() -> None:
    def _found(scheme: str = "BF16", **more: object) -> list[str]:
        changes = {key: more.pop(key) for key in ("layers", "exclude_nodes", "optimize") if key in more}
        mixed = MixedModel(mixing.model_io.load(CONV), preset(scheme).with_(**changes))
        return list(find_candidates(mixed, more.pop("ops", ()), **more))  # type: ignore[arg-type]

    every = ["conv", "depthwise", "transposed", "dense"]
    assert _found() == every
    assert _found(ops=("Conv", "Gemm")) == ["conv", "depthwise", "dense"]
    assert _found(exclude=["*n*"]) == ["depthwise"]
    assert _found(layers={"dense": "mx9"}, exclude_nodes=["conv"]) == ["depthwise", "transposed"]
    for more, reason in (
        ({"ops": ("MatMul",)}, "no layer whose formats can be changed has operator type 'MatMul'"),
        ({"exclude": ["missing*"]}, r"pattern 'missing\*' matches no layer"),
        ({"exclude": ["relu1"]}, "pattern 'relu1' matches no layer"),
        ({"exclude": ["*"]}, "no layer is left"),
        ({"exclude_nodes": ["conv"], "exclude": ["conv"]}, "pattern 'conv' matches no layer"),
    ):
        with pytest.raises(ValueError, match=reason):
            _found(**more)


def test_layers_that_formats_would_ruin_are_none() -> None:
    """Angles of positions, and what a logarithm is taken of."""
    for text, layer in (
        ("p = Cast <to = 1> (i) a = MatMul(p, v) n = Sin(a)", "a"),
        ("m = MatMul(x, v) q = Mul(m, m) s = Add(q, e) n = Log(s)", "m"),
    ):
        ends = "(int64[8, 1] i, float[8, 1] x) => (float[8, 4] y) <float e = {1e-9}>"
        graph = plans.graph(f"{ends} {{ {text} y = MatMul(n, w) }}", {"v": (1, 16), "w": (16, 4)})
        names = list(find_candidates(MixedModel(graph, preset("BF16")), ()))
        assert len(names) == 1 and layer not in names


def test_layers_of_which_numbers_decide_how_many_rows_they_have_are_none() -> None:
    text = (
        "(float[8, 4] x) => (float[A, 4] z) { y = MatMul(x, w) m = ReduceMax <axes = [1], keepdims = 0> (y)"
    )
    text += " c = Greater(m, e) r = Compress <axis = 0> (y, c) z = MatMul(r, w) }"
    graph = plans.loose_graph(text, {"w": (4, 4), "e": np.zeros(1, np.float32)}, opset=17)
    first, second = ([node] for node in graph.nodes if node.op == "MatMul")
    assert without_uneven({"first": first}, graph) == ({"first": first}, [])
    kept, (line,) = without_uneven({"first": first, "second": second}, graph)
    assert kept == {"first": first} and line.endswith(": 'second'")
    with pytest.raises(ValueError, match="'second': numbers decide how many rows it has"):
        without_uneven({"second": second}, graph)


def test_a_matmul_that_was_put_together_with_an_add_is_still_one() -> None:
    weights = {"w": mixing.normal(8, 8), "b": mixing.normal(8, seed=1)}
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "w"], ["m"], "product"),
        onnx.helper.make_node("Add", ["m", "b"], ["y"], "sum"),
    ]
    ends = [mixing.build.value(name, [4, 8]) for name in "xy"]
    model = mixing.build.model(nodes, ends[:1], ends[1:], weights)
    mixed = MixedModel(mixing.model_io.load(model), preset("BF16"))
    (node,) = [node for node in mixed.graph.nodes if node.op in ("Gemm", "MatMul")]
    assert node.op == "Gemm"
    assert list(find_candidates(mixed, ("MatMul",))) == list(find_candidates(mixed, ("Gemm",))) == [node.name]


def test_models_are_told_apart_by_any_weight() -> None:
    def _hash(change: float) -> str:
        model = mixing.build.dense(160, layers=2)  # 100 kB each: one of the large ones
        tensor = model.graph.initializer[1]
        values = onnx.numpy_helper.to_array(tensor).copy()
        values[-1, -1] += np.float32(change)
        tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
        return model_hash(mixing.model_io.load(model))

    assert _hash(0.0) == _hash(0.0)
    assert _hash(0.0) != _hash(1e-3)
