"""Faults while an output is written: kills, full disks, folders that cannot be written to, several writers.

Oracle: afterwards the output is not there, or it is, bit for bit, one of the complete results that clean runs
make. What else is left has no name that a result could have, the next run takes it away, and files of others
are as they were.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import onnx

from tests.attack.fault_writers import MODELS, REFUSED, STYLES, WIDE, Fault, Job, run, write
from tests.helpers import build

_TIME = 120.0  # seconds in which a writer ends, or hangs
_KILLED = (-signal.SIGKILL, -signal.SIGXFSZ)
_FOREIGN = {"m.onnx.0123456789abcdef.data": b"of others", ".m.onnx.other-host.7-7-7.tmp": b"of others"}

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.attack.fault_writers"])


class Fallen(Exception):
    """The oracle says no."""


def attack(seed: int, folder: Path) -> str | None:
    """Run the case of a seed in an empty folder; return what fell, None if all held."""
    chance = random.Random(seed)
    (kind,) = chance.choices(list(_KINDS), weights=(12, 3, 3, 2, 6))
    case = _Case(chance, folder)
    try:
        _KINDS[kind](case)
    except Fallen as fallen:
        return f"{kind}, {case.style} over {case.old_style}: {fallen}"
    return None


class _Case:
    """An output, what lies there before, and what lies beside it."""

    def __init__(self, chance: random.Random, folder: Path) -> None:
        self.chance, self.folder = chance, folder / "out"
        (folder / "in").mkdir()
        self.folder.mkdir()
        self.style = chance.choice(list(STYLES))
        self.old_style = chance.choice(MODELS) if self.style in MODELS else self.style
        self.path = self.folder / ("m.onnx" if self.style in MODELS else "result")
        if "tool" in (self.style, self.old_style):
            for version in (1, 2, 3, 4):
                build.save(build.dense(WIDE, seed=version), folder / "in" / f"{version}.onnx")
        self.calls = 36 if self.style in MODELS else 8  # about as many as a writer makes
        self.old: bytes | None = None
        self.bystanders: dict[Path, bytes] = {}

    def furnish(self) -> None:
        """Write the old output, if there is one, a link to it, a copy of the old model, and foreign files."""
        for name, content in _FOREIGN.items():
            (self.folder / name).write_bytes(content)
            self.bystanders[self.folder / name] = content
        if self.chance.random() < 0.3:
            end = self.folder / f"end{self.path.suffix}"
            self.path.symlink_to(end.name)
        if self.chance.random() < 0.75:
            write(Job(self.old_style, str(self.path), 1))
            self.old = content_of(self.path)
            if self.style in MODELS and self.chance.random() < 0.4:
                copy = self.folder / "copy.onnx"
                shutil.copy(self.path, copy)
                self.bystanders[copy] = content_of(copy)

    def job(self, version: int = 2, fault: Fault | None = None, *, force: bool = True) -> Job:
        """Return the job that writes a version of the output."""
        return Job(self.style, str(self.path), version, force, fault or Fault())

    def check(self, versions: Iterable[int], *, whole: bool = False) -> None:
        """Hold the folder to the oracle; ``whole``: the output must be there, and one of the versions."""
        allowed = [result(self.style, version) for version in versions]
        if not whole:
            allowed += [self.old] if self.old is not None else []
        if self.path.exists():
            found = content_of(self.path)
            if found not in allowed:
                raise Fallen(f"the output of {len(found)} bytes is none of the complete results")
        elif whole or self.old is not None:
            raise Fallen("the output is not there")
        for path, content in self.bystanders.items():
            if not path.exists() or content_of(path) != content:
                raise Fallen(f"'{path.name}', a file of others, is not what it was")
        for name in self.left_over():
            if not (name.startswith(".") or name.endswith(".data")):
                raise Fallen(f"'{name}' is left, and looks like a result")

    def left_over(self) -> set[str]:
        """Return the names in the folder beside the output, its data and the files of others."""
        known = {self.path.name, self.path.resolve().name, *(path.name for path in self.bystanders)}
        for model in self.folder.glob("*.onnx"):
            if model.is_file():
                known |= _data_of(model)
        return {path.name for path in self.folder.iterdir()} - known

    def clean_run(self) -> None:
        """Write once more without a fault, after which nothing may be left over."""
        _end(_start(self.job(4)), "the next run", expected=(0,))
        self.check([4], whole=True)
        if self.left_over():
            raise Fallen(f"after the next run there is still {sorted(self.left_over())}")


def _kill(case: _Case) -> None:
    """Up to three writers in a row are killed, the later ones also while they clean up after the first."""
    case.furnish()
    versions = []
    for version in range(2, 2 + case.chance.choice((1, 1, 2))):
        versions.append(version)
        kind = case.chance.choice(("call", "call", "call", "bytes"))
        at = case.chance.randrange(350_000 if kind == "bytes" else case.calls)
        fault = Fault(kind, at, after=case.chance.random() < 0.5)
        _end(_start(case.job(version, fault)), f"{fault}", expected=(0, *_KILLED))
        case.check(versions)
    case.clean_run()


def _full(case: _Case) -> None:
    """A file may not grow, or fsync fails, or the file system is full: the writer says so and cleans up."""
    kind = case.chance.choice(("limit", "full", "disk"))
    at = case.chance.randrange(6 if kind == "full" else 400_000)
    if kind == "disk":
        with _mounted(case.folder, 900_000) as mounted:
            if mounted:
                case.furnish()
                (case.folder / "ballast").write_bytes(bytes(max(0, _free(case.folder) - at)))
                case.bystanders[case.folder / "ballast"] = (case.folder / "ballast").read_bytes()
                _refused_or_done(case, Fault())
                case.check([2])
                return
        kind = "limit"
    case.furnish()
    _refused_or_done(case, Fault(kind, at))
    case.clean_run()


def _refused_or_done(case: _Case, fault: Fault) -> None:
    code = _end(_start(case.job(fault=fault)), f"{fault}", expected=(0, REFUSED))
    case.check([2], whole=code == 0)
    if code and case.path.exists() and content_of(case.path) != case.old:
        raise Fallen("an error was said, and the output is another one")
    if case.left_over():
        raise Fallen(f"{fault}: an error leaves {sorted(case.left_over())}")


def _read_only(case: _Case) -> None:
    """Nothing can be made in the folder: the writer says so, and the old output stays."""
    with _mounted(case.folder, 4_000_000) as mounted:
        case.furnish()
        with _write_protected(case.folder, mounted) as protected:
            code = _end(_start(case.job()), "a folder that is read-only", expected=(0, REFUSED))
            if protected and code != REFUSED:
                raise Fallen("no error in a folder that is read-only")
            case.check([2], whole=not protected)
            if protected and case.left_over():
                raise Fallen(f"an error leaves {sorted(case.left_over())}")


def _exclusive(case: _Case) -> None:
    """Two models are written at once without ``force``: one of the writers has to give up."""
    case.style = case.old_style = case.chance.choice(("one file", "external"))
    case.path = case.folder / "m.onnx"
    slow = [Fault("slow", case.chance.randrange(1 << 30)) for _ in range(2)]
    writers = [_start(case.job(2 + i, fault, force=False)) for i, fault in enumerate(slow)]
    codes = [_end(writer, "a writer without force", expected=(0, REFUSED)) for writer in writers]
    if sorted(codes) != [0, REFUSED]:
        raise Fallen(f"two writers of a new output ended with {codes}")
    case.check([2 + codes.index(0)], whole=True)
    if case.left_over():
        raise Fallen(f"two writers leave {sorted(case.left_over())}")


def _writers(case: _Case) -> None:
    """Two or three write different results at once, one of them may be killed, and the output is read."""
    case.furnish()
    chance, versions = case.chance, [2, 3, *([1] if case.chance.random() < 0.3 else [])]
    faults = [Fault("slow", chance.randrange(1 << 30)) for _ in versions]
    if chance.random() < 0.3:
        faults[0] = Fault("call", chance.randrange(case.calls), after=chance.random() < 0.5)
    writers = [_start(case.job(v, fault)) for v, fault in zip(versions, faults, strict=True)]
    allowed = [case.old, *(result(case.style, version) for version in versions)]
    while any(writer.is_alive() for writer in writers):
        _read_meanwhile(case.path, allowed)
        writers[0].join(0.005)
    codes = [_end(writer, "one of several writers", expected=(0, *_KILLED)) for writer in writers]
    case.check(versions, whole=0 in codes)
    if not any(codes) and case.left_over():
        raise Fallen(f"{len(writers)} writers leave {sorted(case.left_over())}")
    case.clean_run()


_KINDS: dict[str, Callable[[_Case], None]] = {
    "kill": _kill,
    "full disk": _full,
    "two writers without force": _exclusive,
    "read-only": _read_only,
    "several writers": _writers,
}


def _read_meanwhile(path: Path, allowed: list[bytes | None]) -> None:
    """Whoever reads while others write gets a complete result, or an error: data may go in between."""
    try:
        found = content_of(path)
    except (OSError, ValueError, onnx.checker.ValidationError):
        return
    if found not in allowed:
        raise Fallen("a reader got what is none of the complete results")


def content_of(path: Path) -> bytes:
    """Return the bytes of a file, those of a model with its external data inside."""
    if path.suffix != ".onnx":
        return path.read_bytes()
    return onnx.load(path).SerializeToString(deterministic=True)


@lru_cache
def result(style: str, version: int) -> bytes:
    """Return the content of what a clean run writes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for inner in ("in", "out"):
            (folder / inner).mkdir()
        build.save(build.dense(WIDE, seed=version), folder / "in" / f"{version}.onnx")
        path = folder / "out" / ("m.onnx" if style in MODELS else "result")
        write(Job(style, str(path), version))
        return content_of(path)


def _data_of(model: Path) -> set[str]:
    stored = onnx.load(model, load_external_data=False)
    return {e.value for t in stored.graph.initializer for e in t.external_data if e.key == "location"}


def _start(job: Job) -> multiprocessing.Process:
    process = _context.Process(target=run, args=(job,))
    process.start()
    return process  # type: ignore[return-value]


def _end(process: multiprocessing.Process, what: str, expected: tuple[int, ...]) -> int:
    process.join(_TIME)
    code = process.exitcode
    if code is None:
        process.kill()
        raise Fallen(f"{what}: hangs")
    if code not in expected:
        raise Fallen(f"{what}: ends with {code}")
    return code


@contextmanager
def _mounted(folder: Path, size: int) -> Iterator[bool]:
    """Make the folder a file system of its own, if this user may; yield whether it is."""
    words = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    mounted = os.geteuid() == 0 and shutil.which("mount") is not None
    mounted = mounted and subprocess.run(words, capture_output=True).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)


@contextmanager
def _write_protected(folder: Path, mounted: bool) -> Iterator[bool]:
    """Protect the folder; yield whether it is: permissions bind all users but root."""
    if mounted:
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        yield True
        return
    folder.chmod(0o555)
    try:
        yield os.geteuid() != 0
    finally:
        folder.chmod(0o755)


def _free(folder: Path) -> int:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize
