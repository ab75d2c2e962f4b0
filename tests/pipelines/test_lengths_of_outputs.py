"""Models whose numbers decide how long their outputs are. Oracle: ONNX Runtime, on samples that no step has
seen: shapes of the float model, and an SQNR that NumPy sums up."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from numpy.typing import NDArray

from tests.helpers import plans
from transforms import model_io
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.conversion.convert_bf16 import Bf16Options, convert_bf16
from transforms.judge.decisions import Checked
from transforms.lift_constants import lift_constants
from transforms.model.copy_graph import copy_graph
from transforms.pipelines.check_outputs import check_outputs
from transforms.pipelines.in_memory import IN_MEMORY
from transforms.pipelines.options import Options
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.pipelines.steps import run
from transforms.pipelines.work import Work
from transforms.precision.bench import goal_bench
from transforms.precision.candidates import find_candidates
from transforms.precision.mixed_model import MixedModel
from transforms.run.run_model import open_model
from transforms.scheme import preset
from transforms.scheme.layer_rule import LayerRule
from transforms.search.target import Target

DURATIONS = """(float[1,T,16] x) => (float[A,B,C] y)
    <float six = {6}, int64[1] one = {1}, int64[1] z = {0}, int64[3] often = {1, 30, 1}> {
    a = MatMul (x, w1) r = Relu (a) h = MatMul (r, w2)
    d = MatMul (h, wd) g = Sigmoid (d) s = ReduceSum <keepdims=0> (g) t = Mul (s, six) u = Ceil (t)
    k = Cast <to=7> (u) l = Reshape (k, one) %s }"""
REPEATED = """m = ReduceMean <keepdims=1, axes=[1]> (h) shape = Concat <axis=0> (one, l, one)
    e = Expand (m, shape) b = MatMul (e, w3) c = Tanh (b) y = MatMul (c, w4)"""
CUT = "b = MatMul (h, w3) long = Tile (b, often) y = Slice (long, z, l, one)"
WEIGHTS: plans.Weights = {"w1": (16, 32), "w2": (32, 16), "wd": (16, 4), "w3": (16, 256), "w4": (256, 16)}


@cache
def model(end: str) -> onnx.ModelProto:
    graph = plans.loose_graph(DURATIONS % end, WEIGHTS, opset=17)
    return model_io.export(graph)[0]


def graph(end: str = REPEATED) -> gs.Graph:
    loaded = model_io.load(model(end))
    lift_constants(loaded)
    return loaded


def feeds(count: int, first: int = 0) -> list[dict[str, NDArray[np.float32]]]:
    random = (np.random.default_rng(first + i) for i in range(count))
    return [{"x": one.standard_normal((1, 6 + i % 4, 16), np.float32)} for i, one in enumerate(random)]


UNSEEN = feeds(40, 100)


def pairs(made: gs.Graph, end: str = REPEATED) -> list[tuple[NDArray, NDArray]]:
    exact, found = (open_model(copy_graph(one)) for one in (graph(end), made))
    return [(exact.run(feed)["y"], found.run(feed)["y"]) for feed in UNSEEN]


def other_lengths(made: gs.Graph, end: str = REPEATED) -> int:
    return sum(exact.shape != found.shape for exact, found in pairs(made, end))


@pytest.mark.parametrize("config", ["A8W8", "U8S8", "W8", "W4", "A8W8_DYNAMIC", "BFP16", "MX6", "BF16"])
def test_lengths_are_those_of_the_float_model(config: str) -> None:
    made = graph()
    done = quantize_graph(made, preset(config), CalibrationData(feeds(8)))
    assert other_lengths(made) == 0
    assert any((exact != found).any() for exact, found in pairs(made)), (
        "layers after the length are quantized"
    )
    (note,) = (one for one in done.notes if "how long" in one)
    assert note.startswith("Kept in float, for they decide how long other tensors are: ")


@pytest.mark.parametrize("form", ["with_cast", "customqdq", "simulate_bf16", "bf16"])
def test_conversions_to_bf16_keep_lengths(form: str) -> None:
    made = graph()
    done = convert_bf16(made, Bf16Options(form))
    assert done.tensors and done.tally is not None
    if form != "bf16":  # whose operators run elsewhere
        assert other_lengths(made) == 0
        assert done.tally.kept["decides how long other tensors are"]["MatMul"] == 3


def test_a_layer_that_a_scheme_names_is_quantized() -> None:
    made, named = graph(), {"MatMul": LayerRule("int8", "int8")}
    quantize_graph(made, preset("A8W8").by_rule().with_(layers=named), CalibrationData(feeds(8)))
    assert other_lengths(made) > 0


def test_mixed_precision_moves_none_of_them() -> None:
    mixed = MixedModel(graph(), preset("A8W8"))
    nodes = [node for group in find_candidates(mixed, ()).values() for node in group]
    assert {node.outputs[0].name for node in nodes} == {"b", "y"}


def built(end: str, config: str = "A8W8") -> Work:
    work = Work(
        graph(end), preset(config).by_rule(), CalibrationData(feeds(8)), options=Options(keeps_float=True)
    )
    return run(work, IN_MEMORY)


def checked_on(work: Work, feeds: list[dict[str, NDArray[np.generic]]]) -> Checked | None:
    """Return the figure of a model on samples that have given it nothing."""
    work.data, work.statistics = CalibrationData(feeds), None
    return check_outputs(work, work.float_form(), work.graph)


def test_the_output_itself_is_compared_where_lengths_are_kept() -> None:
    work = built(REPEATED)
    checked = checked_on(work, UNSEEN[:4])
    power, error = np.sum(
        [(np.square(a).sum(), np.square(a - b).sum()) for a, b in pairs(work.graph)[:4]], axis=0
    )
    # the figure allows for half the variance of the logarithm: a few percent of four samples that are alike
    assert checked is not None and checked.error == pytest.approx(error / power, rel=0.1)
    assert " of " not in checked.figure and "another shape" not in str(checked)


def test_another_shape_is_counted_and_the_tensor_named() -> None:
    """Nothing is learned after the cut: the layers before it are the whole model."""
    work = built(CUT)
    others = [exact.shape != found.shape for exact, found in pairs(work.graph, CUT)]
    assert 0 < sum(others) < len(others)
    some = [UNSEEN[others.index(True)], *(UNSEEN[i] for i in np.flatnonzero(~np.array(others))[:3])]
    checked = checked_on(work, some)
    assert "before 'y' on 4 samples; 'y' has another shape in 1 of 4 samples" in str(checked)
    assert "usually no loss" not in str(checked)


def test_a_sample_of_another_length_fails_a_target() -> None:
    work = built(CUT)
    others = [exact.shape != found.shape for exact, found in pairs(work.graph, CUT)]
    same = [feed for feed, other in zip(UNSEEN, others, strict=True) if not other]
    one = [UNSEEN[others.index(True)]]
    goal = Target("sqnr", 10.0)
    assert goal_bench(work.float_form(), same[:6], goal).score(work.graph) > 10
    assert goal_bench(work.float_form(), [*same[:6], *one], goal).score(work.graph) == -np.inf
