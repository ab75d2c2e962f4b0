"""Oracle: the file of a run that was not stopped, byte for byte."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers import build, tunable
from tools import finetune, quantize
from transforms.finetune import finetune_weights, fit_weights

ROUNDED, TUNED = (fit_weights, "_rounded"), (finetune_weights, "tune_layer")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = tunable.conv_net()
    build.save(model, tmp_path / "float.onnx")
    for name, seed in (("data", 1), ("others", 2)):
        (tmp_path / name).mkdir()
        for i, feed in enumerate(tunable.samples(model, 8, seed)):
            np.savez(tmp_path / name / f"{i}.npz", **feed)  # type: ignore[arg-type]
    return tmp_path


def _fit(folder: Path, output: str, *options: str, data: str = "data") -> int:
    given = f"--input float.onnx --output {output} --config W4 --no-time --data {data}"
    return quantize.main([*_within(folder, given), *options])


def _tune(folder: Path, output: str, *options: str, data: str = "data") -> int:
    if not (folder / "int8.onnx").exists():
        given = "--input float.onnx --output int8.onnx --config A8W8 --no-time --fast --data data"
        assert quantize.main(_within(folder, given)) == 0
    given = f"--float float.onnx --quantized int8.onnx --output {output} --no-time --data {data}"
    return finetune.main([*_within(folder, given), *options])


def _within(folder: Path, words: str) -> list[str]:
    names = ("float.onnx", "int8.onnx", "data", "others", "q.onnx", "whole.onnx")
    return [str(folder / word) if word in names else word for word in words.split()]


class _Stopped:
    """Ends the process at a call, as Ctrl-C does."""

    def __init__(self, function: Callable[..., object], last: int) -> None:
        self._function, self._last, self.count = function, last, 0

    def __call__(self, *arguments: object) -> object:
        if self.count == self._last:
            raise KeyboardInterrupt
        self.count += 1
        return self._function(*arguments)


@pytest.mark.parametrize(
    ("run", "place", "other"),
    [
        (_fit, ROUNDED, {"data": "others"}),
        (_fit, ROUNDED, {"options": ("--set", "block_size=16")}),
        (_tune, TUNED, {"options": ("--algorithm", "adaquant")}),
    ],
)
def test_a_stopped_run_goes_on(
    run: Callable[..., int],
    place: tuple[object, str],
    other: dict[str, Any],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Layers lie in the folder of the output; other samples or options leave them alone, with a line."""
    resume = "--resume", str(folder)
    every = _Stopped(getattr(*place), -1)
    monkeypatch.setattr(*place, every)
    assert run(folder, "whole.onnx") == 0
    with monkeypatch.context() as patch:
        patch.setattr(*place, _Stopped(getattr(*place), 1))
        assert run(folder, "q.onnx", *resume) == 130
    assert not (folder / "q.onnx").exists()
    capsys.readouterr()
    assert run(folder, "q.onnx", *resume, *other.get("options", ()), data=other.get("data", "data")) == 0
    warning = f"'{folder}' holds 1 layer of another model, scheme or other samples: not used"
    assert warning in capsys.readouterr().err
    before = every.count
    assert run(folder, "q.onnx", *resume, "--force") == 0
    assert "Resumed: 1 layer" in capsys.readouterr().out
    assert (folder / "q.onnx").read_bytes() == (folder / "whole.onnx").read_bytes()
    assert every.count - before < before / 2
    assert not list(folder.glob("layers-*"))


@pytest.mark.parametrize("given", ["--config W4", "--config W4 --fast --data data"])
def test_there_is_nothing_to_resume(given: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = _within(folder, f"--input float.onnx --output q.onnx {given}")
    with pytest.raises(SystemExit, match="2"):
        quantize.main([*words, "--resume", str(folder)])
    assert "--resume requires" in capsys.readouterr().err
    assert not (folder / "q.onnx").exists()


def test_a_file_is_no_folder_for_layers(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _fit(folder, "q.onnx", "--resume", str(folder / "float.onnx")) == 1
    assert capsys.readouterr().err.count("\n") == 1
