"""Cases in processes of their own, so that a crash or a hang is a failure of its case and of nothing else."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path

from tests.attack import kinds

_CONTEXT = multiprocessing.get_context("spawn")


@dataclass
class Result:
    """What came of a case: what fell, in a line, and what it has to say beside that."""

    seed: int
    failure: str | None
    notes: list[str] = field(default_factory=list)


def run_case(kind: str, seed: int) -> Result:
    """Run a case in this process, in a folder of its own; the lines of its file notes.txt are counted."""
    with tempfile.TemporaryDirectory(prefix=f"attack-{kind}-") as name:
        folder = Path(name)
        try:
            failure = kinds.load(kind)(seed, folder)
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            text = " ".join(str(error).split())[:300]
            place = f"{Path(last.filename).name}:{last.lineno}"
            failure = f"the attack itself failed at {place}: {type(error).__name__}: {text}"
        notes = folder / "notes.txt"
        lines = notes.read_text(encoding="utf-8").splitlines() if notes.exists() else []
    return Result(seed, failure, lines)


def _work(kind: str, connection: Connection) -> None:
    """Run the cases that come until the one who sends them is gone."""
    os.nice(10)
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            connection.send(run_case(kind, connection.recv()))


class _Worker:
    """A process that runs one case after another; it is replaced when a case takes it down."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._start()

    def _start(self) -> None:
        self.connection, other = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=_work, args=(self._kind, other), daemon=False)
        self._process.start()
        other.close()

    def give(self, seed: int) -> None:
        self.seed, self.since = seed, time.monotonic()
        self.connection.send(seed)

    def take(self) -> Result:
        try:
            result: Result = self.connection.recv()
            return result
        except EOFError:
            self._process.join()
            code = self._process.exitcode
            self._start()
            return Result(self.seed, f"the process ended with exit code {code}")

    def stop(self) -> None:
        self._process.kill()
        self._process.join()
        self.connection.close()

    def renew(self, timeout: float) -> Result:
        self.stop()
        self._start()
        return Result(self.seed, f"no end after {timeout:g} s")


def run_all(kind: str, seeds: Iterable[int], jobs: int, timeout: float) -> Iterator[Result]:
    """Run cases, ``jobs`` at a time, each for at most ``timeout`` seconds; yield results as they come."""
    left = iter(seeds)
    workers = [_Worker(kind) for _ in range(jobs)]
    busy: dict[Connection, _Worker] = {}
    try:
        idle = workers
        while True:
            for worker in idle:
                seed = next(left, None)
                if seed is not None:
                    worker.give(seed)
                    busy[worker.connection] = worker
            if not busy:
                return
            idle = []
            for connection in wait(list(busy), timeout=1.0):
                worker = busy.pop(connection)
                idle.append(worker)
                yield worker.take()
            for connection, worker in list(busy.items()):
                if time.monotonic() - worker.since > timeout:
                    del busy[connection]
                    idle.append(worker)
                    yield worker.renew(timeout)
    finally:
        for worker in workers:
            worker.stop()
