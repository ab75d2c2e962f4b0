"""Oracles: NumPy on the outputs of sessions opened by hand, an HTML parser, an XML parser for the plots."""

from __future__ import annotations

import csv
import json
import math
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from onnx_narrow.charts.svg_plots import Frame, Point, grid_plot, histogram, nice_ticks, scatter
from tests.helpers import real_models
from tests.helpers.report_costs import measure_here
from tests.helpers.spread import spread
from tools import convert_fp16_to_bf16, convert_fp32_to_bf16, evaluate, infer, report
from transforms import model_io
from transforms.compare.compare_models import Data, ModelComparison, compare_models, worst_layers
from transforms.compare.describe_model import describe_model
from transforms.compare.measure_run import measure_both
from transforms.run.image_options import ImageOptions
from transforms.runtime.session import RunOptions

EXAMPLES = Path(__file__).parents[1] / "examples"
SHARED = Path(__file__).resolve().parents[3] / "shared"
DIGITS = EXAMPLES / "digits.onnx"
VOID = {"meta", "input"}


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five digits, one file each."""
    folder = tmp_path_factory.mktemp("digits")
    for i, image in enumerate(np.load(EXAMPLES / "digits_test_images.npy")[:5]):
        np.save(folder / f"{i}.npy", image[None])
    return folder


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The example network in each format."""
    folder = tmp_path_factory.mktemp("models")
    paths = {name: folder / f"{name}.onnx" for name in ("with_cast", "bf16", "customqdq", "simulate_bf16")}
    for name, path in paths.items():
        arguments = ["--input", str(DIGITS), "--output", str(path), "--format", name]
        assert convert_fp32_to_bf16.main(arguments) == 0
    return paths


@pytest.fixture(scope="module")
def compared(converted: dict[str, Path], samples: Path) -> dict[str, ModelComparison]:
    data = Data(samples, ImageOptions(), RunOptions(threads=1))
    with pytest.MonkeyPatch.context() as patch:
        measure_here(patch)
        return {name: compare_models(DIGITS, path, data) for name, path in converted.items()}


class Page(HTMLParser):
    """Checks that every element is closed, and collects text and what could load something."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.tags: list[str] = []
        self.feed(text)
        assert self.open == [], f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = {name for name, _ in attrs}
        assert not names & {"src", "href", "srcset", "style", "onclick"}, f"{tag} could load something"
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.words.append(data)


def run_report(quantized: Path, data: Path, output: Path, *options: str, original: Path = DIGITS) -> int:
    paths = ("--float", original, "--quantized", quantized, "--data", data, "--output", output)
    return report.main([*map(str, paths), *options])


@pytest.mark.usefixtures("costs_here")
@pytest.mark.parametrize("name", spread(["with_cast", "bf16", "customqdq", "simulate_bf16"], of=2))
def test_page_is_whole_and_loads_nothing(
    converted: dict[str, Path], samples: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "report.html"
    assert run_report(converted[name], samples, output) == 0
    text = output.read_text(encoding="utf-8")
    page = Page(text)
    assert (
        text.startswith("<!doctype html>")
        and "url(" not in text
        and "@import" not in text
        and "//" not in text
    )
    assert {"script", "link", "img", "iframe"}.isdisjoint(page.tags) and page.tags.count("svg") >= 8
    for heading in ("Models", "End to end", "Activations", "Weights", "The worst tensors and their grids"):
        assert heading in page.words
    assert f"Report written to '{output}'" in capsys.readouterr().out


def test_layers_are_written_beside_the_page(
    converted: dict[str, Path], samples: Path, tmp_path: Path
) -> None:
    """``--min-sqnr`` judges the tiles of the page; oracle: a target that is met and one that is not."""
    pages = []
    for target in ("1", "200"):
        files = ["--json", str(tmp_path / f"{target}.json"), "--csv", str(tmp_path / f"{target}.csv")]
        page = tmp_path / f"{target}.html"
        assert run_report(converted["with_cast"], samples, page, *files, "--min-sqnr", target) == 0
        pages.append(page.read_text(encoding="utf-8"))
        found = json.loads((tmp_path / f"{target}.json").read_text(encoding="utf-8"))
        rows = list(csv.DictReader((tmp_path / f"{target}.csv").open(encoding="utf-8")))
        assert [row["layer"] for row in rows] == [one["layer"] for one in found["layers"]] != []
    assert pages[0] != pages[1]


@pytest.mark.usefixtures("costs_here")
def test_end_to_end_figures(
    converted: dict[str, Path], compared: dict[str, ModelComparison], samples: Path
) -> None:
    sessions = [ort.InferenceSession(str(path)) for path in (DIGITS, converted["with_cast"])]
    name = sessions[0].get_inputs()[0].name
    for one in compared["with_cast"].results:
        x, y = (session.run(None, {name: np.load(samples / f"{one.name}.npy")})[0] for session in sessions)
        x, y = x.astype(np.float64), y.astype(np.float64)
        assert one.sqnr == pytest.approx(10 * np.log10(np.sum(x**2) / np.sum((x - y) ** 2)), rel=1e-6)
        assert one.l2 == pytest.approx(np.linalg.norm(x - y), rel=1e-6)


def test_every_format_finds_the_layers(compared: dict[str, ModelComparison]) -> None:
    """Input, output and the classifier's weight keep their place in every format."""
    graph = model_io.load(DIGITS)
    for name, comparison in compared.items():
        found = {one.match.name: one for one in comparison.layers}
        assert {graph.inputs[0].name, graph.outputs[0].name} <= set(found), name
        assert any(one.match.is_weight for one in found.values()), name
        assert all(not one.mismatch for one in found.values()), name


def test_formats_agree_layer_by_layer(compared: dict[str, ModelComparison]) -> None:
    """Casts, custom operators and true bfloat16 compute the same numbers up to the order of float32 sums."""
    columns = {
        name: {
            one.match.name: one.total.sqnr()
            for one in compared[name].layers
            if one.match.format == "bfloat16"
        }
        for name in ("with_cast", "customqdq", "bf16")
    }
    for name, sqnr in columns["with_cast"].items():
        assert columns["customqdq"][name] == pytest.approx(sqnr, abs=0.5)
        if name in columns["bf16"]:
            assert columns["bf16"][name] == pytest.approx(sqnr, abs=0.5)


def test_own_rounding_is_that_of_bfloat16(compared: dict[str, ModelComparison]) -> None:
    """Values spread over binades lose 55.6 dB (the table of formats); few values scatter around that."""
    own = [one.own.sqnr() for one in compared["with_cast"].layers if one.own.count > 500]
    assert own and all(52 < value < 60 or value == math.inf for value in own)


def test_widened_models_say_so(compared: dict[str, ModelComparison]) -> None:
    assert compared["bf16"].widened > 0 and compared["with_cast"].widened == 0


def test_worst_layers_come_first(compared: dict[str, ModelComparison]) -> None:
    comparison = compared["with_cast"]
    worst = worst_layers(comparison.layers, 3, weights=False)
    lowest = sorted(one.total.sqnr() for one in comparison.layers if not one.match.is_weight)[:3]
    assert [one.total.sqnr() for one in worst] == lowest
    assert len(comparison.worst) == len(comparison.histograms)
    for one, counts in zip(comparison.worst, comparison.histograms, strict=True):
        assert counts.original.sum() == one.total.count


def test_description(converted: dict[str, Path]) -> None:
    original = describe_model(model_io.load(DIGITS), DIGITS)
    assert original.size == DIGITS.stat().st_size and original.roundings == {}
    proto = onnx.load(DIGITS)
    assert original.nodes == len(proto.graph.node)
    assert original.weights["float32"] == sum(
        math.prod(t.dims) for t in proto.graph.initializer if t.data_type == TensorProto.FLOAT
    )
    cast = describe_model(model_io.load(converted["with_cast"]), converted["with_cast"])
    pairs = sum(
        n.op_type == "Cast" and n.attribute[0].i == TensorProto.BFLOAT16
        for n in onnx.load(converted["with_cast"]).graph.node
    )
    assert cast.roundings == {"bfloat16": pairs} and cast.weights["bfloat16"] > 0
    custom = describe_model(model_io.load(converted["customqdq"]), converted["customqdq"])
    assert custom.operators["ai.onnx.contrib::ExtendedQuantizeLinear"] == pairs


def test_external_data_counts_towards_the_size(tmp_path: Path) -> None:
    proto = onnx.load(DIGITS)
    path = tmp_path / "m.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="m.data", size_threshold=0)
    total = path.stat().st_size + (tmp_path / "m.data").stat().st_size
    assert describe_model(model_io.load(path), path).size == total


@pytest.mark.heavy
def test_measured_memory_is_that_of_the_model(tmp_path: Path) -> None:
    """A model that holds 64 MB in one activation takes at least that, and not three times that."""
    numbers = 16 << 20
    nodes = [
        helper.make_node("Expand", ["x", "shape"], ["big"]),
        helper.make_node("ReduceSum", ["big"], ["y"], keepdims=0),
    ]
    shape = onnx.numpy_helper.from_array(np.array([numbers]), "shape")
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [1]), ("y", []))]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [shape])
    path = tmp_path / "big.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    data = tmp_path / "data"
    data.mkdir()
    np.save(data / "0.npy", np.ones(1, np.float32))
    costs = measure_both(path, path, Data(data, ImageOptions(), RunOptions()))
    measured, other = costs.before, costs.made
    if measured.peak_bytes is None:
        pytest.skip("no /proc here")
    assert 4 * numbers < measured.peak_bytes < 12 * numbers
    assert measured.load_seconds > 0 and measured.run.runs == other.run.runs > 1
    assert 0 < measured.run.low <= measured.run.median <= measured.run.high
    assert 0 < costs.ratio.low <= costs.ratio.median <= costs.ratio.high


def nan_maker(path: Path) -> Path:
    """The example network with its output divided by zero."""
    proto = onnx.load(DIGITS)
    output = proto.graph.output[0].name
    for node in proto.graph.node:
        node.output[:] = ["before" if name == output else name for name in node.output]
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(0), "nothing"))
    proto.graph.node.append(helper.make_node("Mul", ["before", "nothing"], ["zero"]))
    proto.graph.node.append(helper.make_node("Div", ["zero", "nothing"], [output]))
    onnx.save(proto, path)
    return path


@pytest.mark.usefixtures("costs_here")
def test_nan_is_shown_and_breaks_nothing(samples: Path, tmp_path: Path) -> None:
    output = tmp_path / "r.html"
    assert run_report(nan_maker(tmp_path / "nan.onnx"), samples, output) == 0
    text = output.read_text(encoding="utf-8")
    Page(text)
    assert "5 results hold NaN or infinite elements" in text and 'class="bad"' in text


@pytest.mark.usefixtures("costs_here")
def test_a_model_against_itself(samples: Path, tmp_path: Path) -> None:
    output = tmp_path / "r.html"
    assert run_report(DIGITS, samples, output) == 0
    text = output.read_text(encoding="utf-8")
    Page(text)
    assert "are identical and lie on the upper edge" in text and "The worst tensors" not in text


@pytest.mark.usefixtures("costs_here")
def test_names_are_escaped(samples: Path, tmp_path: Path) -> None:
    proto = onnx.load(DIGITS)
    evil = "<script>alert('x')</script>&\""
    proto.graph.node[0].name = evil
    inner = proto.graph.node[0].output[0]
    for node in proto.graph.node:
        node.input[:] = [evil if name == inner else name for name in node.input]
        node.output[:] = [evil if name == inner else name for name in node.output]
    del proto.graph.value_info[:]
    model = tmp_path / "evil.onnx"
    onnx.save(proto, model)
    output = tmp_path / "r.html"
    assert run_report(model, samples, output, original=model) == 0
    page = Page(output.read_text(encoding="utf-8"))
    assert "script" not in page.tags and evil in page.words


def error_of(capsys: pytest.CaptureFixture[str]) -> str:
    text = capsys.readouterr().err
    assert text.count("\n") == 1 and text.startswith("tools.report: error: "), text
    return text


def test_existing_output_needs_force(
    samples: Path, converted: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "r.html"
    output.write_text("old")
    capsys.readouterr()
    assert run_report(converted["with_cast"], samples, output) == 1
    assert "exists; --force overwrites it" in error_of(capsys) and output.read_text() == "old"
    assert run_report(converted["with_cast"], samples, output, "--force", "--limit", "1") == 0
    assert "compared with digits.onnx on 1 samples" in output.read_text()


def test_models_that_do_not_belong_together(
    samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    proto = onnx.load(DIGITS)
    old = proto.graph.input[0].name
    proto.graph.input[0].name = "other"
    for node in proto.graph.node:
        node.input[:] = ["other" if name == old else name for name in node.input]
    onnx.save(proto, tmp_path / "other.onnx")
    assert run_report(tmp_path / "other.onnx", samples, tmp_path / "r.html") == 1
    assert f"the models have different inputs: {old} against other" in error_of(capsys)
    assert not (tmp_path / "r.html").exists()


def test_bad_paths(samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_report(tmp_path / "none.onnx", samples, tmp_path / "r.html") == 1
    assert "No such file or directory" in error_of(capsys)
    assert run_report(DIGITS, samples, tmp_path / "none" / "r.html") == 1
    assert f"folder '{tmp_path / 'none'}' does not exist" in error_of(capsys)


def test_help_starts_fast() -> None:
    code = (
        "import sys\nfrom tools import report\ntry: report.main(['--help'])\nexcept SystemExit: pass\n"
        "print(sorted({'onnx', 'onnxruntime', 'numpy'} & set(sys.modules)))"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(report.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stdout.endswith("[]\n") and "--quantized" in done.stdout


@pytest.mark.parametrize(
    ("low", "high", "wanted"),
    [
        (0, 10, [0, 2, 4, 6, 8, 10]),
        (-3.5, 61, [-20, 0, 20, 40, 60, 80]),
        (0, 0, [0.0]),
        (0.011, 0.012, [0.011, 0.0112, 0.0114, 0.0116, 0.0118, 0.012]),
    ],
)
def test_nice_ticks(low: float, high: float, wanted: list[float]) -> None:
    assert nice_ticks(low, high) == pytest.approx(wanted)


@pytest.mark.parametrize("low", [-1e30, 1e-30, 123456.789])
def test_ticks_enclose_the_range(low: float) -> None:
    high = low + abs(low) * 0.37
    ticks = nice_ticks(low, high)
    slack = 1e-6 * (high - low)
    assert ticks[0] <= low + slack and ticks[-1] >= high - slack and 2 <= len(ticks) <= 9


def circles(svg: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(svg).iter("circle"))


def test_scatter_places_dots() -> None:
    points = [Point(1, 10.0, "low", "dot"), Point(2, 50.0, "high", "dot"), Point(3, math.inf, "same", "dot")]
    low, high, same = circles(scatter(points, "x", "y", "title"))
    frame = Frame(0, 4, 0, 50)
    assert float(low.get("cy", "")) == pytest.approx(frame.y(10), abs=0.06)
    assert float(low.get("cx", "")) == pytest.approx(frame.x(1), abs=0.06)
    assert high.get("cy") == same.get("cy")
    assert low.findtext("title") == "low"


@pytest.mark.parametrize("values", [[], [math.inf], [-math.inf, -20.0], [3.0]])
def test_scatter_of_odd_values(values: list[float]) -> None:
    points = [Point(i, value, "<&>", "dot") for i, value in enumerate(values, 1)]
    assert len(circles(scatter(points, "x", "y", "t"))) == len(values)


def test_histogram_is_a_drawing_with_labels() -> None:
    svg = ElementTree.fromstring(histogram([0, 1, 2], [10, 1000], [0, 5], "value", "a & b"))
    assert svg.get("aria-label") == "a & b" and svg.get("role") == "img"
    texts = [element.text for element in svg.iter("text")]
    assert {"0", "10", "100", "1,000", "value", "values"} <= set(texts)


def test_grid_plot_has_a_stem_for_each_value() -> None:
    svg = grid_plot([0, 1, 2], [3, 4], {0.5: 3, 1.5: 4}, "value", "t")
    assert len(circles(svg)) == 2 and "0.5: 3 values" in svg


@pytest.mark.heavy
@pytest.mark.usefixtures("costs_here")
@pytest.mark.skipif(not real_models.NAMES, reason="the real models are not here")
@pytest.mark.parametrize("name", real_models.EACH)
def test_real_models_through_all_three_tools(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Float against BF16 of every model: metrics as NumPy gives them, and a report that is whole."""
    original, quantized, data = (
        SHARED / "models" / name / "model.onnx",
        tmp_path / "q.onnx",
        tmp_path / "data",
    )
    calib = [sys.executable, str(SHARED / "checks" / "calib.py"), name, str(data), "--limit", "2"]
    subprocess.run(calib, check=True, capture_output=True)
    convert = convert_fp16_to_bf16 if name.endswith("fp16") else convert_fp32_to_bf16
    assert convert.main(["--input", str(original), "--output", str(quantized)]) == 0
    for model, folder in ((original, "f"), (quantized, "q")):
        arguments = ["--model", model, "--data", data, "--output_dir", tmp_path / folder, "--threads", "1"]
        assert infer.main([*map(str, arguments)]) == 0
    folders = ["--baseline_results_folder", tmp_path / "f", "--quantized_results_folder", tmp_path / "q"]
    assert evaluate.main([*map(str, (*folders, "--json", tmp_path / "e.json"))]) == 0
    written = json.loads((tmp_path / "e.json").read_text())
    for one in written["per_file"]:
        x, y = (
            np.load(tmp_path / side / one["output"] / one["name"]).astype(np.float64).ravel() for side in "fq"
        )
        noise = np.sum((x - y) ** 2)
        if noise:
            assert one["sqnr"] == pytest.approx(10 * np.log10(np.sum(x**2) / noise), rel=1e-6, abs=1e-6)
            assert one["cosine"] == pytest.approx(x @ y / np.sqrt((x @ x) * (y @ y)), rel=1e-9)
        assert one["l2"] == pytest.approx(np.sqrt(noise), rel=1e-9)
    output = tmp_path / "r.html"
    assert run_report(quantized, data, output, "--threads", "1", original=original) == 0
    Page(output.read_text(encoding="utf-8"))
    matched = re.search(r"Compared (\d+) tensors on \d samples", capsys.readouterr().out)
    assert matched and int(matched[1]) >= 3


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium")
@pytest.mark.parametrize("width", [1200, 500])
def test_browser_renders_the_page(
    converted: dict[str, Path], samples: Path, tmp_path: Path, width: int
) -> None:
    """The page is no wider than the window: nothing but its own scrolling boxes overflows."""
    output = tmp_path / "r.html"
    assert run_report(converted["with_cast"], samples, output) == 0
    probe = (
        "<script>document.title = document.documentElement.scrollWidth + ' of ' + innerWidth</script></body>"
    )
    output.write_text(output.read_text(encoding="utf-8").replace("</body>", probe), encoding="utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
    flags += [
        "--disable-sync",
        "--disable-background-networking",
        "--disable-component-update",
        f"--user-data-dir={tmp_path / 'p'}",
    ]
    command = ["chromium", *flags, f"--window-size={width},900", "--dump-dom", output.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=True)
    found = re.search(r"<title>(\d+) of (\d+)</title>", done.stdout)
    assert found and int(found[1]) <= int(found[2])


@pytest.mark.parametrize("which", ("float", "quantized"))
def test_a_report_never_overwrites_a_model(
    tmp_path: Path, which: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("float", "quantized"):
        shutil.copy(DIGITS, tmp_path / name)
    paths = {"--float": "float", "--quantized": "quantized", "--data": "", "--output": which}
    words = [word for option, name in paths.items() for word in (option, str(tmp_path / name))]
    assert report.main([*words, "--force"]) == 1
    assert "never overwritten" in capsys.readouterr().err
    assert (tmp_path / which).read_bytes() == DIGITS.read_bytes()


@pytest.mark.usefixtures("costs_here")
def test_headline_and_tiles_have_one_figure(
    converted: dict[str, Path], samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the same samples, all pooled: in the headline, the tiles, and the lines of the command."""
    output = tmp_path / "report.html"
    assert run_report(converted["customqdq"], samples, output) == 0
    said, text = capsys.readouterr().out, re.sub(r"<[^>]+>", " ", output.read_text(encoding="utf-8"))
    (headline,) = re.findall(r"SQNR of (\d+) samples pooled: ([\d.]+) dB as it is", said)
    (line,) = re.findall(r"([\d.]+) dB  output \w+, (\d+) samples pooled", said)
    tile = re.search(rf"SQNR, {headline[0]} samples pooled\s+([\d.]+) dB", " ".join(text.split()))
    assert headline[0] == line[1] and tile is not None and tile[1] == headline[1]
    assert float(line[0]) == pytest.approx(float(headline[1]), abs=0.06)
