"""Tasks on a Dask cluster. A cluster that is missing or lost is an error; nothing waits for it forever."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from transforms.files import cleanup
from transforms.files.spelling import as_option
from transforms.run.fresh_process import FreshContext
from transforms.run.workers import check_current_folder, interrupts_for_this_process_alone

LOCAL = "local"
_PATIENCE = 30.0  # seconds to wait for a scheduler, and for its first worker; machines may be busy
_PAUSE = 1.0  # seconds between checks that there are still workers

_IGNORE_INTERRUPTS = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"
"""Runs first in each worker of a local cluster, including one that replaces a dead worker."""


@contextmanager
def open_dask(address: str, jobs: int) -> Iterator[Executor]:
    """Yield an executor on the cluster of the scheduler at an address, or on one of this machine (``local``).

    Raises ValueError of one line where Dask is not installed, or where no scheduler answers or no worker
    appears in time; BrokenExecutor, as tasks do, if the scheduler or workers are lost, also during startup.
    """
    try:
        from distributed import Client
    except ImportError as error:
        raise ValueError(f"{as_option('dask')} needs Dask: pip install 'onnx-narrow[dask]'") from error
    _be_quiet()
    with ExitStack() as opened:
        try:
            cluster = _local_cluster(jobs, opened) if address == LOCAL else None
            client = Client(cluster or address, timeout=_PATIENCE)
        except (OSError, TimeoutError, ValueError) as error:
            words = " ".join(str(error).split())
            raise ValueError(f"no Dask scheduler answers at '{address}': {words}") from error
        opened.callback(client.close)
        try:
            client.wait_for_workers(1, timeout=_PATIENCE)
        except TimeoutError as error:
            words = f"has no worker, and none came in {_PATIENCE:g} s"
            raise ValueError(f"the Dask scheduler at '{address}' {words}") from error
        executor = _DaskExecutor(client)
        opened.callback(executor.shutdown)
        yield executor


def _local_cluster(jobs: int, opened: ExitStack) -> Any:
    """Workers that do not warn of cancelled tasks; closed with ``opened``."""
    import dask
    from distributed import LocalCluster

    check_current_folder()
    folder = opened.enter_context(cleanup.temporary_folder())
    opened.enter_context(dask.config.set({"temporary-directory": str(folder)}))
    port = {"dashboard_address": "localhost:0"}  # a free one: another cluster may have the default
    quiet = {"dashboard_address": None, "silence_logs": logging.CRITICAL, "scheduler_kwargs": port}
    opened.enter_context(_fresh_processes())
    try:
        with interrupts_for_this_process_alone():
            cluster = LocalCluster(
                n_workers=jobs, threads_per_worker=1, preload=[_IGNORE_INTERRUPTS], **quiet
            )
    except RuntimeError as error:  # a worker died before it was ready
        raise BrokenExecutor(str(error)) from error
    opened.callback(cluster.close)
    return cluster


@contextmanager
def _fresh_processes() -> Iterator[None]:
    """Make Dask start workers, also those that replace dead ones, without importing the user's script.

    Dask has no setting for that.
    """
    from distributed import process

    before = process.get_mp_context
    process.get_mp_context = FreshContext
    try:
        yield
    finally:
        process.get_mp_context = before


def _be_quiet() -> None:
    """Silence Dask's own error messages, unless everything is logged (``--verbose``): we report one line."""
    if not logging.getLogger().isEnabledFor(logging.DEBUG):
        names = [name for name in logging.root.manager.loggerDict if name.partition(".")[0] == "distributed"]
        for name in names:
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)


class _DaskExecutor(Executor):
    """Submits tasks to a Dask client, and fails them when no worker is left."""

    def __init__(self, client: Any) -> None:
        """Start watching the workers."""
        self._client, self._inner = client, client.get_executor(pure=False)
        self._waiting: set[Future[Any]] = set()
        self._lock, self._ended = threading.Lock(), threading.Event()
        threading.Thread(target=self._look_after, daemon=True).start()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Return a future of the result; BrokenExecutor, raised or in the future, if the cluster is lost."""
        future: Future[Any] = Future()
        with self._lock:
            self._waiting.add(future)
        try:
            inner = self._inner.submit(fn, *args, **kwargs)
        except Exception as error:  # depends on which part of the connection broke
            raise BrokenExecutor(str(error)) from error
        inner.add_done_callback(lambda done: self._pass_on(done, future))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Stop watching the workers."""
        self._ended.set()

    def _pass_on(self, done: Future[Any], future: Future[Any]) -> None:
        from distributed.scheduler import KilledWorker

        try:
            result = done.result()
        except (CancelledError, KilledWorker) as error:
            self._settle(future, BrokenExecutor(str(error)))
        except BaseException as error:  # whatever the task raised
            self._settle(future, error)
        else:
            self._settle(future, None, result)

    def _settle(self, future: Future[Any], error: BaseException | None, result: Any = None) -> None:
        with self._lock:
            if future not in self._waiting:
                return
            self._waiting.discard(future)
        if not future.set_running_or_notify_cancel():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def _look_after(self) -> None:
        """Fail all tasks when there has been no worker for a while: they would wait forever."""
        missing = 0.0
        while not self._ended.wait(_PAUSE):
            workers: Any = ()
            with suppress(Exception):  # no answer: lost, or closed
                workers = self._client.nthreads()
            missing = 0.0 if workers else missing + _PAUSE
            if missing >= _PATIENCE:
                for future in list(self._waiting):
                    self._settle(future, BrokenExecutor("no worker is left"))
