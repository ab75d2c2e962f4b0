"""Mistakes on the command line, as people make them. Oracle: exit code and words of one line, by hand."""

from __future__ import annotations

import importlib
import shlex
from pathlib import Path

import numpy as np
import onnx
import pytest
from PIL import Image

import onnx_narrow
from tests.helpers import build

PAIR = "m.onnx q.onnx"
QUANTIZE = f"quantize {PAIR}"

MISTAKES: dict[str, tuple[int, str]] = {
    # words that do not exist
    f"{QUANTIZE} --config INT8 --data d": (1, "did you mean 'A8W8' or 'U8S8'"),
    f"{QUANTIZE} --config U8S9 --data d": (1, "did you mean 'U8S8'"),
    f"{QUANTIZE} --config a8w8x --data d": (1, "did you mean 'A8W8'"),
    f"{QUANTIZE} --confg A8W8 --data d": (2, "did you mean '--config'"),
    f"{QUANTIZE} -config A8W8 --data d": (2, "did you mean '--config'"),
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
    f"{QUANTIZE} --data d": (2, "--config NAME|FILE, --target NAME, or --set activation=FORMAT"),
    "quantize m.onnx": (2, "are required: --output, one of --config"),
    "auto_mixed_precision m.onnx q.onnx --data d": (2, "one of --config NAME|FILE, --target RUNTIME"),
    f"{QUANTIZE} --config A8W8": (1, "give --data DIR"),
    f"{QUANTIZE} --config A8W8 --limit 4": (2, "--limit requires --data"),
    f"{QUANTIZE} --config A8W8 --mean 3": (2, "--mean requires --data"),
    f"{QUANTIZE} --config W8 --min-sqnr 30": (2, "--min-sqnr requires --data"),
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
    f"{QUANTIZE} --config A8W8 --data p --preprocess imagenet --std 2": (2, "--std cannot be combined with"),
    f"{QUANTIZE} --config A8W8 --data d --min-sqnr 30 --top1 0.1": (2, "cannot be combined"),
    f"{QUANTIZE} --config A8W8 --data d --random-data 4": (2, "cannot be combined"),
    f"{QUANTIZE} --config A8W8 --data p": (1, "is not an image"),
    "quantize m.onnx m.onnx --config W8": (1, "m.onnx"),
    # what other tools take
    f"{QUANTIZE} --config A8W8 --data d --device cuda": (2, "did you mean '--provider'"),
    f"{QUANTIZE} --config A8W8 --data d --set batch_size=4": (1, "'batch_size' is unknown, legal are"),
    f"{QUANTIZE} --config A8W8 --data d --set finetune.batch_size=4": (1, "is unknown, legal are algorithm"),
    "finetune m.onnx m.onnx t.onnx --data d --batch_size 4": (2, "did you mean '--batch-size'"),
    "quantize m.onnx q.pt --config W8": (1, "'q.pt' ends in '.pt': an ONNX model is written to a file that"),
    "quantize m.onnx q --config W8": (1, "output 'q' has no ending: an ONNX model is written to a file that"),
    "report m.onnx d.onnx r.pdf --data d": (1, "'r.pdf' ends in '.pdf': an HTML page is written to a file"),
    f"{QUANTIZE} --config A8W8 --data m.onnx": (
        1,
        "'m.onnx' is a file: samples are a folder, or in one .npy",
    ),
    # what was made for one place and is in the other
    "report i.onnx m.onnx r.html --data d": (1, "'i.onnx' (--float) is quantized and 'm.onnx' (--quantized)"),
    "finetune i.onnx m.onnx t.onnx --data d": (
        1,
        "'i.onnx' (--float) is quantized and 'm.onnx' (--quantized)",
    ),
    # targets that are not met
    f"{QUANTIZE} --config A8W8 --data d --min-sqnr 500": (3, "500 dB"),
    f"auto_mixed_precision {PAIR} --config S16S8_MIXED_S8S8 --data d --sqnr-target 500": (3, "500 dB"),
    f"convert_fp32_to_bf16 {PAIR} --data d --min-sqnr 500": (3, "500 dB"),
    "quantize m.onnx d.onnx --config W8": (1, "--force"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a model, a file in the way, samples, a picture and nothing."""
    place = tmp_path_factory.mktemp("mistakes")
    build.save(build.dense(8), place / "m.onnx")
    onnx.save(build.dense(8), place / "d.onnx")
    onnx_narrow.quantize(place / "m.onnx", place / "i.onnx", config="W8", time=False)
    for name in ("d", "p", "empty"):
        (place / name).mkdir()
    for i in range(4):
        np.save(place / "d" / f"{i}.npy", np.full((1, 8), i, np.float32))
    Image.new("L", (2, 2)).save(place / "p" / "a.png")
    return place


def test_there_are_58() -> None:
    assert len(MISTAKES) == 58


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
