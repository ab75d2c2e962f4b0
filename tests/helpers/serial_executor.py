"""Workers of one's own for tests: an executor in this process, and one whose workers die."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future
from typing import Any

from transforms.run.workers import Workers


class SerialExecutor(Executor):
    """Runs each task in this process when it is handed over."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Return a future that is done."""
        done: Future[Any] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done


class DeadlyExecutor(Executor):
    """Hands tasks on, but in the place of one, by its number in the order of all, what ends a worker."""

    def __init__(self, given: list[Any], deadly: int, inner: Executor, kill: Callable[..., Future[Any]]):
        """Note the ``given`` tasks."""
        self._given, self._deadly, self._inner, self._kill = given, deadly, inner, kill

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Return the future of a task."""
        self._given.append(args[0])
        if len(self._given) == self._deadly:
            return self._kill(self._inner)
        return self._inner.submit(fn, *args, **kwargs)


def dead(_: Executor | None = None) -> Future[Any]:
    """Return the future of a task whose worker died."""
    future: Future[Any] = Future()
    future.set_exception(BrokenExecutor("died"))
    return future


def deadly_workers(given: list[Any], deadly: int) -> Workers:
    """Return workers in this process of which one dies once, at a task by its number in the order of all."""
    return Workers(lambda: DeadlyExecutor(given, deadly, SerialExecutor(), dead))
