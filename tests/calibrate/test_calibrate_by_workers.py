"""Calibration by several workers. Oracle: the statistics of one process without sharing, bit for bit."""

from __future__ import annotations

import json
from concurrent.futures import Executor
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnx_narrow.api.executors import workers as workers_of
from tests.helpers.serial_executor import deadly_workers
from transforms.calibrate import calibrate as calibrate_module
from transforms.calibrate.cache import calibrate_cached, encode
from transforms.calibrate.calibrate import Calibration, CalibrationOptions, SampleTask, calibrate
from transforms.model import graph_proto
from transforms.run.feeds import Feeds, open_feeds
from transforms.run.workers import Workers
from transforms.runtime.inputs import model_inputs
from transforms.runtime.session import RunOptions

COUNT = 5
NAMES = ["x", "c", "y"]
RUN = RunOptions(threads=1)
OPTIONS = CalibrationOptions("MSE", averaging_constant=0.3)


def model() -> gs.Graph:
    random = np.random.default_rng(0)
    weight = random.standard_normal((6, 3, 3, 3)).astype(np.float32)
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"], "conv"), helper.make_node("Relu", ["c"], ["y"])]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, "rows", 9])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 6, "fewer", 7])
    graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(weight, "w")])
    opset = [helper.make_opsetid("", 17)]
    return graph_proto.import_model(helper.make_model(graph, opset_imports=opset, ir_version=8))


def feeds(graph: gs.Graph, count: int = COUNT) -> Feeds:
    random = np.random.default_rng(1)
    data = [{"x": random.standard_normal((1, 3, 7 + i, 9)).astype(np.float32) * 2**i} for i in range(count)]
    data[-1]["x"][0, 1, 2, 3] = 1e30
    return open_feeds(data, model_inputs(graph))


def found(workers: Workers | None, options: CalibrationOptions = OPTIONS, **more: Any) -> Calibration:
    graph = model()
    channels = [("x", 1), ("c", 1), ("c", -1)]
    return calibrate(graph, NAMES, feeds(graph), options, channels=channels, run=RUN, workers=workers, **more)


def written(calibration: Calibration) -> str:
    return json.dumps({name: encode(one) for name, one in calibration.observed.items()})


@pytest.mark.parametrize("options", [OPTIONS, CalibrationOptions(moving_average=True)])
def test_one_worker_is_this_process(options: CalibrationOptions) -> None:
    alone = written(found(None, options))
    calls: list[tuple[int, int | None]] = []
    shared = found(Workers(), options, progress=lambda done, total: calls.append((done, total)))
    assert written(shared) == alone
    assert calls == [(i + 1, COUNT) for i in range(COUNT)]


@pytest.mark.parametrize("jobs", [2, pytest.param(3, marks=pytest.mark.heavy)])
def test_the_result_does_not_depend_on_how_many_workers_there_are(jobs: int) -> None:
    with workers_of(jobs, None) as workers:
        assert written(found(workers)) == written(found(None))


@pytest.mark.heavy
def test_workers_of_a_cluster() -> None:
    pytest.importorskip("distributed")
    with workers_of(2, "local") as workers:
        assert written(found(workers)) == written(found(None))


def test_a_worker_that_dies_costs_its_task_alone() -> None:
    given: list[SampleTask] = []
    assert written(found(deadly_workers(given, deadly=3))) == written(found(None))
    assert [one.sample for one in given] == ["0", "1", "2", "3", "4", "2"]


def test_an_error_in_a_sample_is_that_of_one_process() -> None:
    graph = model()
    data = [{"x": np.full((1, 3, 8, 9), value, np.float32)} for value in (1, 3e38)]
    data[1]["x"][0, 0] *= -1
    messages = []
    for workers in (None, Workers(), workers_of(2, None)):
        with pytest.raises(ValueError) as caught, workers or nullcontext():
            calibrate(graph, NAMES, [("a", data[0]), ("b", data[1])], OPTIONS, run=RUN, workers=workers)
        messages.append(str(caught.value))
    assert messages[0].startswith("sample 'b', tensor ") and set(messages) == {messages[0]}


def test_no_sample() -> None:
    with pytest.raises(ValueError, match="the calibration data hold no sample"):
        calibrate(model(), NAMES, [], OPTIONS, workers=Workers())


def test_runs_have_the_same_number_of_threads_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums that are spread over threads differ in the last bits with their number."""
    seen: list[RunOptions | None] = []

    class _Seen(calibrate_module.SampleStatistics):
        def __init__(self, *given: Any) -> None:
            seen.append(given[3])
            super().__init__(*given)

    monkeypatch.setattr(calibrate_module, "SampleStatistics", _Seen)
    graph = model()
    for run in (None, RunOptions(), RunOptions(threads=3)):
        calibrate(graph, NAMES, feeds(graph, 1), OPTIONS, run=run, workers=Workers())
    assert [run and run.threads for run in seen] == [1, 1, 1, 1, 3, 3]  # of this process and of a task


def _none() -> Executor:
    raise AssertionError("no worker is needed")


def test_a_cache_takes_what_workers_made(tmp_path: Path) -> None:
    graph = model()
    cached = partial(calibrate_cached, tmp_path / "cache.json", graph, NAMES, feeds(graph), OPTIONS, run=RUN)
    first, known = cached(workers=Workers())
    assert known == 0 and cached(workers=Workers(_none))[1] == len(NAMES)
    alone = calibrate(graph, NAMES, feeds(graph), OPTIONS, run=RUN)
    assert written(first) == written(alone)
