"""Where tasks run: in this process, in others on this machine, or on a Dask cluster."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial

from transforms.run_tasks import SerialExecutor, Workers

LOCAL = "local"
_PATIENCE = 10  # seconds that a scheduler has to answer


def workers(jobs: int, dask: str | None) -> Workers:
    """Return what opens ``jobs`` processes, or a Dask cluster: the address of its scheduler, or ``local``."""
    if dask is not None:
        return partial(_dask, dask, jobs)
    return SerialExecutor if jobs == 1 else partial(_processes, jobs)


def threads_of(threads: int, jobs: int) -> int:
    """Return how many threads a session has: the cores are shared by the processes of this machine."""
    return threads or (0 if jobs == 1 else max(1, (os.cpu_count() or 1) // jobs))


def _processes(jobs: int) -> Executor:
    """Started anew, not forked: the threads of a runtime do not survive a fork."""
    spawn = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(jobs, mp_context=spawn, initializer=_leave_interrupts_to_the_parent)


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends them to all processes


@contextmanager
def _dask(address: str, jobs: int) -> Iterator[Executor]:
    try:
        from distributed import Client, LocalCluster
        from distributed.scheduler import KilledWorker
    except ImportError as error:
        raise ValueError("--dask needs Dask: pip install 'onnx-narrow[dask]'") from error
    local = address == LOCAL
    try:
        cluster = LocalCluster(jobs, threads_per_worker=1, dashboard_address=None) if local else None
        client = Client(cluster or address, timeout=_PATIENCE)
    except (OSError, TimeoutError, ValueError) as error:
        raise ValueError(
            f"no Dask scheduler answers at '{address}': {' '.join(str(error).split())}"
        ) from error
    try:
        yield client.get_executor(pure=False)
    except KilledWorker as error:
        raise BrokenExecutor(str(error)) from error
    finally:
        client.close()
        if cluster:
            cluster.close()
