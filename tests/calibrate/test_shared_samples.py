"""Calibration by several workers. Oracle: the statistics of one process without sharing, bit for bit."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
import pytest
from onnx import TensorProto, helper, numpy_helper

from tools.cli.executors import workers as workers_of
from transforms.calibrate import shared_samples
from transforms.calibrate.cache import calibrate_cached
from transforms.calibrate.calibrate import Calibration, CalibrationOptions, calibrate
from transforms.calibrate.range_statistics import encode
from transforms.calibrate.shared_samples import SampleTask, Sharing
from transforms.model import graph_proto
from transforms.run.feeds import Feeds, open_feeds
from transforms.run.processes import open_processes
from transforms.run.tasks import SerialExecutor
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


def found(sharing: Sharing | None, options: CalibrationOptions = OPTIONS, **more: Any) -> Calibration:
    graph = model()
    channels = [("x", 1), ("c", 1), ("c", -1)]
    return calibrate(graph, NAMES, feeds(graph), options, channels=channels, run=RUN, sharing=sharing, **more)


def written(calibration: Calibration) -> str:
    return json.dumps({name: encode(one) for name, one in calibration.observed.items()})


@pytest.mark.parametrize("options", [OPTIONS, CalibrationOptions(moving_average=True)])
def test_one_worker_is_this_process(options: CalibrationOptions, tmp_path: Path) -> None:
    alone = written(found(None, options))
    calls: list[tuple[int, int | None]] = []
    shared = found(Sharing(), options, progress=lambda done, total: calls.append((done, total)))
    assert written(shared) == alone == written(found(Sharing(folder=tmp_path), options))
    assert calls == [(i + 1, COUNT) for i in range(COUNT)]


@pytest.mark.parametrize("jobs", [2, 3])
def test_the_result_does_not_depend_on_how_many_workers_there_are(jobs: int) -> None:
    assert written(found(Sharing(partial(open_processes, jobs)))) == written(found(None))


def test_workers_of_a_cluster() -> None:
    pytest.importorskip("distributed")
    assert written(found(Sharing(workers_of(2, "local")))) == written(found(None))


class _Deadly(Executor):
    """Hands tasks on, but in the place of one of them, once, what ends a worker."""

    def __init__(self, inner: Executor, given: list[int], kill: Callable[[Executor], Future[Any]]) -> None:
        self._inner, self._given, self._kill = inner, given, kill

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        number = args[0].number
        self._given.append(number)
        if number == 2 and self._given.count(2) == 1:
            return self._kill(self._inner)
        return self._inner.submit(fn, *args, **kwargs)


def _dead(_: Executor) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_exception(BrokenExecutor("died"))
    return future


def test_a_worker_that_dies_costs_its_task_alone() -> None:
    given: list[int] = []

    class _Serial(_Deadly, SerialExecutor):
        pass

    sharing = Sharing(lambda: _Serial(SerialExecutor(), given, _dead))
    assert written(found(sharing)) == written(found(None))
    assert given == [0, 1, 2, 2, 3, 4]


def test_a_process_that_is_killed() -> None:
    given: list[int] = []

    @contextmanager
    def _open() -> Iterator[Executor]:
        with open_processes(2) as inner:
            yield _Deadly(inner, given, lambda pool: pool.submit(os._exit, 1))

    assert written(found(Sharing(_open))) == written(found(None))
    assert given.count(2) == 2 and set(given) == set(range(COUNT))


def _stop_at(number: int, given: list[int]) -> Sharing:
    class _Stops(SerialExecutor):
        def submit(self, fn: Callable[..., Any], /, *args: SampleTask, **kwargs: Any) -> Future[Any]:
            if args[0].number == number:
                raise KeyboardInterrupt
            given.append(args[0].number)
            return super().submit(fn, *args, **kwargs)

    return Sharing(_Stops)


def test_another_run_goes_on_where_the_first_was_stopped(tmp_path: Path) -> None:
    given: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        found(Sharing(_stop_at(3, given).workers, tmp_path))
    assert given == [0, 1, 2]
    again = found(Sharing(_stop_at(COUNT, given).workers, tmp_path))
    assert given == [0, 1, 2, 3, 4] and written(again) == written(found(None))
    found(Sharing(_stop_at(COUNT, given).workers, tmp_path), CalibrationOptions("MinMax"))
    assert given[5:] == [0, 1, 2, 3, 4]  # other statistics have a folder of their own
    assert len(list(tmp_path.iterdir())) == 2


def test_an_error_in_a_sample_is_that_of_one_process() -> None:
    graph = model()
    data = [{"x": np.full((1, 3, 8, 9), value, np.float32)} for value in (1, 3e38)]
    data[1]["x"][0, 0] *= -1
    messages = []
    for sharing in (None, Sharing(), Sharing(partial(open_processes, 2))):
        with pytest.raises(ValueError) as caught:
            calibrate(graph, NAMES, [("a", data[0]), ("b", data[1])], OPTIONS, run=RUN, sharing=sharing)
        messages.append(str(caught.value))
    assert messages[0].startswith("sample 'b', tensor ") and set(messages) == {messages[0]}


def test_no_sample() -> None:
    with pytest.raises(ValueError, match="the calibration data hold no sample"):
        calibrate(model(), NAMES, [], OPTIONS, sharing=Sharing())


def test_statistics_of_samples_that_come_once_cannot_be_kept(tmp_path: Path) -> None:
    graph = model()
    once = open_feeds(iter([feed for _, feed in feeds(graph)]), model_inputs(graph))
    with pytest.raises(ValueError, match="cannot be read twice"):
        calibrate(graph, NAMES, once, OPTIONS, sharing=Sharing(folder=tmp_path))


def test_runs_have_the_same_number_of_threads_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums that are spread over threads differ in the last bits with their number."""
    seen: list[RunOptions | None] = []

    class _Seen(shared_samples.SampleStatistics):
        def __init__(self, *given: Any) -> None:
            seen.append(given[3])
            super().__init__(*given)

    monkeypatch.setattr(shared_samples, "SampleStatistics", _Seen)
    graph = model()
    for run in (None, RunOptions(), RunOptions(threads=3)):
        calibrate(graph, NAMES, feeds(graph, 1), OPTIONS, run=run, sharing=Sharing())
    assert [run and run.threads for run in seen] == [1, 1, 1, 1, 3, 3]  # of this process and of a task


def test_a_cache_takes_what_workers_made(tmp_path: Path) -> None:
    graph = model()
    cached = partial(calibrate_cached, tmp_path / "cache.json", graph, NAMES, feeds(graph), OPTIONS, run=RUN)
    first, known = cached(sharing=Sharing())
    assert known == 0 and cached(sharing=_stop_at(0, []))[1] == len(NAMES)
    alone = calibrate(graph, NAMES, feeds(graph), OPTIONS, run=RUN)
    assert written(first) == written(alone)
