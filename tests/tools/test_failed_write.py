"""A write that fails or is interrupted leaves nothing behind, and an older output as it was.

The interrupts come at every call that makes a write durable or visible (fsync and rename), as an exception in
this process and as a real signal to a child.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest

from tests.helpers import build
from tests.helpers.refusal import Scene, snapshot

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 1_000_000
WIDE = 256  # a weight that goes to external data
WIDTH = 1024  # one weight of 2 MB as bfloat16: more than the limit
STYLES = [[], ["--save_as_external_data"]]
STYLE_NAMES = ["one file", "external data"]


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte, which only root may mount."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={LIMIT}", "tmpfs", str(disk)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("no mount command")
    if done.returncode:
        pytest.skip(f"mounting is not permitted: {done.stderr.strip()}")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.fixture
def file_size_limit() -> Iterator[None]:
    """A limit on the size of any file that this process writes, for users who may not mount."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def interrupt_at(call: int, name: str, patch: pytest.MonkeyPatch) -> list[int]:
    """Let the n-th call of ``os.NAME`` (from 0) be interrupted; return a list that grows with the calls."""
    calls: list[int] = []
    original = getattr(os, name)

    def interrupted(*arguments: object, **options: object) -> object:
        calls.append(call)
        if len(calls) == call + 1:
            raise KeyboardInterrupt
        return original(*arguments, **options)

    patch.setattr(os, name, interrupted)
    return calls


@pytest.mark.parametrize("style", STYLES, ids=STYLE_NAMES)
def test_full_disk(scene: Scene, full_disk: Path, style: list[str]) -> None:
    scene.write(build.dense(WIDTH, dtype=scene.dtype))
    message = scene.refused(*style, target=full_disk / "result.onnx")
    assert os.strerror(errno.ENOSPC) in message and str(full_disk) in message


@pytest.mark.parametrize("style", STYLES, ids=STYLE_NAMES)
def test_full_disk_keeps_the_older_output(scene: Scene, full_disk: Path, style: list[str]) -> None:
    scene.write(build.dense(WIDTH, dtype=scene.dtype))
    (full_disk / "result.onnx").write_bytes(b"precious")
    assert os.strerror(errno.ENOSPC) in scene.refused(*style, "--force", target=full_disk / "result.onnx")


@pytest.mark.parametrize("style", STYLES, ids=STYLE_NAMES)
def test_file_larger_than_the_system_allows(scene: Scene, file_size_limit: None, style: list[str]) -> None:
    source = build.dense(64, layers=150, dtype=scene.dtype)  # more than the limit in all, little in each
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 * LIMIT**2, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    scene.write(source)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    message = scene.refused(*style)
    assert os.strerror(errno.EFBIG) in message and str(scene.target.parent) in message


@pytest.mark.parametrize("style", STYLES, ids=STYLE_NAMES)
def test_disk_that_fills_up_when_the_file_is_made_durable(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, style: list[str]
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    scene.write()
    monkeypatch.setattr(os, "fsync", fail)
    assert os.strerror(errno.ENOSPC) in scene.refused(*style)


@pytest.mark.parametrize("name", ["fsync", "replace"])
@pytest.mark.parametrize("style", STYLES, ids=STYLE_NAMES)
def test_interrupt_leaves_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, name: str, style: list[str]
) -> None:
    scene.write(build.dense(WIDE, dtype=scene.dtype))
    for call in range(1 + len(style)):  # external data are one more file
        with monkeypatch.context() as patch:
            calls = interrupt_at(call, name, patch)
            assert "interrupted" in scene.refused(*style, code=130)
            assert len(calls) >= call + 1


@pytest.mark.parametrize("name", ["fsync", "replace"])
@pytest.mark.parametrize("style", STYLES, ids=STYLE_NAMES)
def test_interrupt_keeps_the_older_output(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, name: str, style: list[str]
) -> None:
    scene.write(build.dense(WIDE, dtype=scene.dtype, seed=1))
    assert scene.convert(*style) == (0, "")
    scene.write(build.dense(WIDE, dtype=scene.dtype, seed=2))
    for call in range(1 + len(style)):
        with monkeypatch.context() as patch:
            calls = interrupt_at(call, name, patch)
            assert "interrupted" in scene.refused(*style, "--force", code=130)
            assert len(calls) >= call + 1


# It waits in short steps: the system may hand a signal to a thread of ONNX Runtime, which takes note of it,
# but does not wake the main thread out of a long sleep.
WAIT_IN_FSYNC = """
import os, sys, time, importlib
def fsync(descriptor):
    print("writing", flush=True)
    for _ in range(12_000):
        time.sleep(0.1)
os.fsync = fsync
sys.exit(importlib.import_module(sys.argv[1]).main(sys.argv[2:]))
"""


def environment(scene: Scene) -> dict[str, str]:
    """Return that of a user: neither one of the variables that switch off the telemetry of ONNX Runtime."""
    kept = {name: value for name, value in os.environ.items() if name not in ("CI", "ORT_DISABLE_TELEMETRY")}
    return kept | {"TMPDIR": str(scene.folder / "temporary"), "PYTHONPATH": str(ROOT)}


@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.heavy)],
    ids=lambda number: number.name,
)
def test_real_signal_in_the_middle_of_writing(scene: Scene, number: signal.Signals) -> None:
    scene.write()
    before = snapshot(scene.folder)
    options = ["--input", str(scene.source), "--output", str(scene.target)]
    process = subprocess.Popen(
        [sys.executable, "-c", WAIT_IN_FSYNC, f"tools.{scene.tool}", *options],
        env=environment(scene) | {"ORT_DISABLE_TELEMETRY": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # a shell's background jobs ignore SIGINT
    )
    assert process.stdout is not None and process.stdout.readline() == "writing\n"
    assert len(snapshot(scene.folder)) == len(before) + 1  # the signal does come while a file is half written
    process.send_signal(number)
    try:
        errors = process.communicate(timeout=120)[1]
    finally:
        process.kill()
    assert "interrupted" in scene.message(process.returncode, errors, 128 + number)
    assert snapshot(scene.folder) == before


@pytest.mark.heavy
def test_a_run_leaves_no_file_but_the_output(scene: Scene) -> None:
    # ONNX Runtime from 1.29 on leaves a session file of its telemetry in the folder of temporary files, and
    # reports names and hashes of the models it opens, unless ORT_DISABLE_TELEMETRY is set before its import.
    scene.write()
    before = snapshot(scene.folder)
    options = ["--input", str(scene.source), "--output", str(scene.target)]
    done = subprocess.run(
        [sys.executable, "-m", f"tools.{scene.tool}", *options],
        cwd=scene.folder / "here",
        env=environment(scene),
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert snapshot(scene.folder).keys() - before.keys() == {"out/result.onnx"}


def test_input_is_untouched_and_output_is_a_whole_model_after_a_success(scene: Scene) -> None:
    source = scene.write()
    before = source.read_bytes(), source.stat().st_mtime_ns
    assert scene.convert() == (0, "")
    assert (source.read_bytes(), source.stat().st_mtime_ns) == before
    onnx.checker.check_model(scene.target, full_check=True)
