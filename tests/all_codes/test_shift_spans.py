"""Tensors of unequal ends on all codes of int8. Oracle: the same model with zero points there."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from onnx import helper

from ops.array_types import Feed
from tests.helpers import build, tunable
from tests.helpers.output_error import OutputError
from transforms.all_codes.recorded_shifts import recorded_shifts, shifts_within
from transforms.all_codes.share_shifts import shift_alike
from transforms.all_codes.shift_spans import ShiftedSpan, shift_spans
from transforms.all_codes.use_all_codes import count_added
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.finetune.finetune_model import finetune_model
from transforms.finetune.options import FinetuneOptions
from transforms.graph.constants import load
from transforms.model import graph_proto
from transforms.model.copy_graph import copy_graph
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.run.run_model import open_model
from transforms.scheme import preset


def _net() -> onnx.ModelProto:
    """Return x through LeakyRelu, a gated layer, a sum with a Relu and a Concat to y."""
    random = np.random.default_rng(4)
    shapes = {"w1": (8, 3, 3, 3), "w2": (8, 8, 3, 3), "w3": (8, 8, 1, 1), "w4": (6, 16, 3, 3)}
    weights = {
        name: (random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)
        for name, shape in shapes.items()
    }
    weights |= {
        f"b{i}": random.standard_normal(n).astype(np.float32) for i, n in zip("134", (8, 8, 6), strict=True)
    }
    weights["b2"] = np.full(8, 2, np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], "first", pads=[1, 1, 1, 1]),
        helper.make_node("LeakyRelu", ["c1"], ["l1"], "leaky", alpha=0.1),
        helper.make_node("Conv", ["l1", "w2", "b2"], ["c2"], "second", pads=[1, 1, 1, 1]),
        helper.make_node("Sigmoid", ["c2"], ["g"], "gate"),
        helper.make_node("Mul", ["c2", "g"], ["m"], "gated"),
        helper.make_node("Conv", ["m", "w3", "b3"], ["c3"], "third"),
        helper.make_node("Add", ["c3", "l1"], ["s"], "sum"),
        helper.make_node("Relu", ["s"], ["r"], "relu"),
        helper.make_node("Concat", ["m", "r"], ["k"], "joined", axis=1),
        helper.make_node("Conv", ["k", "w4", "b4"], ["y"], "last", pads=[1, 1, 1, 1]),
    ]
    ends = build.value("x", ["n", 3, 6, 6]), build.value("y", ["n", 6, 6, 6])
    return build.model(nodes, [ends[0]], [ends[1]], weights)


NET = _net()
DATA = tunable.samples(NET, 24)
CLOSE = 1.2


def _ranges(
    names: tuple[str, ...] = ("l1", "c2", "m", "r", "k"),
    net: onnx.ModelProto = NET,
    data: list[Feed] = DATA,
) -> dict[str, tuple[float, float]]:
    """Return the lowest and highest numbers of tensors of the float model."""
    graph = graph_proto.import_model(net)
    graph.outputs = [graph.tensors()[name] for name in names]
    made = [open_model(graph.cleanup()).run(feed) for feed in data]
    return {
        name: (min(float(one[name].min()) for one in made), max(float(one[name].max()) for one in made))
        for name in names
    }


RANGES = _ranges()


def _pair(per_channel: bool = False) -> tuple[gs.Graph, gs.Graph]:
    return tunable.pair(NET, "A8W8", DATA, per_channel=per_channel)


def _with_zero_points(graph: gs.Graph, found: list[ShiftedSpan]) -> gs.Graph:
    """Return a model whose tensors have the steps of spans, and zero points; its biases are float."""
    result, codes = copy_graph(graph), dict[str, list[gs.Constant]]()
    grids = {name: one for one in found for name in one.names}
    for node in result.nodes:
        if node.op == "QuantizeLinear" and (one := grids.get(node.inputs[0].name)) is not None:
            zero = round(-one.shift / one.step)
            values = np.float32(one.step), np.array(zero, np.int8)
            codes[node.outputs[0].name] = [
                gs.Constant(f"{node.name}_{i}", np.asarray(value)) for i, value in enumerate(values)
            ]
            node.inputs = [node.inputs[0], *codes[node.outputs[0].name]]
    for node in result.nodes:
        if node.op == "DequantizeLinear" and node.inputs[0].name in codes:
            node.inputs = [node.inputs[0], *codes[node.inputs[0].name]]
        elif node.op in ("Conv", "Gemm"):  # in float: the runtime takes the scale of an int32 bias as given
            numbers, steps = (load(one).astype(np.float64) for one in node.inputs[2].inputs[0].inputs[:2])
            node.inputs[2] = gs.Constant(f"{node.name}_bias", (numbers * steps).astype(np.float32))
    return result


def _without_zero_points(graph: gs.Graph) -> bool:
    nodes = [node for node in graph.nodes if node.op == "QuantizeLinear"]
    return all(load(n.inputs[2]).dtype == np.int8 and not load(n.inputs[2]).any() for n in nodes)


@pytest.mark.parametrize("per_channel", [False, True])
def test_the_model_computes_what_one_with_zero_points_does(per_channel: bool) -> None:
    float_graph, quantized = _pair(per_channel)
    shifted = copy_graph(quantized)
    found = shift_spans(shifted, RANGES, padded=True, added=True)
    assert {name for one in found for name in one.names} == {"l1", "c2", "m", "r", "k"}
    assert len(found) == 3 and _without_zero_points(shifted)
    judge = OutputError(float_graph, DATA)
    apart = OutputError(_with_zero_points(quantized, found), DATA).each(shifted)
    assert np.median(apart.errors) < 1e-9  # of a few samples one number is rounded the other way
    assert apart.relative < 0.1 * judge.each(shifted).relative
    assert judge.each(shifted).relative < CLOSE * judge.each(quantized).relative


def test_biases_take_shifts_and_nodes_stand_where_there_are_none() -> None:
    _, quantized = _pair()
    before = count_added(quantized)
    found = shift_spans(quantized, RANGES, padded=True, added=True)
    subs = {node.inputs[0].name for node in quantized.nodes if node.op == "Sub"}
    assert subs == {"l1", "m", "r"}  # the bias in front takes that of c2
    assert recorded_shifts(quantized).keys() == {"l1", "c2", "m", "r", "k"}
    assert shifts_within(quantized).keys() == {"c2", "k"}
    adds = [node for node in quantized.nodes if node.op == "Add" and node.name.endswith("shift_back")]
    assert {user.op for node in adds for user in node.outputs[0].outputs} == {"Add", "Mul", "Sigmoid"}
    pads = sum(node.op == "Pad" for node in quantized.nodes)
    assert count_added(quantized) - before == len(subs) + len(adds) + pads and pads == 2
    assert shift_spans(quantized, RANGES, padded=True, added=True) == [] and len(found) == 3


def _joined(pads: int) -> onnx.ModelProto:
    """Return x through two layers with a Relu, whose Concat a third layer reads, to y."""
    random = np.random.default_rng(5)
    weights = {
        name: (random.standard_normal((n, 3 if n == 4 else 8, 3, 3)) / 5).astype(np.float32)
        for name, n in (("w1", 4), ("w2", 4), ("w3", 6))
    }
    weights |= {"b1": np.full(4, 3, np.float32), "b2": np.ones(4, np.float32), "b3": np.ones(6, np.float32)}
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], "first"),
        helper.make_node("Conv", ["x", "w2", "b2"], ["c2"], "second"),
        helper.make_node("Relu", ["c2"], ["r2"], "relu"),
        helper.make_node("Relu", ["c1"], ["r1"], "rectified"),
        helper.make_node("Concat", ["r1", "r2"], ["k"], "joined", axis=1),
        helper.make_node("Conv", ["k", "w3", "b3"], ["y"], "third", pads=[pads] * 4),
    ]
    size = 2 + 2 * pads
    return build.model(
        nodes, [build.value("x", ["n", 3, 6, 6])], [build.value("y", ["n", 6, size, size])], weights
    )


@pytest.mark.parametrize(("pads", "low"), [(0, 0.0), (1, 0.0), (0, -1.0)])
def test_biases_alone_take_shifts_unless_nodes_may_be_added(pads: int, low: float) -> None:
    """Oracle: zero points. A Relu whose zero is not at the lowest code stays, and needs a Sub."""
    net = _joined(pads)
    data = tunable.samples(net, 8)
    _, quantized = tunable.pair(net, "A8W8", data)
    ranges, nodes = dict.fromkeys(("r1", "r2"), (low, 9.0)), len(quantized.nodes)
    levels = [{}, {"padded": True}, {"padded": True, "added": True}]
    least = 2 if low else pads
    for level, more in enumerate(levels):
        shifted = copy_graph(quantized)
        found = shift_spans(shifted, ranges, **more)
        assert len(found) == (level >= least), level
        if found:
            assert count_added(shifted) == least
            assert len(shifted.nodes) == nodes + (-2, 1, 2)[least]
            error = OutputError(_with_zero_points(quantized, found), data).each(shifted)
            assert np.median(error.errors) < 1e-9


def test_a_tensor_on_two_grids_is_not_shifted_by_its_bias() -> None:
    """The other grid would hold shifted numbers."""
    net = _joined(0)
    data = tunable.samples(net, 8)
    _, quantized = tunable.pair(net, "A8W8", data)
    rounding = next(node for node in quantized.nodes if node.inputs[0].name == "r1")
    coarse = gs.Constant("coarse", np.asarray(4 * load(rounding.inputs[1]), np.float32))
    codes, made = gs.Variable("other_codes", np.int8), gs.Variable("other", np.float32, ["n", 4, 4, 4])
    quantized.nodes += [
        gs.Node("QuantizeLinear", "other", {}, [rounding.inputs[0], coarse, rounding.inputs[2]], [codes]),
        gs.Node("DequantizeLinear", "back", {}, [codes, coarse, rounding.inputs[2]], [made]),
    ]
    quantized.outputs.append(made)
    before = [open_model(copy_graph(quantized)).run(feed)["other"] for feed in data]
    shift_spans(quantized, dict.fromkeys(("r1", "r2"), (0.0, 9.0)), padded=True, added=True)
    after = [open_model(copy_graph(quantized)).run(feed)["other"] for feed in data]
    assert np.array_equal(before, after)


def _classifier(kernel: int = 0) -> onnx.ModelProto:
    """Return x through a layer with a Relu, a mean over positions, all with 0, and a Gemm to y."""
    rows = 8 if kernel in (0, 4) else 32
    random = np.random.default_rng(6)
    weights = {"w1": random.standard_normal((8, 3, 3, 3)) / 5, "w2": random.standard_normal((rows, 5))}
    weights |= {"b1": np.full(8, 1.0), "b2": np.ones(5)}
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], "first"),
        helper.make_node("Relu", ["c1"], ["r1"], "relu"),
        helper.make_node("AveragePool", ["r1"], ["g"], "mean", kernel_shape=[kernel] * 2, strides=[2, 2])
        if kernel
        else helper.make_node("GlobalAveragePool", ["r1"], ["g"], "mean"),
        helper.make_node("Flatten", ["g"], ["f"], "flat"),
        helper.make_node("Gemm", ["f", "w2", "b2"], ["y"], "last"),
    ]
    weights = {name: value.astype(np.float32) for name, value in weights.items()}
    return build.model(nodes, [build.value("x", ["n", 3, 6, 6])], [build.value("y", ["n", 5])], weights)


@pytest.mark.parametrize("kernel", [0, 4])
def test_a_mean_gets_a_sub_that_no_other_tensor_gets(kernel: int) -> None:
    """Oracle: zero points, and the float model. With ``free`` nothing is added."""
    net = _classifier(kernel)
    data = tunable.samples(net, 16)
    float_graph, quantized = tunable.pair(net, "A8W8", data)
    ranges = _ranges(("r1", "g"), net, data)
    shifted = copy_graph(quantized)
    assert shift_spans(shifted, ranges) == []
    found = shift_spans(shifted, ranges, padded=True)
    assert [set(one.names) for one in found] == [{"g", "f"}]
    assert len(shifted.nodes) == len(quantized.nodes) + 1 and count_added(shifted) == 1
    assert shifts_within(shifted).keys() == {"f"}
    judge = OutputError(float_graph, data)
    apart = OutputError(_with_zero_points(quantized, found), data).each(shifted)
    assert apart.relative < 0.1 * judge.each(shifted).relative
    assert judge.each(shifted).relative < judge.each(quantized).relative
    assert OutputError(float_graph, data).each(shift_alike(float_graph, shifted)).relative < 1e-10
    tuned = finetune_model(float_graph, shifted, data, FinetuneOptions())
    assert tuned.after <= tuned.before


def test_a_mean_of_some_positions_gets_no_sub() -> None:
    net = _classifier(kernel=2)
    _, quantized = tunable.pair(net, "A8W8", tunable.samples(net, 4))
    assert shift_spans(copy_graph(quantized), {"g": (0.0, 2.0)}, padded=True) == []
    assert len(shift_spans(quantized, {"g": (0.0, 2.0)}, padded=True, added=True)) == 1


@pytest.mark.parametrize("ranges", [{}, {"c1": (-9.0, 9.0)}, {"x": (-0.1, 9.0)}, {"g": (0.0, 1.0)}])
def test_what_gains_nothing_stays(ranges: Mapping[str, tuple[float, float]]) -> None:
    """No range, one that is as wide on both sides, an input, and a gate."""
    _, quantized = _pair()
    ops = [node.op for node in quantized.nodes]
    assert shift_spans(quantized, ranges, padded=True, added=True) == [] and not recorded_shifts(quantized)
    assert [node.op for node in quantized.nodes] == ops


def test_quantizing_shifts_what_the_outputs_want() -> None:
    """Oracle: the float model; the file records the shifts, and other levels leave them out."""
    errors = {}
    for codes in ("added", "padded", "free", "off"):
        graph = graph_proto.import_model(NET)
        done = quantize_graph(graph, preset("A8W8").with_(all_codes=codes), CalibrationData(DATA))
        errors[codes] = OutputError(graph_proto.import_model(NET), DATA).each(graph).relative
        assert bool(recorded_shifts(graph)) == (codes == "added") and _without_zero_points(graph)
        assert bool(done.shifted) == (codes == "added")
    assert errors["added"] < 0.8 * errors["off"]
    assert errors["padded"] == errors["free"] == errors["off"]


def test_tuning_knows_the_shifts() -> None:
    """Oracle: the float model, whose shifted copy computes the same."""
    float_graph, quantized = _pair()
    shift_spans(quantized, RANGES, padded=True, added=True)
    alike = shift_alike(float_graph, quantized)
    assert OutputError(float_graph, DATA).each(alike).relative < 1e-10
    tuned = finetune_model(float_graph, quantized, DATA, FinetuneOptions())
    assert tuned.after <= tuned.before
