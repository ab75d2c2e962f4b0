"""Where tasks run: in this process, in others on this machine, or on a Dask cluster."""

from __future__ import annotations

import os
from functools import partial

from transforms.run.processes import open_processes
from transforms.run.tasks import SerialExecutor, Workers


def workers(jobs: int, dask: str | None) -> Workers:
    """Return what opens ``jobs`` processes, or a Dask cluster: the address of its scheduler, or ``local``."""
    if dask is not None:
        from tools.cli.dask_executor import open_dask

        return partial(open_dask, dask, jobs)
    return SerialExecutor if jobs == 1 else partial(open_processes, jobs)


def threads_of(threads: int, jobs: int) -> int:
    """Return how many threads a session has: the cores are shared by the processes of this machine."""
    return threads or (0 if jobs == 1 else max(1, (os.cpu_count() or 1) // jobs))
