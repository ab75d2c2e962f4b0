"""Draw the pictures of the documents from the example, with the tools themselves.

``python -m tests.examples.pictures [FOLDER]`` writes them, into ``docs/pictures`` unless another is named.
Needs matplotlib (extra ``plot``).
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import matplotlib
import onnx

from onnx_narrow.charts.report_style import STYLE
from tests.examples import gain_drawing, write_samples
from tests.examples.chain_drawing import INK, SOFT, card, drawing

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "pictures"
MODEL = Path(__file__).parent / "digits.onnx"
_COLORS = dict(re.findall(r"--(\w+): (#\w+)", STYLE.partition("@media")[0]))


def main() -> None:
    """Draw all pictures."""
    folder = Path(*sys.argv[1:2] or [FOLDER]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["SOURCE_DATE_EPOCH"] = "0"  # the same bytes again
    matplotlib.rcParams["svg.hashsalt"] = "digits"
    matplotlib.rcParams["svg.fonttype"] = "none"  # words that the test can read
    with tempfile.TemporaryDirectory() as temporary, contextlib.redirect_stdout(io.StringIO()):
        work = Path(temporary)
        write_samples.write(work / "digits")
        for draw in (_gain, _report, _mixed_precision, _before_after, _formats):
            draw(work, folder)


def _gain(_: Path, folder: Path) -> None:
    """Draw what int8 gains, by the table of docs/measurements.md."""
    page = FOLDER.with_name("measurements.md").read_text(encoding="utf-8")
    (folder / "gain.svg").write_text(gain_drawing.drawing(*gain_drawing.read_table(page)), encoding="utf-8")


def _tool(name: str, *arguments: str | Path) -> None:
    main: Callable[[list[str]], int] = import_module(f"tools.{name}").main
    if main([str(one) for one in arguments]):
        raise SystemExit(f"tools.{name} failed")


def _before_after(work: Path, folder: Path) -> None:
    _quantize_a8w8(work)
    models = [onnx.load(path) for path in (MODEL, work / "a8w8.onnx")]
    (folder / "before_after.svg").write_text(drawing(*models, "A8W8"), encoding="utf-8")


def _quantize_a8w8(work: Path) -> None:
    data = ("--data", work / "digits", "--limit", "64")
    _tool("quantize", "--input", MODEL, "--output", work / "a8w8.onnx", "--config", "A8W8", *data, "--force")


def _mixed_precision(work: Path, folder: Path) -> None:
    """Draw sensitivities and the models tried, by a command like that of docs/mixed_precision.md."""
    _tool(
        "auto_mixed_precision",
        *("--input", MODEL, "--output", work / "mixed.onnx", "--config", "BF16", "--target", "bfp16"),
        *("--target", "mx6", "--sqnr-target", "30", "--data", work / "digits", "--limit", "64", "--force"),
        *("--chart", work / "sensitivity.svg", "--plot", work / "mixed_precision.svg"),
    )
    for name in ("sensitivity.svg", "mixed_precision.svg"):
        (folder / name).write_bytes((work / name).read_bytes())


def _formats(work: Path, folder: Path) -> None:
    _tool("formats", "--plot", folder / "formats.svg", "--force")


def _report(work: Path, folder: Path) -> None:
    """Draw what the report of the A8W8 model begins with: its figures, its layers, its worst tensor."""
    _quantize_a8w8(work)
    page = work / "report.html"
    data = ("--data", work / "digits", "--limit", "64")
    _tool("report", "--float", MODEL, "--quantized", work / "a8w8.onnx", *data, "--output", page)
    text = page.read_text(encoding="utf-8")
    tiles = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", text)
    parts = [_words(24, 34, "Quantization report: digits.onnx in A8W8", INK, 18)]
    for i, (label, value) in enumerate(tile for tile in tiles if "Time" not in tile[0]):
        parts += [_words(24 + 290 * i, 70, label, SOFT, 13), _words(24 + 290 * i, 98, value, INK, 22)]
    activations, histograms = text.index("<h2>Activations"), text.index("<h2>The worst tensors")
    worst = re.compile(r"<h3><code>(\w+)</code> <span>[^<]*int8").search(text, histograms)
    assert worst
    parts += [_words(24, 138, "SQNR of the layers in execution order, and sorted", INK, 15)]
    parts += _plots(text[activations:], 150)
    parts += [_words(24, 444, f"The worst tensor in int8, {worst[1]}, and its grid", INK, 15)]
    parts += _plots(text[worst.start() :], 456)
    (folder / "report.svg").write_text(card(1180, 730, _style() + "".join(parts), "Quantization report"))


def _plots(text: str, y: int) -> list[str]:
    """Return the first two plots of a section of the report, side by side from some height on."""
    plots = re.findall(r"<svg (.*?)</svg>", text, re.DOTALL)[:2]
    return [
        f'<svg x="{16 + 580 * i}" y="{y}" width="560" height="260" {plot}</svg>'
        for i, plot in enumerate(plots)
    ]


def _style() -> str:
    """Return the style sheet of the report's plots, in its light colours."""
    rules = STYLE[STYLE.index("svg text") : STYLE.index("details {")]
    for name, color in _COLORS.items():
        rules = rules.replace(f"var(--{name})", color)
    return f"<style>{rules}</style>"


def _words(x: int, y: int, words: str, color: str, size: int) -> str:
    return f'<text x="{x}" y="{y}" style="fill: {color}; font-size: {size}px">{words}</text>'


if __name__ == "__main__":
    main()
