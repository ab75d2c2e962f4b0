"""The full range of int8 as part of quantizing. Oracles: the float model, and a model that tuning shifts."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs
import pytest
from onnx import helper

from tests.full_range.test_shift_tensors import CLOSE, DATA, NET, PADDED, PADDED_DATA
from tests.helpers import build, tunable
from tests.helpers.output_error import OutputError
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.conversion.record import Record
from transforms.finetune.finetune_model import finetune_model
from transforms.finetune.options import FinetuneOptions
from transforms.full_range.recorded_shifts import recorded_shifts
from transforms.full_range.share_shifts import on_full_range, shift_alike
from transforms.full_range.shift_tensors import shift_tensors
from transforms.graph.constants import load
from transforms.model import graph_proto
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.plan.tensor_grids import FixedGrids
from transforms.run.run_model import open_model
from transforms.scheme import preset


def _quantized(
    wish: str | tuple[str, ...], data: CalibrationData | None = None, **more: object
) -> tuple[gs.Graph, Record]:
    graph = graph_proto.import_model(PADDED)
    scheme = preset("A8W8").with_(
        **{"full_range": wish, "calibrate_method": "MinMax", "correct_biases": False, "per_channel": True},
        **{"keep_float": False, "move_outliers": False, "tensors": {"y": "float32"}},
    )  # the rounding of the output itself is the largest error otherwise
    return graph, quantize_graph(graph, scheme, data or CalibrationData(PADDED_DATA), **more)  # type: ignore[arg-type]


def _power(graph: gs.Graph) -> float:
    return OutputError(graph_proto.import_model(PADDED), PADDED_DATA).each(graph).relative


def _rectified(feed: dict[str, np.ndarray]) -> np.ndarray:
    """Return what the float model makes of a sample after the first layer and its Relu."""
    graph = graph_proto.import_model(PADDED)
    graph.outputs = [graph.tensors()["r1"]]
    graph.cleanup()
    return np.asarray(open_model(graph).run(feed)["r1"])


@pytest.mark.parametrize(("wish", "count", "added"), [("padded", 4, 3), ("free", 1, 0), ("off", 0, 0)])
def test_quantizing_shifts_what_the_scheme_says(wish: str, count: int, added: int) -> None:
    graph, done = _quantized(wish)
    assert done.shifted == count
    tensors = "1 tensor" if count == 1 else f"{count} tensors"
    assert [one.change for one in done.decisions.kept] == (
        [f"the full range of int8 for {tensors}"] * bool(count)
    )
    assert sum(node.op in ("Pad", "Sub") for node in graph.nodes) == added
    assert done.scheme is not None
    assert done.scheme.full_range == (("x", "c1", "c2", "c3") if added else ("c3",) if count else "off")
    assert bool(recorded_shifts(graph)) == bool(count)
    for node in graph.nodes:
        if node.op == "QuantizeLinear":
            assert load(node.inputs[2]).dtype == np.int8 and not load(node.inputs[2]).any()
    if wish == "padded":
        assert _power(graph) < CLOSE * _power(_quantized("off")[0])
        (first,) = (
            node for node in graph.nodes if node.op == "QuantizeLinear" and node.inputs[0].name == "c1"
        )
        seen = max(_rectified(feed).max() for feed in PADDED_DATA)
        assert load(first.inputs[1]) * 255 == pytest.approx(8 / 7 * seen, rel=1e-5)  # MinMax, with headroom


def test_no_data_that_decide_no_shift() -> None:
    """Random samples, ranges that are given, and rules leave the model as it was."""
    plain, done = _quantized("off", keep_grids=True)
    assert done.grids
    for data, more in (
        (CalibrationData(PADDED_DATA, decides=False), {}),
        (CalibrationData(PADDED_DATA), {"fixed": FixedGrids(done.grids)}),
    ):
        graph, done = _quantized("padded", data, **more)
        assert not done.shifted and not recorded_shifts(graph)
        assert [node.op for node in graph.nodes] == [node.op for node in plain.nodes]
    assert preset("A8W8").full_range == "padded" and preset("A8W8").by_rule().full_range == "off"


def test_samples_that_can_be_read_once_are_enough() -> None:
    graph, done = _quantized("padded", CalibrationData(iter(PADDED_DATA)))
    assert done.shifted == 4
    again, _ = _quantized("padded")
    assert _power(graph) == _power(again)


def test_an_input_with_a_negative_number_in_any_sample_stays() -> None:
    """The sample lies beyond those that outputs are compared on."""
    data = [*PADDED_DATA[:-1], {"x": -PADDED_DATA[-1]["x"]}]
    graph, done = _quantized("padded", CalibrationData(data))
    assert done.shifted == 3 and not any(node.op == "Sub" for node in graph.nodes)


def test_the_recorded_decision_shifts_the_same_tensors_without_a_judge() -> None:
    """Oracle: the graph that the outputs decided about, node by node and number by number."""
    graph, done = _quantized("padded", keep_grids=True)
    assert done.scheme is not None
    again = graph_proto.import_model(PADDED)
    data = CalibrationData(PADDED_DATA, decides=False)
    repeated = quantize_graph(again, done.scheme, data, keep_grids=True)
    assert repeated.scheme == done.scheme and repeated.shifted == 4
    found, expected = (graph_proto.export_model(one).SerializeToString() for one in (again, graph))
    assert found == expected
    grids, others = (
        {grid.name: (grid.scale, grid.zero_point) for grid in one.grids or ()} for one in (repeated, done)
    )
    assert repr(grids) == repr(others)


def test_a_part_of_the_tensors_can_be_named() -> None:
    graph, done = _quantized(("c3", "c1"))
    assert done.shifted == 2 and sum(node.op == "Pad" for node in graph.nodes) == 1
    assert {"c1", "c3"} <= recorded_shifts(graph).keys() and "c2" not in recorded_shifts(graph)


def test_a_name_that_cannot_be_shifted_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"^full_range names 'f', 'z', which cannot be shifted$"):
        _quantized(("c1", "f", "z"))


def test_grids_are_those_of_the_shifted_tensors() -> None:
    """Oracle: the scales in the model; the lowest code stands for 0."""
    graph, done = _quantized("padded", keep_grids=True)
    grids = {grid.name: grid for grid in done.grids or () if grid.role == "activation"}
    shifts = recorded_shifts(graph)
    assert {"x", "r1", "r2", "p", "r3"} <= grids.keys() & shifts.keys()
    for name, grid in grids.items():
        if name in shifts:
            assert grid.zero_point == 0 and grid.scale == np.float32(shifts[name] / 128)
    scales = {float(load(node.inputs[1])) for node in graph.nodes if node.op == "QuantizeLinear"}
    assert {float(grid.scale) for grid in grids.values()} == scales


def test_tuning_a_shifted_model_is_tuning_it_shifted() -> None:
    """Oracle: the model that is shifted by tuning, by the same headroom: equal sums, equal weights."""
    float_graph, quantized = tunable.pair(PADDED, "A8W8", PADDED_DATA)
    reference, shifted, _ = on_full_range(float_graph, quantized, padded_for=PADDED_DATA)
    alike = shift_alike(float_graph, shifted)
    found, expected = (OutputError(alike, PADDED_DATA).each(one).errors for one in (shifted, shifted))
    assert np.array_equal(found, expected)
    makers = [{n.outputs[0].name: n for n in g.nodes if n.op == "Conv"} for g in (alike, reference)]
    for name, node in makers[0].items():
        assert np.array_equal(load(node.inputs[2]), load(makers[1][name].inputs[2])), name
    first = finetune_model(float_graph, quantized, PADDED_DATA, FinetuneOptions())
    second = finetune_model(float_graph, shifted, PADDED_DATA, FinetuneOptions())
    assert first.spread == 4 and second.spread == 0
    assert second.after == pytest.approx(first.after, rel=1e-9)
    third = finetune_model(float_graph, first.graph, PADDED_DATA, FinetuneOptions())
    assert third.after <= first.after < CLOSE * third.after


def test_a_float_model_without_the_relu_is_refused() -> None:
    float_graph, quantized = tunable.pair(NET, "A8W8", DATA)
    assert len(shift_tensors(quantized, {"c1", "c2", "c3"})) == 3
    relu = next(node for node in float_graph.nodes if node.op == "Relu")
    relu.op = "Sigmoid"
    with pytest.raises(ValueError, match=r"^'c1' is shifted, and the float model has no Relu or Clip alone"):
        shift_alike(float_graph, quantized)


def test_a_bias_without_axes_stays() -> None:
    random = np.random.default_rng(8)
    weights = {"w": random.standard_normal((4, 8)), "b": np.full(8, 0.5), "v": np.full((8, 1), 0.25)}
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["h"], "hidden"),
        helper.make_node("Relu", ["h"], ["r"], "relu"),
        helper.make_node("Gemm", ["r", "v", "c"], ["y"], "last"),
    ]
    arrays = {name: value.astype(np.float32) for name, value in weights.items()} | {"c": np.float32(2)}
    ends = build.value("x", ["n", 4]), build.value("y", ["n", 1])
    model = build.model(nodes, [ends[0]], [ends[1]], arrays)
    feeds = tunable.samples(model, 8)
    graph = graph_proto.import_model(model)
    quantize_graph(graph, preset("A8W8"), CalibrationData(feeds))
    error = OutputError(graph_proto.import_model(model), feeds).each(graph).relative
    assert error < 1e-3  # 30 dB: outputs around 2 in steps of about 1/32
