"""A signal ends a tool in one line, with nothing left, whenever it comes.

Oracle: the exit code, 128 and the number of the signal, and the whole of stderr.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.helpers import build, tunable
from tests.helpers.spread import spread
from tests.helpers.tool_process import ToolProcess, wait_for

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")

AT_AN_IMPORT = """
import os, signal, sys
left = {left}
def watch(event, arguments):
    global left
    if event == "import" and "{after}" in sys.modules:
        left -= 1
        if left == 0:
            os.kill(os.getpid(), {number})
if "-m" in sys.orig_argv:
    sys.addaudithook(watch)
"""
"""The tool sends itself a signal at an import: most happen inside others, many in compiled modules."""

IN_A_SESSION = """
import os, signal, sys, threading, time
def watch():
    for _ in range(10**6):
        time.sleep(0.05)
        frame = sys._current_frames()[threading.main_thread().ident]
        if frame.f_code.co_name == "run" and "onnxruntime" in frame.f_code.co_filename:
            os.kill(os.getpid(), {number})
            return
if "-m" in sys.orig_argv:
    threading.Thread(target=watch, daemon=True).start()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a model, its quantized form's options and a sample."""
    model = tunable.conv_net()
    build.save(model, tmp_path / "float.onnx")
    (tmp_path / "data").mkdir()
    for i, feed in enumerate(tunable.samples(model, 2)):
        np.savez(tmp_path / "data" / f"{i}.npz", **feed)  # type: ignore[arg-type]
    return tmp_path


IN, OUT, DATA = ("--input", "float.onnx"), ("--output", "out.onnx"), ("--data", "data")
RUNS = {
    "quantize": (*IN, *OUT, "--config", "A8W8", "--data", "data"),
    "convert_fp32_to_bf16": (*IN, *OUT),
    "infer": ("--model", "float.onnx", "--output_dir", "made", *DATA),
    "report": ("--float", "float.onnx", "--quantized", "float.onnx", "--output", "r.html", *DATA),
}
MOMENTS = (1, 30, 110, 200, 300)


def at_an_import(left: int, number: int, after: str = "tools.cli.command_line") -> str:
    """Return what sends a signal at an import after that of a module."""
    return AT_AN_IMPORT.format(left=left, number=int(number), after=after)


@pytest.mark.parametrize(("tool", "left"), spread(RUNS, MOMENTS, of=4))
def test_at_imports(folder: Path, tool: str, left: int) -> None:
    number = signal.SIGTERM if left == 200 else signal.SIGINT
    before = sorted(folder.rglob("*"))
    process = ToolProcess(folder, tool, *RUNS[tool], hook=at_an_import(left, number))
    assert process.ended() == (128 + number, f"tools.{tool}: error: interrupted\n")
    kept = {"temporary", "sitecustomize.py", "__pycache__"}
    assert [path for path in sorted(folder.rglob("*")) if not kept & set(path.parts)] == before


def test_before_the_tool_is_known(folder: Path) -> None:
    process = ToolProcess(folder, "formats", hook=at_an_import(1, signal.SIGINT, "tools.cli.interrupts"))
    assert process.ended() == (130, "tools: error: interrupted\n")


def endless() -> onnx.ModelProto:
    """Return a model of which one run takes years."""
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Mul", ["x_in", "x_in"], ["x_out"]), helper.make_node("Identity", ["go"], ["on"])],
        "body",
        [value("i", TensorProto.INT64, []), value("go", TensorProto.BOOL, []), value("x_in", 1, [2])],
        [value("on", TensorProto.BOOL, []), value("x_out", 1, [2])],
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["count", "", "x"], ["y"], body=body)],
        "endless",
        [value("x", TensorProto.FLOAT, [2])],
        [value("y", TensorProto.FLOAT, [2])],
        [helper.make_tensor("count", TensorProto.INT64, [], [2**62])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.heavy
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_in_a_long_session(folder: Path, number: signal.Signals) -> None:
    build.save(endless(), folder / "float.onnx")
    for path in (folder / "data").iterdir():
        path.unlink()
    np.savez(folder / "data" / "0.npz", x=np.ones(2, np.float32))
    process = ToolProcess(folder, "infer", *RUNS["infer"], hook=IN_A_SESSION.format(number=int(number)))
    assert process.ended() == (128 + number, "tools.infer: error: interrupted\n")
    assert process.left() == [] and not (folder / "made").exists()


METRIC = """
import multiprocessing, os, pathlib, time
def slow(outputs):
    if multiprocessing.parent_process() is not None:
        pathlib.Path(f"mark{os.getpid()}").touch()
        time.sleep(1200)
    return 1.0
"""


def measuring(folder: Path, *options: str) -> ToolProcess:
    """Return a tool whose workers are all in the middle of a task."""
    (folder / "metric.py").write_text(METRIC.replace('f"mark', f'f"{folder}/mark'))
    rule = (
        "--target",
        "mx6",
        "--evaluate",
        "metric.py:slow",
        "--evaluate-target",
        "1",
    )
    process = ToolProcess(
        folder, "auto_mixed_precision", *IN, *OUT, *DATA, "--config", "BF16", *rule, "--jobs", "2", *options
    )
    wait_for(lambda: len(list(folder.glob("mark*"))) == 2 or not process.running())
    return process


WORKERS = [(), ("--dask", "local")]


@pytest.mark.parametrize(
    ("options", "everywhere"),
    [
        (WORKERS[0], True),
        pytest.param(WORKERS[0], False, marks=pytest.mark.heavy),
        pytest.param(WORKERS[1], True, marks=pytest.mark.heavy),
    ],
    ids=["processes", "processes, from kill", "dask"],
)
def test_in_the_tasks_of_workers(folder: Path, options: tuple[str, ...], everywhere: bool) -> None:
    if options:
        pytest.importorskip("distributed")
    process = measuring(folder, *options)
    process.send(signal.SIGINT, everywhere=everywhere)
    assert process.ended() == (130, "tools.auto_mixed_precision: error: interrupted\n")
    assert process.left() == [] and not (folder / "out.onnx").exists()


@pytest.mark.heavy
@pytest.mark.parametrize(
    "options", [WORKERS[0], pytest.param(WORKERS[1], marks=pytest.mark.heavy)], ids=["processes", "dask"]
)
def test_workers_end_with_a_tool_that_is_killed(folder: Path, options: tuple[str, ...]) -> None:
    if options:
        pytest.importorskip("distributed")
    process = measuring(folder, *options)
    process.send(signal.SIGKILL, everywhere=False)
    assert process.ended() == (-signal.SIGKILL, "")


def test_an_ignored_signal_stays_ignored(folder: Path) -> None:
    """As nohup and the background jobs of a shell want it."""
    ignored = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    hook = ignored + at_an_import(30, signal.SIGTERM)
    assert ToolProcess(folder, "quantize", *RUNS["quantize"], hook=hook).ended() == (0, "")


TWICE = """
import threading
from tools.cli import interrupts
interrupts.take_signals("onnx-narrow quantize")
for _ in range(3):
    with interrupts.raised():
        pass
    interrupts.end(0)
print(threading.active_count())
"""


def test_one_thread_watches_all_work_of_a_process() -> None:
    done = subprocess.run([sys.executable, "-c", TWICE], capture_output=True, text=True, check=True)
    assert done.stdout == "2\n"


def test_a_signal_after_the_work_changes_nothing(folder: Path) -> None:
    hook = "import atexit, os, sys\nif '-m' in sys.orig_argv: atexit.register(os.kill, os.getpid(), 2)\n"
    process = ToolProcess(folder, "quantize", *RUNS["quantize"], hook=hook)
    assert process.ended() == (0, "") and (folder / "out.onnx").exists()
