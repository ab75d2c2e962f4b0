"""Tuning by several workers from the command line. Oracle: the file of one process, byte for byte."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.helpers import build, tunable
from tests.helpers.tool_process import ROOT
from tools import finetune, quantize

MODEL = tunable.conv_net()
KILLED = """
import os, sys
from tools import finetune
from tools.cli.command_line import keep_products_on_one_thread
keep_products_on_one_thread()
from tools.cli.progress import Progress
from transforms.finetune import checkpoint
def show(self, done, total, note):
    if done == {after}:
        os.kill(os.getpid(), 9)
if __name__ == "__main__":
    checkpoint._EVERY = -1.0
    Progress.show = show
    finetune.main(sys.argv[1:])
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with float.onnx, quantized.onnx, what it is tuned to, and samples in data."""
    found = tmp_path_factory.mktemp("tuning")
    build.save(MODEL, found / "float.onnx")
    (found / "data").mkdir()
    for i, feed in enumerate(tunable.samples(MODEL, 20)):
        np.savez(found / "data" / f"{i:02}.npz", **feed)  # type: ignore[arg-type]
    given = ["--input", "float.onnx", "--output", "quantized.onnx", "--config", "MX6"]
    assert quantize.main([str(found / one) if one.endswith("onnx") else one for one in given]) == 0
    assert finetune.main(_given(found, found / "whole.onnx")) == 0
    return found


def _given(folder: Path, output: Path, *more: object) -> list[str]:
    names = {"--float": folder / "float.onnx", "--quantized": folder / "quantized.onnx"}
    names |= {"--output": output, "--data": folder / "data"}
    return [str(one) for pair in names.items() for one in pair] + [str(one) for one in more]


def _content(path: Path) -> bytes:
    return path.read_bytes()


def test_the_file_is_the_same_for_any_number_of_workers(folder: Path, tmp_path: Path) -> None:
    for number, options in enumerate(
        (["--jobs", 1], ["--jobs", 2], ["--jobs", 5, "--memory-limit", "0.001M"])
    ):
        assert finetune.main(_given(folder, tmp_path / f"{number}.onnx", *options)) == 0
        assert _content(tmp_path / f"{number}.onnx") == _content(folder / "whole.onnx")


def test_a_cluster_makes_the_same_file(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    out = tmp_path / "t.onnx"
    assert finetune.main(_given(folder, out, "--dask", "local", "--jobs", 2, "--resume", tmp_path / "r")) == 0
    assert _content(out) == _content(folder / "whole.onnx")


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_run_that_is_killed_is_resumed_to_the_same_file(folder: Path, tmp_path: Path, jobs: int) -> None:
    """By any number of workers; layers that are tuned are not tuned again.

    Models with other samples held out come after the first.
    """
    from transforms.finetune import finetune_weights

    out, kept = tmp_path / "t.onnx", tmp_path / "kept"
    script = tmp_path / "killed.py"
    script.write_text(KILLED.format(after=2))
    given = _given(folder, out, "--resume", kept)
    done = subprocess.run(
        [sys.executable, str(script), *given, "--jobs", str(3 - jobs)],
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        check=False,
    )
    assert done.returncode == -9 and not out.exists()
    assert [path.name for path in kept.glob("*/layers.npz")] == ["layers.npz"]
    tuned: list[int] = []
    tune = finetune_weights._LayerwiseTuner._tune
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            finetune_weights._LayerwiseTuner,
            "_tune",
            lambda self, number, memory: tuned.append(number) or tune(self, number, memory),
        )
        assert finetune.main([*given, "--jobs", str(jobs)]) == 0
        assert tuned[:2] == [2, 3]
        resumed = len(tuned)
        assert _content(out) == _content(folder / "whole.onnx")
        assert not list(kept.glob("*/steps-*"))
        assert finetune.main([*given, "--force"]) == 0  # all of it is there
    assert len(tuned) == resumed and _content(out) == _content(folder / "whole.onnx")


def test_results_of_other_options_are_others(folder: Path, tmp_path: Path) -> None:
    for algorithm in ("gptq", "coordinate_descent"):
        given = _given(folder, tmp_path / f"{algorithm}.onnx", "--resume", tmp_path / "r")
        assert finetune.main([*given, "--algorithm", algorithm]) == 0
    assert len(list((tmp_path / "r").iterdir())) == 2


def test_a_scheduler_that_is_not_there(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr("tools.cli.dask_executor._PATIENCE", 1.0)
    out = tmp_path / "t.onnx"
    options = "--dask", "tcp://127.0.0.1:9", "--resume", tmp_path / "r"
    assert finetune.main(_given(folder, out, *options)) == 1
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("tools.finetune: error: no Dask scheduler answers at 'tcp://127.0.0.1:9': ")
    assert not out.exists() and not list((tmp_path / "r").glob("*/steps-*"))


@pytest.mark.parametrize("config", ["A8W8_ADAQUANT", "MX6_ADAQUANT"])
def test_workers_tune_what_is_quantized(
    folder: Path, tmp_path: Path, config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranges, if there are any, and tuning have a folder each, and are found there by another run."""
    from transforms.finetune import collect_gram

    asked: list[str] = []
    visit = collect_gram.PartReader
    monkeypatch.setattr(collect_gram, "PartReader", lambda *given: asked.append("workers") or visit(*given))
    kept = tmp_path / "kept"
    made = []
    for options in ([], ["--jobs", "2"], ["--jobs", "2", "--resume", str(kept)], ["--resume", str(kept)]):
        given = ["--input", folder / "float.onnx", "--output", tmp_path / "q.onnx", "--data", folder / "data"]
        more = ["--config", config, "--set", "finetune.num_iterations=5", "--threads", "2"]
        more += ["--fast", "--force"]  # settings by outputs are not what workers do
        asked.append("run")
        assert quantize.main([*map(str, given), *more, *options]) == 0
        made.append(_content(tmp_path / "q.onnx"))
    assert len(set(made)) == 1
    runs = "".join(one[0] for one in asked).split("r")[1:]
    assert not runs[0] and runs[1] == runs[2] and runs[1] and not runs[3]
    found = sorted({path.name.partition("-")[0] for path in kept.iterdir()})
    assert found == (["calibration", "tuning"] if config.startswith("A8") else ["tuning"])
