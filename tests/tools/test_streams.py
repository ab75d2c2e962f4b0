"""Tools in surroundings that lack something. Oracle: exit code, and the whole of stderr."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.helpers import build, tunable
from tests.helpers.tool_process import ROOT

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="streams and folders of POSIX")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = tunable.conv_net()
    build.save(model, tmp_path / "flöat.onnx")
    (tmp_path / "data").mkdir()
    np.savez(tmp_path / "data" / "0.npz", **tunable.samples(model, 1)[0])  # type: ignore[arg-type]
    return tmp_path


def run(folder: Path, shell: str, tool: str, *options: object, **more: str) -> tuple[int, str]:
    """Run a tool as a shell does it, with ``$TOOL`` in its words; return exit code and stderr."""
    command = [sys.executable, "-m", f"tools.{tool}", *map(str, options)]
    words = " ".join(f"'{word}'" for word in command)
    done = subprocess.run(
        ["bash", "-c", shell.replace("$TOOL", words)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **more},
        capture_output=True,
        text=True,
        errors="surrogateescape",
    )
    return done.returncode, done.stderr


def quantizing(folder: Path, output: str = "öut.onnx") -> list[object]:
    given = ["--input", folder / "flöat.onnx", "--output", folder / output, "--config", "A8W8"]
    return [*given, "--data", folder / "data", "--fast"]


@pytest.mark.parametrize(
    "closed",
    [
        "<&- >&- 2>&-",
        pytest.param("<&-", marks=pytest.mark.heavy),
        pytest.param(">&-", marks=pytest.mark.heavy),
        pytest.param("2>&-", marks=pytest.mark.heavy),
    ],
)
def test_closed_streams(folder: Path, closed: str) -> None:
    assert run(folder, f"$TOOL {closed}", "quantize", *quantizing(folder)) == (0, "")
    onnx.checker.check_model(folder / "öut.onnx", full_check=True)
    code, errors = run(folder, f"$TOOL {closed}", "quantize", *quantizing(folder))  # it is there
    assert code == 1 and errors.count("\n") == (0 if "2>&-" in closed else 1)


@pytest.mark.parametrize("encoding", ["ascii", pytest.param("utf-8:strict", marks=pytest.mark.heavy)])
def test_names_that_the_output_cannot_show(folder: Path, encoding: str) -> None:
    name = os.fsdecode(b"\xff.onnx")
    done = run(folder, "$TOOL", "quantize", *quantizing(folder, name), PYTHONIOENCODING=encoding)
    assert done == (0, "") and (folder / name).exists()


@pytest.mark.parametrize("unbuffered", ["", pytest.param("1", marks=pytest.mark.heavy)])
def test_nobody_reads_the_output(folder: Path, unbuffered: str) -> None:
    shell = "(sleep 1; $TOOL) | true; exit ${PIPESTATUS[0]}"
    said = "tools.formats: error: the reader of the output is gone: Broken pipe\n"
    assert run(folder, shell, "formats", PYTHONUNBUFFERED=unbuffered) == (1, said)
    assert run(folder, shell, "formats", "--help", PYTHONUNBUFFERED=unbuffered) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_the_output_cannot_be_written(folder: Path) -> None:
    code, errors = run(folder, "$TOOL >/dev/full", "formats", PYTHONUNBUFFERED="")
    assert (code, errors) == (1, f"tools.formats: error: {os.strerror(errno.ENOSPC)}\n")


@pytest.mark.heavy
def test_a_current_folder_that_is_no_more(folder: Path) -> None:
    shell = "mkdir gone; cd gone; rmdir ../gone; $TOOL"
    assert run(folder, shell, "quantize", *quantizing(folder)) == (0, "")
    report = ["--float", folder / "flöat.onnx", "--quantized", folder / "öut.onnx", "--data", folder / "data"]
    code, errors = run(folder, shell, "report", *report, "--output", folder / "r.html")
    assert (
        code == 1 and errors.count("\n") == 1 and "'the current folder, in which processes start'" in errors
    )


@pytest.mark.heavy
def test_a_home_that_cannot_be_written(folder: Path) -> None:
    pytest.importorskip("matplotlib")
    given = ["--input", folder / "flöat.onnx", "--config", "BF16_MIXED_BFP16", "--data", folder / "data"]
    given += ["--analyze-only", "--chart", folder / "chart.svg"]
    nowhere = {"HOME": "/proc/none", "XDG_CONFIG_HOME": "/proc/none", "MPLCONFIGDIR": ""}
    assert run(folder, "$TOOL", "auto_mixed_precision", *given, **nowhere) == (0, "")
    assert (folder / "chart.svg").exists()
