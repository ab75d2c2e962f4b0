"""Writers of outputs that meet a fault at a chosen call or byte: killed, out of space, or slowed down."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.helpers import build
from tools import convert_fp32_to_bf16
from transforms import model_io
from transforms.files.output_file import check_writable, write_array, write_text

WIDE = 256  # of a model's weight: more than what stays inside of a model with external data
REFUSED = 3
"""Exit code of a writer that gave up with an error of one line."""

_CALLS = ((os, "open"), (os, "fsync"), (os, "replace"), (os, "unlink"), (os, "close"), (fcntl, "flock"))


@dataclass(frozen=True)
class Fault:
    """What happens to a writer.

    ``kind``: "call", killed at one of its calls to the system, before it or ``after`` it; "bytes", killed
    when a file grows over ``at`` bytes; "limit", that is an error; "full", a call of fsync is an error;
    "slow", waits before its calls, ``at`` is the seed; "none".
    """

    kind: str = "none"
    at: int = 0
    after: bool = False


@dataclass(frozen=True)
class Job:
    """A version of an output to write in a style, see :data:`STYLES`."""

    style: str
    path: str
    version: int
    force: bool = True
    fault: Fault = Fault()


def run(job: Job) -> None:
    """Write in this process, which ends with 0 when that is done, and REFUSED when it is not."""
    try:
        _prepare(job.fault)
        write(job)
    except (OSError, ValueError) as error:
        sys.exit(REFUSED if "\n" not in str(error) else 1)


def write(job: Job) -> None:
    """Write; raises OSError or ValueError."""
    path = Path(job.path)
    if job.style in MODELS:
        STYLES[job.style](path, job.version, job.force)
        return
    check_writable(path, force=job.force)
    STYLES[job.style](path, job.version, job.force)


def _model(path: Path, version: int, force: bool, *, external: bool = False) -> None:
    graph = model_io.load(build.dense(WIDE, seed=version))
    model_io.save(graph, path, metadata={"version": str(version)}, external_data=external, force=force)


def _external(path: Path, version: int, force: bool) -> None:
    _model(path, version, force, external=True)


def _tool(path: Path, version: int, force: bool) -> None:
    source = path.resolve().parent.parent / "in" / f"{version}.onnx"
    words = ["--input", str(source), "--output", str(path), "--save_as_external_data"]
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        code = convert_fp32_to_bf16.main([*words, *(["--force"] if force else [])])
    if code:
        raise ValueError(said.getvalue().strip())


def _array(path: Path, version: int, force: bool) -> None:
    write_array(path, np.random.default_rng(version).standard_normal((200, 200)))


def _text(path: Path, version: int, force: bool) -> None:
    write_text(path, "\n".join(f"{version} {line}" for line in range(20_000)))


MODELS = ("one file", "external", "tool")
STYLES: dict[str, Callable[[Path, int, bool], None]] = {
    "one file": _model,
    "external": _external,
    "tool": _tool,
    "array": _array,
    "text": _text,
}


def _prepare(fault: Fault) -> None:
    """Let the fault come to this process; a process that is killed has no chance to clean up."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if fault.kind in ("bytes", "limit"):
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL if fault.kind == "bytes" else signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (fault.at, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    if fault.kind in ("call", "slow"):
        hook = _Killer(fault) if fault.kind == "call" else _Sleeper(fault)
        for module, name in _CALLS:
            setattr(module, name, hook.around(getattr(module, name)))
    if fault.kind == "full":
        os.fsync = _Full(fault.at, os.fsync)  # type: ignore[assignment]


class _Killer:
    """Kills this process at a call."""

    def __init__(self, fault: Fault) -> None:
        self._left, self._after = fault.at, fault.after

    def around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self._left -= 1
            if self._left < 0 and self._after:
                original(*arguments, **options)
            if self._left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*arguments, **options)

        return call


class _Sleeper:
    """Waits before calls, so that those of several writers come in many orders."""

    def __init__(self, fault: Fault) -> None:
        self._random = random.Random(fault.at)

    def around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            time.sleep(self._random.choice((0, 0, 0.001, 0.005, 0.02)))
            return original(*arguments, **options)

        return call


class _Full:
    """An fsync that finds the disk full at one of its calls."""

    def __init__(self, left: int, original: Callable[[int], None]) -> None:
        self._left, self._original = left, original

    def __call__(self, descriptor: int) -> None:
        self._left -= 1
        if self._left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._original(descriptor)
