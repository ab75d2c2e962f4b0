"""All forms of samples at the command line and in Python. Oracle: the model made of the same as a folder."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnx_narrow
from tests.helpers import build, tunable
from tools import infer, quantize

NETWORK = tunable.conv_net()
INPUT = NETWORK.graph.input[0].name
ARRAYS = np.concatenate([sample[INPUT] for sample in tunable.samples(NETWORK, 8)])
PIXELS = np.random.default_rng(0).integers(0, 9, ARRAYS.shape).astype(np.uint8)
WORDS = ("--config", "U8S8", "--fast", "--no-time")


def _files(folder: Path, suffix: str, arrays: np.ndarray, *, batched: bool) -> Path:
    folder.mkdir()
    for i, array in enumerate(arrays):
        one = array[None] if batched else array
        if suffix == ".npz":
            np.savez(folder / f"{i}.npz", **{INPUT: one})
        else:
            np.save(folder / f"{i}.npy", one)
    return folder


def _npy(folder: Path, arrays: np.ndarray) -> Path:
    np.save(folder / "all.npy", arrays)
    return folder / "all.npy"


def _npz(folder: Path, arrays: np.ndarray) -> Path:
    np.savez_compressed(folder / "all.npz", **{INPUT: arrays})
    return folder / "all.npz"


FORMS: dict[str, Callable[[Path, np.ndarray], Any]] = {
    "files of batches": lambda folder, arrays: _files(folder / "d", ".npy", arrays, batched=True),
    "files of samples": lambda folder, arrays: _files(folder / "d", ".npy", arrays, batched=False),
    "archives of batches": lambda folder, arrays: _files(folder / "d", ".npz", arrays, batched=True),
    "archives of samples": lambda folder, arrays: _files(folder / "d", ".npz", arrays, batched=False),
    "one file": _npy,
    "one archive": _npz,
    "one array": lambda folder, arrays: arrays,
    "arrays by name": lambda folder, arrays: {INPUT: arrays},
    "a list": lambda folder, arrays: list(arrays),
    "a list of feeds": lambda folder, arrays: [{INPUT: one[None]} for one in arrays],
}


def _made(folder: Path, data: Any) -> tuple[onnx.GraphProto, list[str]]:
    """Return the model of Python, and of the command where the samples are files, with what it told."""
    result = onnx_narrow.quantize(NETWORK, data=data, config="U8S8", fast=True, time=False)
    if isinstance(data, Path):
        source, output = build.save(NETWORK, folder / "m.onnx"), folder / "q.onnx"
        assert quantize.main([str(source), str(output), "--data", str(data), *WORDS]) == 0
        assert onnx.load(output).graph == result.model.graph
    return result.model.graph, [line for line in result.notes if line.startswith("Samples: ")]


@cache
def _wanted(name: str) -> onnx.GraphProto:
    arrays = {"float32": ARRAYS, "uint8": PIXELS}[name].astype(np.float32)
    data = [{INPUT: one[None]} for one in arrays]
    return onnx_narrow.quantize(NETWORK, data=data, config="U8S8", fast=True, time=False).model.graph


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("arrays", [ARRAYS, PIXELS], ids=["float32", "uint8"])
def test_the_same_samples_make_the_same_model(form: str, arrays: np.ndarray, tmp_path: Path) -> None:
    graph, told = _made(tmp_path, FORMS[form](tmp_path, arrays))
    assert graph == _wanted(str(arrays.dtype))
    assert any("cast from uint8 to float32" in line for line in told) == (arrays is PIXELS)
    assert any(line.startswith("Samples: 8 along the first axis of ") for line in told) == (
        form in ("one file", "one archive", "one array", "arrays by name")
    )


def test_the_line_names_file_type_and_shape(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, data = build.save(NETWORK, tmp_path / "m.onnx"), _npz(tmp_path, ARRAYS)
    words = [str(source), str(tmp_path / "results"), "--data", str(data)]
    assert infer.main(words) == 0
    shape = list(ARRAYS.shape[1:])
    line = f"Samples: 8 along the first axis of '{data}': '{INPUT}' float32 {shape}\n"
    assert line in capsys.readouterr().out
    assert len(list((tmp_path / "results").glob("*.npy"))) == 8


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda path: path.with_suffix(".txt").write_text("1"), "is a file: samples are a folder, or in one"),
        (lambda path: np.save(path, np.float32(1)), "array has no axis of samples"),
        (
            lambda path: np.savez(path, **{INPUT: ARRAYS, "y": ARRAYS[:3]}),
            f"arrays of several lengths, 8 in '{INPUT}', 3 in 'y': one sample lies in a folder",
        ),
        (lambda path: path.with_suffix(".npy").write_bytes(b"no"), "cannot be read"),
    ],
)
def test_other_files_are_refused_in_a_line(
    write: Callable[[Path], object], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").mkdir()
    write(tmp_path / "data" / "a")
    (path,) = (tmp_path / "data").iterdir()
    source, output = build.save(NETWORK, tmp_path / "m.onnx"), tmp_path / "q.onnx"
    assert quantize.main([str(source), str(output), "--data", str(path), *WORDS]) == 1
    said = capsys.readouterr().err
    assert words in said and said.count("\n") == 1 and not output.exists()


def test_numbers_that_change_their_value_are_refused_in_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = _files(tmp_path / "d", ".npz", np.full(ARRAYS.shape, 1e300), batched=True)
    source = build.save(NETWORK, tmp_path / "m.onnx")
    assert quantize.main([str(source), str(tmp_path / "q.onnx"), "--data", str(folder), *WORDS]) == 1
    assert "type float64 instead of float32" in capsys.readouterr().err
