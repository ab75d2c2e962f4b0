"""The progress bar. Oracle: tqdm's own count."""

from __future__ import annotations

import fcntl
import importlib
import io
import os
import re
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnx_narrow.api.bars import Bars
from tests.helpers.spread import spread
from tools import quantize


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _drawn(bars: Bars) -> Any:
    """Return tqdm's bar of the phase."""
    assert bars._bar is not None
    return bars._bar._bar


def test_a_terminal_sees_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with Bars() as bars:
        show = bars.phase("tuning", "layer")
        show(1, 3, "conv 30 dB")
        show(3, 3, "dense 20 dB")
        first = _drawn(bars)
        assert first.n == 3
        show(1, 3, "conv 31 dB")
        assert _drawn(bars) is not first and _drawn(bars).n == 1
    assert "tuning" in terminal.getvalue()


def test_a_phase_without_pieces_shows_its_note(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with Bars() as bars:
        bars.phase("quantizing")(0, None, "about 20 s in all")
        _drawn(bars).refresh()
    assert re.search(r"quantizing \[00:00, about 20 s in all\]", terminal.getvalue())


def test_a_file_sees_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with Bars() as bars:
        bars.phase("calibrating", "sample")(1, None)
    assert capsys.readouterr().err == ""


def test_a_phase_has_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with Bars() as bars:
        bars.expect("loading", "running", "writing")
        bars.phase("running", "sample")(2, 2)
        assert (_drawn(bars).n, _drawn(bars).total) == (2, 2)
        bars.phase("writing")
    assert "2/3 running" in terminal.getvalue() and "3/3 writing" in terminal.getvalue()


def test_the_time_goes_on_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr("onnx_narrow.api.bars._TICK", 0.01)
    with Bars() as bars:
        bars.phase("loading")
        before = terminal.getvalue()
        deadline = time.monotonic() + 10
        while terminal.getvalue() == before and time.monotonic() < deadline:
            time.sleep(0.01)
        assert terminal.getvalue() != before
    after = terminal.getvalue()
    time.sleep(0.05)
    assert terminal.getvalue() == after


def test_a_phase_that_fails_has_no_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "onnx_narrow")
    with pytest.raises(ValueError), Bars() as bars:
        bars.phase("loading")
        raise ValueError
    assert not caplog.messages
    with Bars() as bars:
        bars.phase("loading")
    assert [line.partition(":")[0] for line in caplog.messages] == ["loading"]


EXAMPLES = Path(__file__).parents[1] / "examples"
PHASES = {
    "auto_mixed_precision": "loading, preparing, calibrating, measuring layers, trying models, test run, "
    "writing",
    "convert_fp32_to_bf16": "loading, measuring, converting, test run, writing",
    "evaluate": "comparing",
    "finetune": "loading, tuning, test run, writing",
    "formats": "measuring",
    "infer": "loading, running",
    "quantize": "loading, preparing, calibrating, quantizing, reloading, tuning, test run, writing",
    "report": "loading, running models, matching tensors, comparing layers, counting values, timing, "
    "finding the origins",
}
OPTIONS = {
    "auto_mixed_precision": "--input {m} --output o.onnx --config A16W8 --target int8 --data d",
    "convert_fp32_to_bf16": "--input {m} --output o.onnx --data d --min-sqnr 30",
    "evaluate": "--baseline_results_folder d --quantized_results_folder d",
    "finetune": "--float {m} --quantized q.onnx --output o.onnx --data d --algorithm gptq",
    "formats": "--input {m}",
    "infer": "--input {m} --output o --data d",
    "quantize": "--input {m} --output o.onnx --config A8W8 --set finetune.algorithm=gptq --data d",
    "report": "--float {m} --quantized q.onnx --output o.html --data d",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three samples of the example, and the example in A8W8."""
    folder = tmp_path_factory.mktemp("progress")
    (folder / "d").mkdir()
    for i, image in enumerate(np.load(EXAMPLES / "digits_test_images.npy")[:3]):
        np.save(folder / "d" / f"{i}.npy", image[None])
    paths = ["--input", str(EXAMPLES / "digits.onnx"), "--output", str(folder / "q.onnx")]
    assert quantize.main([*paths, "--config", "A8W8", "--data", str(folder / "d")]) == 0
    return folder


@contextmanager
def _terminal() -> Iterator[Callable[[], str]]:
    """Let stderr be a terminal; yield what returns what was shown there."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, 100, 0, 0))
    shown: list[bytes] = []

    def _read() -> None:
        with suppress(OSError):  # the other end is closed
            while data := os.read(ours, 1 << 16):
                shown.append(data)

    reader = threading.Thread(target=_read)
    reader.start()

    def _text() -> str:
        terminal.close()
        reader.join(10)
        return b"".join(shown).decode()

    with suppress(ValueError), os.fdopen(theirs, "w") as terminal, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", terminal)
        yield _text
    os.close(ours)


def _run(tool: str, *more: str) -> int:
    words = OPTIONS[tool].format(m=EXAMPLES / "digits.onnx").split()
    force = [] if tool in ("evaluate", "formats") else ["--force"]
    return int(importlib.import_module(f"tools.{tool}").main([*words, *force, *more]))


def _without_times(text: str) -> str:
    """Return text without what differs from run to run: times, their quartiles and ratios, memory, sizes."""
    text = re.sub(r"^Slower: .*\n", "", text, flags=re.MULTILINE)
    return re.sub(r"\(?\d+\.\d+( to \d+\.\d+\))?( (s|ms|times|MB))?\b|\(\d+ kB\)", "T", text)


@pytest.mark.parametrize("tool", spread(PHASES, of=2))
def test_a_tool_shows_its_phases_on_a_terminal_and_logs_them_elsewhere(
    tool: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Oracle: the table above, and what is printed without a terminal.

    Tuning logs a line for each of the three layers, too: how much of its error new weights cannot mend.
    """
    monkeypatch.chdir(folder)
    caplog.set_level("INFO", "onnx_narrow")
    assert _run(tool) == 0
    printed, errors = capsys.readouterr()
    assert errors == "" and printed
    lines = [one.getMessage() for one in caplog.records if one.name == "onnx_narrow"]
    layers = [
        line for line in lines if re.fullmatch(r"\w+: \d+% of its error comes from its inputs: .*", line)
    ]
    assert len(layers) == (3 if tool == "finetune" else 0)
    phases = [line for line in lines if line not in layers]
    assert [line.partition(":")[0] for line in phases] == PHASES[tool].split(", ")
    assert all(re.fullmatch(r"[\w ]+: (\d+ \w+, )?\d+\.\d s", line) for line in phases)
    with _terminal() as text:
        assert _run(tool) == 0
        shown = text()
    assert _without_times(capsys.readouterr().out) == _without_times(printed)
    positions = [shown.index(phase) for phase in PHASES[tool].split(", ")]
    assert positions == sorted(positions)
    assert re.search(r"\r +\r$", shown), "the last bar is gone"


def test_a_process_on_a_terminal(folder: Path) -> None:
    """Lines of the log and the bar do not mix; standard output is as ever."""
    words = OPTIONS["quantize"].format(m=EXAMPLES / "digits.onnx").split()
    line = [sys.executable, "-m", "tools.quantize", *words, "--force", "--verbose"]
    line += ["--data", str(folder / "d"), "--output", str(folder / "o.onnx")]
    with _terminal() as text:
        done = subprocess.run(
            line, cwd=EXAMPLES.parents[1], stdout=subprocess.PIPE, stderr=sys.stderr, text=True
        )
        shown = text()
    assert done.returncode == 0 and "Size: " in done.stdout and "\r" not in done.stdout
    assert re.search(r"(^|[\r\n])onnx_narrow: calibrating: 3 samples, \d+\.\d s\r\n", shown)


def test_a_long_run_without_a_terminal_says_each_phase_that_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bars = Bars()
    bars.phase("loading")
    bars.phase("running", "sample")(2, 2)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("onnx_narrow.api.bars._LONG", 0.0)
    with bars:
        bars.phase("writing")
    first, second = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"running: 2 samples, \d+\.\d s", first)
    assert re.fullmatch(r"writing: \d+\.\d s", second)


def test_short_phases_of_a_long_run_are_not_silent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The time from one line to the next is that of the run, in however many phases."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    bars = Bars()
    now[0] = 29.5
    with bars:
        bars.phase("running", "sample")(3, 9)
        now[0] = 31.0
        deadline = time.monotonic() + 10
        said = ""
        while not said and time.monotonic() < deadline:
            time.sleep(0.01)
            said = capsys.readouterr().err
    assert said == "running: 3 of 9 samples, 2 s\n"
