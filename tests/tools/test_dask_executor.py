"""A Dask cluster that is not there, or is there no longer. Oracle: squares, and the errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from onnx_narrow.api import dask_executor, executors
from tests.helpers import tasks
from tests.helpers.tool_process import ROOT, wait_for

pytest.importorskip("distributed")


class Cluster:
    """A scheduler and workers, each a process that is killed at the end."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._processes = folder, list[subprocess.Popen[bytes]]()
        file = folder / "scheduler.json"
        self.scheduler = self._start("scheduler", "--port", "0", "--scheduler-file", str(file))
        wait_for(lambda: file.exists() and file.read_text().rstrip().endswith("}"))
        self.address = str(json.loads(file.read_text())["address"])

    def add_worker(self) -> subprocess.Popen[bytes]:
        options = ["--nthreads", "1", "--no-nanny", "--local-directory", str(self._folder)]
        return self._start("worker", self.address, *options)

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def _start(self, what: str, *options: str) -> subprocess.Popen[bytes]:
        ports = ["--host", "127.0.0.1", "--no-dashboard", "--dashboard-address", "127.0.0.1:0"]
        command = [sys.executable, "-m", f"distributed.cli.dask_{what}", *options, *ports]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        null = subprocess.DEVNULL
        self._processes.append(subprocess.Popen(command, env=environment, stdout=null, stderr=null))
        return self._processes[-1]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    found = Cluster(tmp_path)
    yield found
    found.end()


def test_a_scheduler_without_workers(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert dask_executor._PATIENCE == 30
    monkeypatch.setattr(dask_executor, "_PATIENCE", 1.0)
    words = rf"^the Dask scheduler at '{cluster.address}' has no worker, and none came in 1 s$"
    with pytest.raises(ValueError, match=words), dask_executor.open_dask(cluster.address, 1):
        pass


@pytest.mark.heavy
def test_a_scheduler_that_is_lost_at_work(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.add_worker()

    items = [tasks.LateSquare(n, n - 2.0, str(tmp_path)) for n in (2.0, 1200.0)]
    with (
        pytest.raises(ValueError, match=rf"^no Dask scheduler answers at '{cluster.address}': ") as caught,
        executors.workers(1, cluster.address) as workers,
    ):
        results = workers.map(tasks.late_square, items)
        assert next(results) == (4.0,)
        monkeypatch.setattr(dask_executor, "_PATIENCE", 1.0)  # in the second attempt
        cluster.scheduler.kill()
        next(results)
    assert "\n" not in str(caught.value)


@pytest.mark.heavy
def test_the_last_worker_is_lost_at_work(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = cluster.add_worker()

    items = [tasks.LateSquare(n, n - 2.0, str(tmp_path)) for n in (2.0, 1200.0)]
    with (
        pytest.raises(ValueError, match=r"has no worker, and none came in 1 s$"),
        executors.workers(1, cluster.address) as workers,
    ):
        results = workers.map(tasks.late_square, items)
        next(results)
        monkeypatch.setattr(dask_executor, "_PATIENCE", 1.0)
        worker.kill()
        next(results)


@pytest.mark.heavy
def test_a_local_worker_that_is_lost_before_it_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "mark"
    dies_once = (
        f"import os\nif not os.path.exists({str(mark)!r}):\n    open({str(mark)!r}, 'w')\n    os._exit(1)\n"
    )
    monkeypatch.setattr(dask_executor, "_IGNORE_INTERRUPTS", dies_once)
    with executors.workers(1, "local") as workers:
        found = list(workers.map(tasks.late_square, [tasks.LateSquare(2.0, 0.0, str(tmp_path))]))
    assert found == [(4.0,)] and mark.exists()
