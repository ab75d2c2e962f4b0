"""Mistakes on the command line, as people make them. Oracle: exit code and words of one line, by hand."""

from __future__ import annotations

import importlib
import shlex
from pathlib import Path

import numpy as np
import onnx
import pytest
from PIL import Image

from tests.helpers import build

QUANTIZE, USAGE, FAILED = "quantize m.onnx q.onnx", 2, 1

MISTAKES: dict[str, tuple[int, str]] = {
    # words that do not exist
    f"{QUANTIZE} --config INT8 --data d": (1, "did you mean 'A8W8' or 'U8S8'"),
    f"{QUANTIZE} --config U8S9 --data d": (1, "did you mean 'U8S8'"),
    f"{QUANTIZE} --config a8w8x --data d": (1, "did you mean 'A8W8'"),
    f"{QUANTIZE} --confg A8W8 --data d": (2, "did you mean '--config'"),
    f"{QUANTIZE} --config A8W8 --datas d": (2, "did you mean '--data'"),
    f"{QUANTIZE} --target ort_cpu --data d": (2, "did you mean 'ort-cpu'"),
    f"{QUANTIZE} --target openvno --data d": (2, "did you mean 'openvino'"),
    f"{QUANTIZE} --config A8W8 --data d --calibrate-method Percentil": (2, "did you mean 'Percentile'"),
    f"{QUANTIZE} --config A8W8 --data d --set percentil=99": (1, "did you mean 'percentile'"),
    f"{QUANTIZE} --config A8W8 --data d --preprocess mobilent": (1, "did you mean 'mobilenet'"),
    f"{QUANTIZE} --config A8W8 --data d --exclude-op Cnv": (1, "Cnv"),
    f"{QUANTIZE} --config A8W8 --data d --exclude-node fc9": (1, "fc9"),
    f"{QUANTIZE} --config A8W8 --data d --storage zipped": (2, "--storage"),
    f"{QUANTIZE} --config A8W8 --data d --fallback int4 --min-sqnr 30": (2, "--fallback"),
    # what is missing
    "quantize m.onnx --config A8W8 --data d": (2, "--output"),
    "quantize --output q.onnx --config A8W8 --data d": (2, "--input"),
    f"{QUANTIZE} --data d": (2, "--config"),
    f"{QUANTIZE} --config A8W8": (1, "give --data DIR"),
    f"{QUANTIZE} --config A8W8 --limit 4": (2, "--limit goes with --data"),
    f"{QUANTIZE} --config A8W8 --mean 3": (2, "--mean goes with --data"),
    f"{QUANTIZE} --config W8 --min-sqnr 30": (2, "--min-sqnr goes with --data"),
    "quantize no.onnx q.onnx --config A8W8 --data d": (1, "no.onnx"),
    f"{QUANTIZE} --config A8W8 --data nowhere": (1, "nowhere"),
    f"{QUANTIZE} --config A8W8 --data empty": (1, "holds no .npz"),
    f"{QUANTIZE} --config no.toml --data d": (1, "no.toml"),
    "finetune m.onnx m.onnx t.onnx": (2, "--data"),
    "evaluate m.onnx": (2, "required"),
    "check m.onnx": (2, "--target"),
    # values
    f"{QUANTIZE} --config A8W8 --data d --limit 0": (2, "--limit"),
    f"{QUANTIZE} --config A8W8 --data d --limit many": (2, "--limit"),
    f"{QUANTIZE} --config A8W8 --data d --std 0": (2, "--std"),
    f"{QUANTIZE} --config A8W8 --data d --mean a,b": (2, "--mean"),
    f"{QUANTIZE} --config A8W8 --data d --threads -1": (2, "--threads"),
    f"{QUANTIZE} --config A8W8 --data d --min-sqnr high": (2, "--min-sqnr"),
    f"{QUANTIZE} --config A8W8 --data d --image-size 3y3": (2, "--image-size"),
    # what does not go together
    f"{QUANTIZE} --config A8W8 --data d --mean 127.5": (1, "holds no image"),
    f"{QUANTIZE} --config A8W8 --data p --preprocess imagenet --std 2": (2, "--std does not go with"),
    f"{QUANTIZE} --config A8W8 --data d --min-sqnr 30 --top1 0.1": (2, "do not go together"),
    f"{QUANTIZE} --config A8W8 --data d --random-data 4": (2, "do not go together"),
    f"{QUANTIZE} --config A8W8 --data p": (1, "is not an image"),
    "quantize m.onnx m.onnx --config W8": (1, "m.onnx"),
    "quantize m.onnx d.onnx --config W8": (1, "--force"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a model, a file in the way, samples, a picture and nothing."""
    place = tmp_path_factory.mktemp("mistakes")
    build.save(build.dense(8), place / "m.onnx")
    onnx.save(build.dense(8), place / "d.onnx")
    for name in ("d", "p", "empty"):
        (place / name).mkdir()
    for i in range(4):
        np.save(place / "d" / f"{i}.npy", np.full((1, 8), i, np.float32))
    Image.new("L", (2, 2)).save(place / "p" / "a.png")
    return place


def test_there_are_42() -> None:
    assert len(MISTAKES) == 42


@pytest.mark.parametrize("line", MISTAKES)
def test_mistakes_are_answered_in_a_line_that_names_the_option(
    line: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    tool, *words = shlex.split(line)
    try:
        code = importlib.import_module(f"tools.{tool}").main(words)
    except SystemExit as left:
        code = left.code
    errors = capsys.readouterr().err
    expected, said = MISTAKES[line]
    assert (code, errors.count("\n")) == (expected, 1), errors
    assert said in errors and errors.startswith(f"tools.{tool}: error: "), errors
    assert not (folder / "q.onnx").exists()
