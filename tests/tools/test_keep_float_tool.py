"""``--data`` and ``--min-sqnr`` of the converters. Oracles: outputs of both files, printed names, words."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest

from ops.metrics import Sums
from tests.helpers import build, small_networks
from tests.helpers.conversion import FORMATS
from tools import convert_fp16_to_bf16, convert_fp32_to_bf16
from transforms.run.run_model import open_model

DIGITS = Path(__file__).parents[1] / "examples" / "digits.onnx"
IMAGES = Path(__file__).parents[1] / "examples" / "digits_test_images.npy"


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    """A folder with eight images of digits."""
    folder = tmp_path / "digits"
    folder.mkdir()
    for i, image in enumerate(np.load(IMAGES)[:8]):
        np.save(folder / f"{i}.npy", image[None])
    return folder


def convert(source: Path, target: Path, *options: object, tool: object = convert_fp32_to_bf16) -> int:
    arguments = ["--input", source, "--output", target, "--force", *options]
    return int(tool.main(list(map(str, arguments))))  # type: ignore[attr-defined]


def kept(printed: str) -> list[str]:
    """Return the names in the line that gives them."""
    (names,) = re.findall(r"^Kept in float32 for [\d.]+ dB: (.*)$", printed, re.MULTILINE)
    return str(names).split(", ")


def held_out(folder: Path) -> list[Path]:
    """Return the samples that layers are not chosen on: every second of eight; of fewer than four, all."""
    paths = sorted(folder.iterdir())
    assert len(paths) in (3, 8)
    return paths[1::2] if len(paths) == 8 else paths


def sqnr(first: Path, second: Path, paths: list[Path]) -> float:
    models, sums = (open_model(first), open_model(second)), Sums()
    for path in paths:
        feed = {models[0].inputs[0].name: np.load(path)}
        a, b = (model.run(feed) for model in models)
        for name in a:
            sums.add(a[name], b[name])
    return sums.sqnr()


@pytest.mark.parametrize("form", FORMATS)
def test_the_file_reaches_the_target_and_its_figure_is_printed(
    form: str, digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "out.onnx"
    assert convert(DIGITS, target, "--format", form, "--data", digits, "--min-sqnr", 60) == 0
    printed = capsys.readouterr().out
    (before, after, count), *others = re.findall(
        r"^SQNR: ([\d.]+) -> ([\d.]+) \+- [\d.]+ dB on (\d+) held-out samples? "
        r"with \d+ of \d+ layers kept in float32$",
        printed,
        re.MULTILINE,
    )
    assert not others
    assert kept(printed) and int(count) == len(held_out(digits))
    assert float(before) < 60 <= float(after)
    assert sqnr(DIGITS, target, held_out(digits)) == pytest.approx(float(after), abs=0.01)  # printed to 0.005


def test_names_given_back_make_the_same_model(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = tmp_path / "first.onnx", tmp_path / "second.onnx"
    common = ("--exclude-op", "Flatten")
    assert convert(DIGITS, first, "--data", digits, "--min-sqnr", 55, *common) == 0
    names = kept(capsys.readouterr().out)
    assert convert(DIGITS, second, *common, *(f"--exclude-node={name}" for name in names)) == 0
    models = onnx.load(first), onnx.load(second)
    assert names
    assert models[0].graph == models[1].graph
    recorded = [
        json.loads({entry.key: entry.value for entry in model.metadata_props}["onnx_narrow.options"])
        for model in models
    ]
    assert recorded[0] == recorded[1] | {"min_sqnr": 55}


def test_nothing_is_kept_where_the_target_holds(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, held = tmp_path / "plain.onnx", tmp_path / "held.onnx"
    assert convert(DIGITS, plain) == 0
    assert convert(DIGITS, held, "--data", digits, "--min-sqnr", 40) == 0
    assert re.search(
        r"^Kept in float32 for 40 dB: nothing, the SQNR is [\d.]+ \+- [\d.]+ dB on [\w -]+$",
        capsys.readouterr().out,
        re.MULTILINE,
    )
    assert onnx.load(plain).graph == onnx.load(held).graph


def test_float16_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = build.save(small_networks.residual(dtype=np.float16), tmp_path / "in.onnx")
    folder = tmp_path / "images"
    folder.mkdir()
    for i, feed in enumerate(small_networks.images(3, np.float16)):
        np.save(folder / f"{i}.npy", feed["x"])
    target = tmp_path / "out.onnx"
    options = ("--data", folder, "--limit", 3, "--min-sqnr", 60)
    assert convert(source, target, *options, tool=convert_fp16_to_bf16) == 0
    assert kept(capsys.readouterr().out)
    assert sqnr(source, target, held_out(folder)) >= 60


@pytest.mark.parametrize(
    ("least", "words"),
    (
        (
            500,
            r"no choice of nodes kept in float32 meets the target of at least 500 dB: "
            r"sqnr [\d.]+ dB with none kept, sqnr [\d.]+ dB with all \(in '.*'\)",
        ),
        (
            120,
            r"only with every layer in float32 the target of at least 120 dB is met: "
            r"sqnr [\d.]+ dB with none \(in '.*'\)",
        ),
    ),
)
def test_where_nothing_is_left_to_convert_nothing_is_written(
    least: float, words: str, digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fused normalisation computes like the separate nodes to some 140 dB."""
    source = build.save(small_networks.normalisation(), tmp_path / "in.onnx")
    rows = tmp_path / "rows"
    rows.mkdir()
    np.save(rows / "0.npy", np.random.default_rng(1).normal(20, 1, (4, 8)).astype(np.float32))
    assert convert(source, tmp_path / "out.onnx", "--data", rows, "--min-sqnr", least) == 3
    errors = capsys.readouterr().err
    assert re.fullmatch(rf"tools.convert_fp32_to_bf16: error: {words}\n", errors)
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    (
        (["--data", "digits"], "--data requires --min-sqnr"),
        (["--min-sqnr", "30"], "--min-sqnr requires --data"),
        (["--limit", "4"], "--limit requires --data"),
        (["--image-size", "8"], "--image-size requires --data"),
        (["--mean", "127.5"], "--mean requires --data"),
        (["--layout", "NHWC"], "--layout requires --data"),
        (["--data", "digits", "--min-sqnr", "nan"], "argument --min-sqnr: nan is not a number"),
        (["--data", "digits", "--min-sqnr", "inf"], "argument --min-sqnr: inf is not a number"),
        (["--data", "digits", "--min-sqnr", "much"], "argument --min-sqnr: much is not a number"),
    ),
)
def test_options_that_do_not_go_together(
    options: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        convert(DIGITS, tmp_path / "out.onnx", *options)
    assert left.value.code == 2
    errors = capsys.readouterr().err
    assert words in errors and errors.count("\n") == 1


@pytest.mark.parametrize(
    ("folder", "words"),
    (
        ("missing", "does not exist"),
        ("empty", "holds no .npz, .npy, .png or .jpg file"),
        ("wrong", "input 'images': shape [1, 3] instead of [?, 1, 8, 8]"),
    ),
)
def test_data_that_do_not_fit(
    folder: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("empty", "wrong"):
        (tmp_path / name).mkdir()
    np.save(tmp_path / "wrong" / "0.npy", np.ones((1, 3), np.float32))
    options = ("--data", tmp_path / folder, "--min-sqnr", 60)
    assert convert(DIGITS, tmp_path / "out.onnx", *options) == 1
    errors = capsys.readouterr().err
    assert words in errors and errors.count("\n") == 1
    assert not (tmp_path / "out.onnx").exists()
