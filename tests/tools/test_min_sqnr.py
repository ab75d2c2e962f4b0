"""The fewest finer layers for a target. Oracle: the written file, run beside the float model."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from ops.metrics import Sums
from tests.helpers import origins, real_models
from tools import quantize, report

FEEDS = origins.feeds(16)


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """The options that name a model, its samples and an output."""
    return origins.options(tmp_path, FEEDS)


LOSSY = ["--config", "U8S8", "--no-per-channel", "--set", "weight_method=MinMax"]


def sqnr(first: str, second: str, feeds: list[dict[str, np.ndarray]]) -> float:
    sessions, sums = [real_models.session(Path(path), optimized=True) for path in (first, second)], Sums()
    for feed in feeds:
        for a, b in zip(*(session.run(None, feed) for session in sessions), strict=True):
            sums.add(a, b)
    return sums.sqnr()


@pytest.mark.parametrize(("fallback", "target", "layers"), [("float32", 24, 6), ("int16", 10, 1)])
def test_the_summary_names_the_layers_and_their_price(
    fallback: str, target: int, layers: int, files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert quantize.main([*files, *LOSSY, "--min-sqnr", str(target), "--fallback", fallback]) == 0
    said = capsys.readouterr().out
    ((before, after),) = re.findall(
        rf"^Target of at least {target} dB: sqnr (\S+) dB -> sqnr (\S+) \+- \S+ dB on 16 samples held out in"
        " 4 folds$",
        said,
        re.MULTILINE,
    )
    assert re.search(rf"^In {fallback}: {layers} of 8 layers: .*'gemm2'.*\nPrice: \+", said, re.MULTILINE)
    assert float(before) < target <= float(after)
    assert sqnr(files[1], files[3], origins.feeds(144)[16:]) > target - 0.5, (
        "samples that nothing was made by"
    )


def test_a_target_that_cannot_be_met_writes_nothing(
    files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert quantize.main([*files, *LOSSY, "--min-sqnr", "200"]) == 3
    said = capsys.readouterr().err
    assert "in float32" in said and "at least 200 dB" in said and said.count("\n") == 1
    assert not Path(files[3]).exists()


def test_rows_that_keep_their_largest_number_are_a_target(
    files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert quantize.main([*files, *LOSSY, "--top1", "0"]) == 0
    assert "Target of at most 0: lost_top1" in capsys.readouterr().out
    sessions = [real_models.session(Path(path), optimized=True) for path in (files[1], files[3])]
    for feed in FEEDS[3::4]:
        a, b = (session.run(None, feed)[0].argmax(-1) for session in sessions)
        assert (a == b).all()


def test_a_scheme_that_is_tuned_is_refused(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert quantize.main([*files, "--config", "U8S8_ADAQUANT", "--min-sqnr", "20"]) == 1
    assert "--min-sqnr cannot be combined with the table [finetune]" in capsys.readouterr().err


@pytest.mark.heavy
def test_a_report_begins_with_the_layer_that_loses(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert quantize.main([*files, *LOSSY, "--fast"]) == 0
    capsys.readouterr()
    page, table, data = (tmp_path / name for name in ("r.html", "r.csv", "r.json"))
    given = ["--float", files[1], "--quantized", files[3], "--data", files[5], "--output", str(page)]
    assert report.main([*given, "--csv", str(table), "--json", str(data), "--min-sqnr", "99"]) == 0
    said = capsys.readouterr().out
    assert "Loss begins at 'gemm2' (Gemm)" in said and "--per-channel" in said
    text = page.read_text()
    assert text.index("Where the loss begins") < text.index("<h2>Models</h2>")
    assert text.count('<div class="bad">') >= 2 and 'title="gemm2"' in text
    assert len(table.read_text().splitlines()) == 9 and '"layer": "gemm2"' in data.read_text()


def test_a_command_of_the_report_reaches_what_it_says(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert quantize.main([*files, "--config", "U8S8", "--fast"]) == 0
    before = sqnr(files[1], files[3], FEEDS)
    given = ["--float", files[1], "--quantized", files[3], "--data", files[5]]
    assert report.main([*given, "--output", str(tmp_path / "r.html")]) == 0
    (command,) = re.findall(r"Keep in float.*: python -m tools.quantize (.*)", capsys.readouterr().out)
    assert quantize.main([*command.split(), "--fast"]) == 0
    assert sqnr(files[1], str(tmp_path / "q_better.onnx"), FEEDS) > before + 2
