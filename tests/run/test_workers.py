"""Tasks run by workers. Oracle: squares, how often each task was called, and which processes are there."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from onnx_narrow.api import dask_executor, executors
from tests.helpers import tasks
from tests.helpers.serial_executor import SerialExecutor, deadly_workers
from tests.helpers.tool_process import wait_for
from transforms.run.workers import Workers, open_processes

NUMBERS = (0.1, -3.0, 2.5, 7.0)
SQUARES = [(number**2, 2 * number) for number in NUMBERS]


def items(folder: Path, dies: float | None = None, *, always: bool = False) -> list[tasks.Square]:
    """Return a task for each number, one of which ends its process."""
    folder.mkdir(exist_ok=True)
    return [tasks.Square(n, str(folder), n == dies, always) for n in NUMBERS]


@pytest.mark.parametrize("opens", [None, SerialExecutor, partial(ThreadPoolExecutor, 3)])
@pytest.mark.parametrize("ahead", [1, 3, 64])
def test_results_in_the_order_of_the_items(
    tmp_path: Path, opens: Callable[[], Executor] | None, ahead: int
) -> None:
    with Workers(opens, ahead) as workers:
        assert list(workers.map(tasks.square, items(tmp_path))) == SQUARES


def test_items_are_taken_as_they_are_needed() -> None:
    taken: list[int] = []

    def _items() -> Iterator[int]:
        for number in range(9):
            taken.append(number)
            yield number

    with Workers(SerialExecutor, 2) as workers:
        results = workers.map(str, _items())
        assert [next(results), next(results)] == ["0", "1"] and len(taken) == 3
        results.close()  # type: ignore[attr-defined]


def test_workers_are_opened_once_and_closed_at_the_end(tmp_path: Path) -> None:
    opened: list[str] = []

    @contextmanager
    def _open() -> Iterator[Executor]:
        opened.append("open")
        try:
            yield SerialExecutor()
        finally:
            opened.append("closed")

    with Workers(_open) as workers:
        assert not opened
        for _ in range(2):
            assert list(workers.map(tasks.square, items(tmp_path))) == SQUARES
        assert opened == ["open"]
    assert opened == ["open", "closed"]


def test_a_worker_that_dies_costs_its_task_alone(tmp_path: Path) -> None:
    given: list[tasks.Square] = []
    workers = deadly_workers(given, deadly=3)
    assert list(workers.map(tasks.square, items(tmp_path))) == SQUARES
    assert [one.number for one in given] == [*NUMBERS, NUMBERS[2]]


def test_workers_that_are_lost_when_tasks_are_handed_over(tmp_path: Path) -> None:
    class _Lost(Executor):
        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            raise BrokenExecutor("lost")

    opened: list[Executor] = [SerialExecutor(), _Lost()]
    assert list(Workers(lambda: opened.pop()).map(tasks.square, items(tmp_path))) == SQUARES
    with pytest.raises(ValueError, match=r"^workers died 3 times, perhaps for want of memory$"):
        list(Workers(_Lost).map(tasks.square, items(tmp_path)))


def test_processes_that_die_once_and_processes_that_always_do(tmp_path: Path) -> None:
    with executors.workers(2, None) as workers:
        assert list(workers.map(tasks.square, items(tmp_path / "c", dies=2.5))) == SQUARES
        assert tasks.calls(tmp_path / "c")[2.5] == 2
        with pytest.raises(ValueError, match=r"^workers died 3 times"):
            list(workers.map(tasks.square, items(tmp_path / "d", dies=7.0, always=True)))


def test_a_task_that_fails_calls_the_others_off(tmp_path: Path) -> None:
    opened, started = Event(), []

    def _task(task: tasks.Square) -> float:
        started.append(task.number)
        if task.number == NUMBERS[0]:
            raise ValueError("this one fails")
        opened.wait(600)
        return task.number

    @contextmanager
    def _open() -> Iterator[Executor]:
        with ThreadPoolExecutor(1) as pool:
            try:
                yield pool
            finally:
                opened.set()

    with pytest.raises(ValueError, match="this one fails"), Workers(_open) as workers:
        list(workers.map(_task, items(tmp_path)))
    assert len(started) <= 2  # one may have begun meanwhile


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_tasks_that_run_and_wait_are_dropped_with_the_block(tmp_path: Path) -> None:
    late = [tasks.LateSquare(float(n), 1200, str(tmp_path)) for n in range(8)]
    with pytest.raises(RuntimeError, match="enough"), open_processes(2) as executor:
        futures = [executor.submit(tasks.late_square, one) for one in late]
        wait_for(lambda: len(list(tmp_path.iterdir())) == 2)
        for future in futures:
            future.cancel()
        raise RuntimeError("enough")
    wait_for(lambda: not multiprocessing.active_children())
    assert len(list(tmp_path.iterdir())) == 2


def test_results_are_there_at_the_end_of_the_block() -> None:
    with open_processes(2) as executor:
        assert wait([executor.submit(os.getpid)], return_when=FIRST_COMPLETED).done
        late = executor.submit(time.sleep, 0.2)
    assert late.done() and late.exception() is None and multiprocessing.active_children() == []


@pytest.mark.parametrize("dask", [None, pytest.param("local", marks=pytest.mark.heavy)])
def test_workers_leave_interrupts_to_the_process_that_waits_for_them(dask: str | None) -> None:
    if dask:
        pytest.importorskip("distributed")
    before = signal.getsignal(signal.SIGINT)
    with executors.workers(2, dask) as workers:
        found = dict(workers.map(tasks.interrupts, [0.3] * 6))
        assert signal.getsignal(signal.SIGINT) is before
    assert all(found.values())  # every worker, whenever it was started


@pytest.mark.parametrize("jobs", [1, pytest.param(3, marks=pytest.mark.heavy)])
def test_a_local_cluster_has_as_many_workers_as_there_are_jobs(jobs: int) -> None:
    pytest.importorskip("distributed")
    with ExitStack() as opened:
        assert len(dask_executor._local_cluster(jobs, opened).workers) == jobs


@pytest.mark.heavy
def test_a_dask_worker_in_the_place_of_one_that_died_leaves_them_to_it_too(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    with executors.workers(1, "local") as workers:
        dies_once = tasks.Square(2.5, str(tmp_path), dies=True)
        assert list(workers.map(tasks.square, [dies_once])) == [(6.25, 5.0)]
        assert tasks.calls(tmp_path) == {2.5: 2}
        assert next(workers.map(tasks.interrupts, [0.0]))[1]


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

    def _task(task: tasks.Square) -> float:
        raise distributed.scheduler.KilledWorker("task", SimpleNamespace(address="tcp://w:1"), 3)

    monkeypatch.setattr(distributed, "Client", Client)
    with (
        pytest.raises(ValueError, match=r"^workers died 3 times"),
        executors.workers(1, "tcp://a:1") as workers,
    ):
        list(workers.map(_task, items(tmp_path)))
    assert opened == ["tcp://a:1", "closed"] * 3


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "no address:here"])
def test_a_scheduler_that_does_not_answer(
    tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr(dask_executor, "_PATIENCE", 0.3)
    with (
        pytest.raises(ValueError, match="no Dask scheduler answers at") as error,
        executors.workers(1, address) as workers,
    ):
        list(workers.map(tasks.square, items(tmp_path)))
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
        dask_executor.open_dask("local", 2),
    ):
        pass
    assert closed == ["closed"]


ROOT = Path(__file__).parents[2]


PROCESSES = "transforms.run.workers import open_processes as opens; arguments = (1,)"
DASK = "onnx_narrow.api.dask_executor import open_dask as opens; arguments = 'local', 1"


@pytest.mark.parametrize("given", ["file", "stdin"])
@pytest.mark.parametrize("opens", [PROCESSES, pytest.param(DASK, marks=pytest.mark.heavy)])
def test_a_script_without_a_guard_runs_once(opens: str, given: str, tmp_path: Path) -> None:
    """Also where workers die, and others take their place."""
    if opens == DASK:
        pytest.importorskip("distributed")
    script = f"""
print("started", flush=True)
import os
from contextlib import suppress
from tests.helpers import tasks
from {opens}
from transforms.run.workers import Workers
dies = tasks.Square(3.0, {str(tmp_path)!r}, dies=True)
with Workers(lambda: opens(*arguments)) as workers:
    print(*workers.map(tasks.square, [dies]))
print(__name__, "opens" in vars(__import__("__main__")))
"""
    file = tmp_path.with_name("script.py")
    file.write_text(script, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, *([str(file)] if given == "file" else [])],
        input=script if given == "stdin" else "",
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("started\n(9.0, 6.0)\n__main__ True\n", "")
    assert tasks.calls(tmp_path) == {3.0: 2}


def test_threads_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors.os, "cpu_count", lambda: 8)
    assert [executors.threads_of(0, jobs) for jobs in (1, 2, 3, 16)] == [0, 4, 2, 1]
    assert executors.threads_of(5, 2) == 5
