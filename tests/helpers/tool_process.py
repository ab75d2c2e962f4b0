"""Tools as processes in a session of their own, so that signals reach what a terminal's would."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 300  # seconds, for a machine that does much else


class ToolProcess:
    """``python -m tools.NAME ...``; ``hook``: Python that runs in it before anything else."""

    def __init__(
        self, folder: Path, name: str, *options: object, hook: str = "", more: Mapping[str, str] = {}
    ):
        self._temporary = folder / "temporary"
        self._temporary.mkdir(exist_ok=True)
        (folder / "sitecustomize.py").write_text(hook)
        paths = os.pathsep.join([str(folder), str(ROOT)])
        environment = {"PYTHONPATH": paths, "TMPDIR": str(self._temporary), **more}
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"tools.{name}", *map(str, options)],
            cwd=folder,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's jobs may ignore it
        )

    def send(self, number: int, *, everywhere: bool = True) -> None:
        """Send a signal to the tool and, as a terminal does, to all processes that it started."""
        (os.killpg if everywhere else os.kill)(self._process.pid, number)

    def ended(self) -> tuple[int, str]:
        """Return exit code and stderr of a tool that ends, with nothing left of it."""
        try:
            errors = self._process.communicate(timeout=PATIENCE)[1]
        finally:
            self._process.kill()
        wait_for(lambda: not self.running())
        return self._process.returncode, errors

    def running(self) -> list[int]:
        """Return the processes of the session that have not ended."""
        return [pid for pid, session in _sessions().items() if session == self._process.pid]

    def left(self) -> list[str]:
        """Return what is left in the folder of temporary files."""
        return [path.name for path in self._temporary.iterdir()]


def wait_for(condition: Callable[[], object]) -> None:
    """Wait until something is so; AssertionError if it never is."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def _sessions() -> dict[int, int]:
    """Return the session of each process that has not ended."""
    listed = subprocess.run(
        ["ps", "-A", "-o", "pid=,sess=,stat="], capture_output=True, text=True, check=True
    )
    rows = [line.split() for line in listed.stdout.splitlines()]
    return {int(pid): int(session) for pid, session, state, *_ in rows if "Z" not in state}
