"""Tasks on executors, and the log of their results. Oracle: squares, and how often each task was called."""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from tests.helpers import tasks
from tools.cli import dask_executor, executors
from transforms.run.tasks import Numbers, SerialExecutor, TaskLog, run_tasks

NUMBERS = (0.1, -3.0, 2.5, 7.0)


def items(folder: Path, dies: float | None = None, *, always: bool = False) -> dict[str, tasks.Square]:
    """Return a task for each number, one of which ends its process."""
    folder.mkdir(exist_ok=True)
    return {str(n): tasks.Square(n, str(folder), n == dies, always) for n in NUMBERS}


def squares() -> dict[str, Numbers]:
    return {str(number): (number**2, 2 * number) for number in NUMBERS}


@pytest.mark.parametrize("dask", [None, "local"])
def test_workers_leave_interrupts_to_the_process_that_waits_for_them(dask: str | None) -> None:
    if dask:
        pytest.importorskip("distributed")
    before = signal.getsignal(signal.SIGINT)
    with executors.workers(2, dask)() as executor:
        assert signal.getsignal(signal.SIGINT) is before
        found = dict(executor.map(tasks.interrupts, [0.3] * 6))
    assert all(found.values())  # every worker, whenever it was started


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_local_cluster_has_as_many_workers_as_there_are_jobs(jobs: int) -> None:
    pytest.importorskip("distributed")
    with ExitStack() as opened:
        assert len(dask_executor._local_cluster(jobs, opened).workers) == jobs


def test_a_dask_worker_in_the_place_of_one_that_died_leaves_them_to_it_too(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    with executors.workers(1, "local")() as executor:
        dies_once = tasks.Square(2.5, str(tmp_path), dies=True)
        assert executor.submit(tasks.square, dies_once).result() == (6.25, 5.0)
        assert tasks.calls(tmp_path) == {2.5: 2}
        assert executor.submit(tasks.interrupts, 0.0).result()[1]


def test_numbers_read_back_to_the_last_bit(tmp_path: Path) -> None:
    values = {"a": 0.1 + 0.2, "b": math.inf, "c": -math.inf, "d": -0.0, "é\n": 5e-324, "e": 1e308}
    log = TaskLog(tmp_path / "log")
    for name, value in values.items():
        log.put(name, (value, 1.0))
    again = TaskLog(tmp_path / "log")
    for name, value in values.items():
        assert repr(again.get(name)) == repr(log.get(name)) == repr((value, 1.0))
    assert again.get("other") is None


@pytest.mark.parametrize(
    "torn", ['["b", 2', "[", '["b"]', '["b", "many"]', "\0\0\0", '["b", 2, null]', "\xff"]
)
def test_what_is_no_line_is_passed_over(tmp_path: Path, torn: str) -> None:
    TaskLog(tmp_path / "log").put("a", (1.0,))
    with (tmp_path / "log").open("ab") as file:
        file.write(b"\n" + torn.encode("latin-1"))
    log = TaskLog(tmp_path / "log")
    assert log.get("a") == (1.0,) and log.get("b") is None
    log.put("b", (3.0,))
    assert TaskLog(tmp_path / "log").get("b") == (3.0,)  # the torn line does not swallow what comes behind it


def test_the_last_number_of_a_name_counts(tmp_path: Path) -> None:
    for value in (1.0, 2.0):
        TaskLog(tmp_path / "log").put("a", (value,))
    assert TaskLog(tmp_path / "log").get("a") == (2.0,)


@pytest.mark.parametrize("workers", [SerialExecutor, partial(ThreadPoolExecutor, 3)])
def test_results_in_the_order_of_the_items(tmp_path: Path, workers: Callable[[], Executor]) -> None:
    told: list[tuple[int, int, str]] = []
    log = TaskLog(tmp_path / "log")

    def _tell(*progress: Any) -> None:
        told.append(progress)
        assert TaskLog(tmp_path / "log").get(progress[2]) is not None  # on disk before it is told

    found = run_tasks(tasks.square, items(tmp_path / "calls"), workers, log, _tell)
    assert list(found.items()) == list(squares().items())
    assert [one[:2] for one in told] == [(i + 1, 4) for i in range(4)]
    assert {one[2] for one in told} == set(found)


def test_nothing_is_computed_twice(tmp_path: Path) -> None:
    TaskLog(tmp_path / "log").put("2.5", (99.0,))
    for _ in range(2):
        found = run_tasks(tasks.square, items(tmp_path / "c"), SerialExecutor, TaskLog(tmp_path / "log"))
    assert found == {**squares(), "2.5": (99.0,)}
    assert tasks.calls(tmp_path / "c") == {0.1: 1, -3.0: 1, 7.0: 1}

    def _none() -> Executor:
        raise AssertionError("no worker is needed")

    assert run_tasks(tasks.square, items(tmp_path / "c"), _none, TaskLog(tmp_path / "log")) == found


def test_an_interrupted_run_leaves_what_it_has(tmp_path: Path) -> None:
    def _interrupt(done: int, total: int, name: str) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_tasks(tasks.square, items(tmp_path / "c"), SerialExecutor, TaskLog(tmp_path / "log"), _interrupt)
    found = run_tasks(tasks.square, items(tmp_path / "c"), SerialExecutor, TaskLog(tmp_path / "log"))
    assert found == squares()
    assert set(tasks.calls(tmp_path / "c").values()) == {1}


class Breaking(Executor):
    """Computes everything when the last task is handed over; that of some names breaks it."""

    def __init__(self, names: set[float]) -> None:
        """Break at these numbers."""
        self._names, self._waiting = names, list[tuple[Future[Numbers], tasks.Square]]()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Wait for the last."""
        future: Future[Numbers] = Future()
        self._waiting.append((future, args[0]))
        if args[0].number == NUMBERS[-1]:
            for one, task in self._waiting:
                if task.number in self._names:
                    one.set_exception(BrokenExecutor("died"))
                else:
                    one.set_result(fn(task))
        return future


def test_what_was_done_when_workers_died_is_kept(tmp_path: Path) -> None:
    opened: list[set[float]] = [{NUMBERS[0], NUMBERS[2]}, set()]

    def _open() -> Executor:
        names = opened.pop(0)
        return Breaking(names) if names else SerialExecutor()

    found = run_tasks(tasks.square, items(tmp_path / "c"), _open, TaskLog(tmp_path / "log"))
    assert found == squares()
    assert set(tasks.calls(tmp_path / "c").values()) == {1} and not opened


def test_a_task_that_fails_ends_the_run_and_calls_the_others_off(tmp_path: Path) -> None:
    opened, started = Event(), []

    def _task(task: tasks.Square) -> Numbers:
        started.append(task.number)
        if task.number == NUMBERS[0]:
            raise ValueError("this one fails")
        opened.wait(600)
        return (task.number,)

    @contextmanager
    def _workers() -> Iterator[Executor]:
        with ThreadPoolExecutor(1) as pool:
            try:
                yield pool
            finally:
                opened.set()

    with pytest.raises(ValueError, match="this one fails"):
        run_tasks(_task, items(tmp_path / "c"), _workers, TaskLog(tmp_path / "log"))
    assert len(started) <= 2  # one may have begun meanwhile


def test_processes_that_die_once_and_processes_that_always_do(tmp_path: Path) -> None:
    workers = executors.workers(2, None)
    log = TaskLog(tmp_path / "log")
    assert run_tasks(tasks.square, items(tmp_path / "c", dies=2.5), workers, log) == squares()
    called = tasks.calls(tmp_path / "c")
    assert called[2.5] == 2
    lines = [line for line in (tmp_path / "log").read_text().splitlines() if line]
    assert sorted(json.loads(line)[0] for line in lines) == sorted(squares())  # each arrived once
    first = {name: task for name, task in items(tmp_path / "d", dies=7.0, always=True).items() if task.dies}
    with pytest.raises(
        ValueError, match=r"1 of 1 measurements were lost, '7.0' the first: workers died 3 times"
    ):
        run_tasks(tasks.square, first, workers, TaskLog(tmp_path / "other"))


def test_tasks_that_always_kill_dask_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    distributed = pytest.importorskip("distributed")
    opened: list[str] = []

    class Client:
        def __init__(self, address: str, timeout: float) -> None:
            opened.append(address)

        def wait_for_workers(self, count: int, timeout: float) -> None:
            assert count == 1

        def nthreads(self) -> dict[str, int]:
            return {"tcp://w:1": 1}

        def get_executor(self, *, pure: bool) -> Executor:
            assert not pure
            return ThreadPoolExecutor(1)

        def close(self) -> None:
            opened.append("closed")

    def _task(task: tasks.Square) -> Numbers:
        raise distributed.scheduler.KilledWorker("task", SimpleNamespace(address="tcp://w:1"), 3)

    monkeypatch.setattr(distributed, "Client", Client)
    with pytest.raises(ValueError, match=r"4 of 4 measurements were lost, '0.1' the first: workers died"):
        run_tasks(_task, items(tmp_path / "c"), executors.workers(1, "tcp://a:1"), TaskLog(tmp_path / "log"))
    assert opened == ["tcp://a:1", "closed"] * 3


def test_a_scheduler_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr(dask_executor, "_PATIENCE", 0.3)
    for address in ("tcp://127.0.0.1:9", "no address:here"):
        with pytest.raises(ValueError, match="no Dask scheduler answers at") as error:
            run_tasks(
                tasks.square, items(tmp_path / "c"), executors.workers(1, address), TaskLog(tmp_path / "l")
            )
        assert "\n" not in str(error.value) and address in str(error.value)


def test_a_local_cluster_that_does_not_answer_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    distributed = pytest.importorskip("distributed")
    closed: list[str] = []

    def _late(address: object, timeout: float) -> None:
        raise TimeoutError("too late")

    cluster = SimpleNamespace(close=lambda: closed.append("closed"))
    monkeypatch.setattr(distributed, "LocalCluster", lambda **options: cluster)
    monkeypatch.setattr(distributed, "Client", _late)
    with (
        pytest.raises(ValueError, match=r"^no Dask scheduler answers at 'local': too late$"),
        executors.workers(2, "local")(),
    ):
        pass
    assert closed == ["closed"]


def test_threads_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors.os, "cpu_count", lambda: 8)
    assert [executors.threads_of(0, jobs) for jobs in (1, 2, 3, 16)] == [0, 4, 2, 1]
    assert executors.threads_of(5, 2) == 5
