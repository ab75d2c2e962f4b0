"""Strategy ``latency`` with seconds from a table made up by hand, so that every choice is known; and once
with real time, of which only the form is looked at."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest

from onnx_narrow.summaries import mixing as summary
from tests.helpers import build, tunable
from tests.helpers.time_lines import AGAINST, UNKNOWN
from tools import auto_mixed_precision
from transforms import model_io
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.model import graph_proto
from transforms.precision.candidates import Candidate, layers_of
from transforms.precision.mix import MixedPrecision, mix_precision
from transforms.precision.mixed_model import MixedModel
from transforms.precision.mixing_options import MixingOptions
from transforms.precision.times import layer_alone, saved_seconds, time_layers
from transforms.run.run_model import open_model
from transforms.runtime.session import RunOptions
from transforms.scheme import preset
from transforms.scheme.layer_rule import LayerRule
from transforms.search.output_metrics import METRICS
from transforms.search.target import TargetError

MODEL = tunable.conv_net()
FEEDS = tunable.samples(MODEL, 3)
LAYERS = ("conv", "depthwise", "transposed", "dense")
FLOAT, BEFORE = 5.0, 9.0
ONE = RunOptions(threads=1)


class Clock:
    """A timer: seconds of layers, and of models as a whole.

    ``layers``: a row for each layer, of rounds for each of float, the baseline and the labels. ``whole``:
    seconds of the mixed models, in the order in which they are timed; the baseline takes 9.
    """

    def __init__(self, layers: Mapping[str, Sequence[Sequence[float]]], whole: Sequence[float] = ()) -> None:
        self._layers, self._whole = layers, iter(whole)
        self.timed: list[str] = []
        self.shares: list[float] = []

    def __call__(
        self, graphs: Sequence[gs.Graph], feeds: Sequence[object], run: RunOptions, seconds: float
    ) -> Sequence[Sequence[float]]:
        assert run == ONE
        self.shares.append(seconds)
        if graphs[0].name in self._layers:
            self.timed.append(str(graphs[0].name))
            assert {graph.name for graph in graphs} == {graphs[0].name} and len(feeds) == 1
            return self._layers[str(graphs[0].name)]
        assert len(feeds) == len(FEEDS)
        return [[FLOAT] * 5, [BEFORE] * 5, *([next(self._whole)] * 5 for _ in graphs[2:])]


def table(*saved: float) -> dict[str, list[list[float]]]:
    """Four rounds of each layer: 2 s in float, 9 s in the baseline, less by what int8 saves."""
    return {layer: [[2.0] * 4, [9.0] * 4, [9.0 - one] * 4] for layer, one in zip(LAYERS, saved, strict=True)}


def mixed(clock: Clock, limit: float = 3.0, **keys: object) -> MixedPrecision:
    rule = {"target": "int8", "strategy": "latency", "sqnr_drop_target": limit} | keys
    scheme = preset("A16W8").with_(auto_mixed_precision=rule)
    options = MixingOptions(run=ONE, timer=clock)
    return mix_precision(model_io.load(MODEL), scheme, CalibrationData(FEEDS), options)


def words(found: MixedPrecision) -> str:
    return "\n".join(summary.lines(found))


def scored(graph: gs.Graph) -> float:
    """The SQNR by sessions of its own."""
    models = [open_model(model_io.load(MODEL), ONE), open_model(graph, ONE)]
    made = [[model.run(feed) for feed in FEEDS] for model in models]
    return METRICS["sqnr"].score(zip(*made, strict=True))


def test_layers_that_save_time_move_and_others_do_not() -> None:
    clock = Clock(table(3, 0, -1, 2), [6.0])
    found = mixed(clock, 40.0)
    assert set(found.choices) == {"conv", "dense"} and clock.timed == list(LAYERS)
    onnx.checker.check_model(graph_proto.export_model(found.graph), full_check=True)
    said = words(found)
    assert "Moved 2 of 4 layers: 2 to int8; the others stay int16/int8" in said
    assert "Time of layers alone: 2 of 4 layers faster in another format, beyond the spread" in said
    assert (
        "Time per sample: 9000.00 ms (9000.00 to 9000.00) -> 6000.00 ms (6000.00 to 6000.00),"
        " 1.5 times faster than before (1.50 to 1.50); float 5000.00 ms (5000.00 to 5000.00); 5 runs each"
        in said
    )
    assert "Beside the float model: 1.2 times slower than float (1.20 to 1.20)" in said


def test_what_is_within_the_spread_does_not_move() -> None:
    """conv is faster at the median, but slower in three rounds of eight; dense is so in every round."""
    layers = table(0, 0, 0, 0)
    layers["conv"][1:] = [[9.0] * 8, [1.0] * 5 + [10.0] * 3]
    layers["dense"][1:] = [[9, 90, 9, 9, 900, 9], [8.9, 89, 8.9, 8.9, 899, 8.9]]
    found = mixed(Clock(layers, [1.0]), 40.0)
    assert set(found.choices) == {"dense"}
    assert set(saved_seconds(found.layer_times)) == {("dense", "int8")}


def test_the_target_holds_for_the_model_that_is_made() -> None:
    """The drop that all four moves cost is more than the limit."""
    everything = mixed(Clock(table(1, 1, 1, 1), [1.0]), 99.0)
    assert len(everything.choices) == 4 and everything.assignment is not None
    drop = everything.assignment.baseline - everything.assignment.value
    found = mixed(Clock(table(1, 1, 1, 1), [1.0]), drop / 2)
    assert found.assignment is not None and 0 < len(found.choices) < 4
    assert found.assignment.baseline - scored(found.graph) <= drop / 2
    assert scored(found.graph) == pytest.approx(found.assignment.value)


def test_nothing_faster_leaves_the_baseline_and_says_so() -> None:
    found = mixed(Clock(table(0, -1, 0, -2)))
    assert not found.choices and found.assignment is not None and len(found.assignment.steps) == 1
    said = words(found)
    assert "Time per sample: 9000.00 ms (9000.00 to 9000.00), float 5000.00 ms" in said
    assert "The model is the baseline: no layer is faster in another format" in said
    assert "Beside the float model: 1.8 times slower than float (1.80 to 1.80)" in said


def test_if_the_model_is_not_faster_as_a_whole_the_baseline_is_left() -> None:
    found = mixed(Clock(table(3, 3, 3, 3), [9.0]), 99.0)
    assert not found.choices and found.assignment is not None
    assert found.assignment.value == found.assignment.baseline == pytest.approx(scored(found.graph))
    assert found.assignment.size == found.assignment.baseline_size
    assert "the mixed model is not faster as a whole, beyond the spread" in words(found)


@pytest.mark.parametrize(
    ("after", "said"), [(8.9, "as fast as before"), (9.0, "as fast as before"), (9.9, "slower than before")]
)
def test_a_model_that_is_about_as_fast_as_the_baseline_is_not_faster(after: float, said: str) -> None:
    found = mixed(Clock(table(3, 3, 3, 3), [after]), 99.0)
    assert found.whole_times is not None and found.whole_times.is_refused
    assert not found.choices and said in words(found)


def test_layers_of_one_structure_are_timed_once() -> None:
    """Of four Gemms the second and third are alike but for their numbers; the last has an attribute."""
    text = """<ir_version: 9, opset_import: ["": 17]> g (float[2,4] x) => (float[2,6] y)
        <float[4,6] v = {V}, float[6,6] w = {W}, float[6,6] u = {U}> {
        [first] a = Gemm(x, v) [second] b = Gemm(a, w) [third] c = Gemm(b, u)
        [fourth] y = Gemm <transB = 1> (c, w) }"""
    numbers = {
        name: ", ".join(f"{i * step % 1:.3f}" for i in range(1, count + 1))
        for name, count, step in (("V", 24, 0.31), ("W", 36, 0.17), ("U", 36, 0.71))
    }
    for name, one in numbers.items():
        text = text.replace(f"{{{name}}}", f"{{{one}}}")
    graph = model_io.load(onnx.parser.parse_model(text))
    feed = {"x": np.ones((2, 4), np.float32)}
    timed: list[str] = []

    def _timer(graphs: Sequence[gs.Graph], *_: object) -> list[list[float]]:
        timed.append(str(graphs[0].name))
        return [[float(len(timed))] * 4 for _ in graphs]

    model = MixedModel(graph, preset("A16W8"))
    candidates = [Candidate(name, "Gemm", 1, 1) for name in layers_of(graph)]
    found = time_layers(model, candidates, [LayerRule("int8", "int8")], feed, ONE, _timer)
    assert timed == ["first", "second", "fourth"]
    assert [time.run.median for time in found.values()] == [1, 2, 2, 3]


def test_a_target_that_no_move_meets_leaves_the_baseline_and_says_so() -> None:
    found = mixed(Clock(table(3, 3, 3, 3)), 0.0, target="int8/int4")
    assert not found.choices
    assert "The model is the baseline: no layer can be moved within the target" in words(found)


def test_a_format_of_more_bits_is_taken_if_it_is_faster() -> None:
    rows = {layer: [[2.0] * 4, [9.0] * 4, [2.0] * 4] for layer in LAYERS}
    found = mixed(Clock(rows, [2.0]), target="float32")
    assert set(found.choices) == set(LAYERS)
    assert scored(found.graph) == np.inf


def test_a_broken_target_is_an_error_before_anything_is_timed() -> None:
    clock = Clock(table(3, 3, 3, 3))
    with pytest.raises(TargetError, match="breaks the target"):
        mixed(clock, sqnr_drop_target=None, sqnr_target=500.0)
    assert not clock.timed


def test_a_layer_alone_has_what_its_kernel_computes_along_with_it() -> None:
    """A bias that is added and a Relu, as long as nothing else reads what they read."""
    text = """<ir_version: 9, opset_import: ["": 17]> g (float[2,4] x) => (float[2,4] y, float[2,4] z)
        <float[4] b = {1, 2, 3, 4}> { [first] p = MatMul(x, w) [bias] q = Add(p, b) [relu] r = Relu(q)
        [second] s = MatMul(r, w) [shared] t = Relu(s) y = Add(s, t) [third] u = MatMul(r, r2) z = Neg(u) }"""
    model = onnx.parser.parse_model(text.replace("r2) ", "w) "))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.eye(4, dtype=np.float32), "w"))
    graph = model_io.load(model)
    layers = layers_of(graph)
    alone = {name: layer_alone(name, graph, nodes) for name, nodes in layers.items()}
    assert {name: [node.name for node in one.nodes] for name, one in alone.items()} == {
        "first": ["first", "bias", "relu"],
        "second": ["second"],
        "third": ["third"],
    }
    assert [(one.inputs[0].name, one.outputs[0].name) for one in alone.values()] == [
        ("x", "r"),
        ("r", "s"),
        ("r", "u"),
    ]


def test_times_that_were_measured_are_printed_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Real time, of which nothing is known but that it passes."""
    build.save(MODEL, tmp_path / "float.onnx")
    (tmp_path / "data").mkdir()
    for i, feed in enumerate(FEEDS):
        np.savez(tmp_path / "data" / f"{i}.npz", **feed)
    given = {name: tmp_path / name for name in ("mixed.onnx", "t.csv", "t.json")}
    options = ["--input", str(tmp_path / "float.onnx"), "--data", str(tmp_path / "data"), "--threads", "1"]
    options += ["--config", "A16W8", "--target", "int8", "--target", "float32", "--strategy", "latency"]
    options += ["--sqnr-drop-target", "3", "--output", str(given["mixed.onnx"])]
    options += ["--csv", str(given["t.csv"]), "--json", str(given["t.json"])]
    assert auto_mixed_precision.main(options) == 0
    onnx.checker.check_model(onnx.load(given["mixed.onnx"]), full_check=True)
    said = capsys.readouterr().out
    assert re.search(r"^Time of layers alone: \d of 4 layers faster in another format", said, re.M)
    told = f"(?:{AGAINST}|{UNKNOWN})".format
    time = r"[\d.]+ ms \([\d.]+ to [\d.]+\)"
    assert re.search(
        rf"^Time per sample: {time}( -> {time}, {told('before')};|,) float {time}; \d+ runs each$", said, re.M
    )
    assert re.search(rf"^Beside the float model: {told('float')}$", said, re.M)
    rows = list(csv.DictReader(given["t.csv"].open()))
    assert [(row["layer"], row["label"]) for row in rows] == [
        (layer, label) for layer in LAYERS for label in ("int8", "float32")
    ]
    times = json.loads(given["t.json"].read_text())["times"]
    for row, entry in zip(rows, times, strict=True):
        assert all(float(row[f"{part}seconds"]) > 0 for part in ("", "baseline_", "float_"))
        assert float(row["low"]) <= float(row["seconds"]) <= float(row["high"])
        assert entry["seconds"] == float(row["seconds"]) and int(row["runs"]) >= 5
