"""Where tasks run: in this process, in others on this machine, or on a Dask cluster."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from transforms.run_tasks import SerialExecutor, Workers

LOCAL = "local"
_PATIENCE = 30  # seconds that a scheduler has to answer; its machine may be busy

_IGNORE_INTERRUPTS = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"
"""What each worker of a local cluster runs first, also one that is started in the place of one that died."""


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
    executor = ProcessPoolExecutor(
        jobs,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=signal.signal,
        initargs=(signal.SIGINT, signal.SIG_IGN),
    )
    with _interrupts_for_the_parent_alone():  # an interrupt may come before the initializer, too
        for _ in range(jobs):  # one process is started for each task that finds none idle
            executor.submit(int)
    return executor


@contextmanager
def _interrupts_for_the_parent_alone() -> Iterator[None]:
    """Let processes that are started meanwhile ignore interrupts: a terminal sends them to all of them."""
    if threading.current_thread() is not threading.main_thread():  # others can not say how signals are taken
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _local_cluster(jobs: int, opened: ExitStack) -> Any:
    """Workers whose warnings of tasks that are called off stay unsaid; closed with ``opened``."""
    from distributed import LocalCluster

    quiet = {"dashboard_address": None, "silence_logs": logging.ERROR}
    cluster = LocalCluster(n_workers=jobs, threads_per_worker=1, preload=[_IGNORE_INTERRUPTS], **quiet)
    opened.callback(cluster.close)
    return cluster


@contextmanager
def _dask(address: str, jobs: int) -> Iterator[Executor]:
    try:
        from distributed import Client
        from distributed.scheduler import KilledWorker
    except ImportError as error:
        raise ValueError("--dask needs Dask: pip install 'onnx-narrow[dask]'") from error
    with ExitStack() as opened:
        try:
            with _interrupts_for_the_parent_alone():
                cluster = _local_cluster(jobs, opened) if address == LOCAL else None
            client = Client(cluster or address, timeout=_PATIENCE)
        except (OSError, TimeoutError, ValueError) as error:
            raise ValueError(
                f"no Dask scheduler answers at '{address}': {' '.join(str(error).split())}"
            ) from error
        opened.callback(client.close)
        try:
            yield client.get_executor(pure=False)
        except KilledWorker as error:
            raise BrokenExecutor(str(error)) from error
