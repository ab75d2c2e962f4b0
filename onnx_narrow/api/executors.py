"""Where tasks run: in this process, in others on this machine, or on a Dask cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transforms.run.workers import Workers

_FOR_EACH = 2  # tasks queued for each worker: the next one is ready when it finishes one


def workers(jobs: int, dask: str | None) -> Workers:
    """Return ``jobs`` processes, or a Dask cluster: the address of its scheduler, or ``local``."""
    from transforms.run.workers import Workers, open_processes

    if dask is not None:
        from onnx_narrow.api.dask_executor import LOCAL, open_dask

        opens = partial(open_dask, dask, jobs)
        return Workers(opens, _FOR_EACH * jobs) if dask == LOCAL else Workers(opens)
    return Workers() if jobs == 1 else Workers(partial(open_processes, jobs), _FOR_EACH * jobs)


@contextmanager
def open_workers(jobs: int | None, dask: str | None) -> Iterator[Workers | None]:
    """Yield the workers that the keywords ask for, None where neither is given."""
    if jobs is None and dask is None:
        yield None
        return
    with workers(jobs or 1, dask) as opened:
        yield opened


def threads_of(threads: int, jobs: int) -> int:
    """Return how many threads a session has: the cores are shared by the processes of this machine."""
    return threads or (0 if jobs == 1 else max(1, (os.cpu_count() or 1) // jobs))
