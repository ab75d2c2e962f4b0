"""Tensors after a Relu on the full range of int8. Oracle: the same model with uint8 and zero point 0."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from onnx import helper

from ops.array_types import Feed
from tests.helpers import build, tunable
from tests.helpers.output_error import OutputError
from transforms.finetune.finetune_model import finetune_model
from transforms.finetune.options import FinetuneOptions
from transforms.full_range.recorded_shifts import shifts_within
from transforms.full_range.share_shifts import on_full_range, shift_alike
from transforms.full_range.shift_tensors import count_added, shift_tensors
from transforms.graph.constants import load
from transforms.model.copy_graph import copy_graph
from transforms.model.graph_proto import import_model
from transforms.run.run_model import open_model


def _net(*, padded: bool = False, tiny: bool = False) -> onnx.ModelProto:
    """Return x through Conv, Relu, Conv of 1 x 1, Clip, MaxPool, Conv, Relu, Flatten and Gemm to y."""
    random = np.random.default_rng(3)
    shapes = {
        "w1": (8, 3, 3, 3),
        "w2": (8, 8, 1, 1),
        "w3": (6, 8, 1, 1),
        "w4": (6 * (25 if padded else 9), 5),
    }
    weights = {
        name: (random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)
        for name, shape in shapes.items()
    }
    weights |= {
        f"b{i}": random.standard_normal(n).astype(np.float32)
        for i, n in zip("1234", (8, 8, 6, 5), strict=True)
    }
    if tiny:
        weights["w1"][2], weights["w2"][3], weights["w3"][1] = 1e-9, 1e-9, 1e-9
    weights |= {"low": np.float32(0), "high": np.float32(1.5)}
    pads = [1, 1, 1, 1] if padded else [0, 0, 0, 0]
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], "first"),
        helper.make_node("Relu", ["c1"], ["r1"], "relu1"),
        helper.make_node("Conv", ["r1", "w2", "b2"], ["c2"], "second", pads=pads),
        helper.make_node("Clip", ["c2", "low", "high"], ["r2"], "clip"),
        helper.make_node("MaxPool", ["r2"], ["p"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["p", "w3", "b3"], ["c3"], "third", pads=pads),
        helper.make_node("Relu", ["c3"], ["r3"], "relu3"),
        helper.make_node("Flatten", ["r3"], ["f"], "flatten"),
        helper.make_node("Gemm", ["f", "w4", "b4"], ["y"], "dense"),
    ]
    size = 6 if padded else 8
    ends = build.value("x", ["n", 3, size, size]), build.value("y", ["n", 5])
    return build.model(nodes, [ends[0]], [ends[1]], weights)


NET = _net()
DATA = tunable.samples(NET, 24)
MAKERS = ("c1", "c2", "c3")
CLOSE = 1.2
"""Times the error of the model as it was: most of that is the rounding of its output, which does not change.
A bias or shift that is wrong makes it many times larger."""


def _in_uint8(graph: gs.Graph, makers: dict[str, float]) -> gs.Graph:
    """Return a model whose tensors after some layers are uint8 from 0, in the steps of the full range."""
    result = copy_graph(graph)
    rounded = {}
    for node in result.nodes:
        maker = _maker(node.inputs[0]) if node.op == "QuantizeLinear" else None
        if maker in makers:
            rounded[node.outputs[0].name] = makers[maker]
            node.outputs[0].dtype = np.uint8
    for node in result.nodes:
        shift = rounded.get((node.outputs if node.op == "QuantizeLinear" else node.inputs)[0].name)
        if node.op in ("QuantizeLinear", "DequantizeLinear") and shift:
            step, zero = np.asarray(shift / 128, np.float32), np.zeros((), np.uint8)
            constants = [gs.Constant(f"{node.name}_{i}", value) for i, value in enumerate((step, zero))]
            node.inputs = [node.inputs[0], *constants]
        elif node.op in ("Conv", "Gemm"):  # in float: the runtime takes the scale of an int32 bias as given
            numbers, steps = (load(one).astype(np.float64) for one in node.inputs[2].inputs[0].inputs[:2])
            node.inputs[2] = gs.Constant(f"{node.name}_bias", (numbers * steps).astype(np.float32))
    return result


def _maker(tensor: gs.Tensor) -> str | None:
    """Return the output of the layer that makes a tensor, with no other layer between."""
    while tensor.inputs and tensor.inputs[0].op not in ("Conv", "Gemm"):
        tensor = tensor.inputs[0].inputs[0]
    return str(tensor.name) if tensor.inputs else None


@pytest.mark.parametrize("per_channel", [False, True])
def test_the_model_computes_what_one_with_uint8_does(per_channel: bool) -> None:
    float_graph, quantized = tunable.pair(NET, "A8W8", DATA, per_channel=per_channel, saturation="ignore")
    shifted = copy_graph(quantized)
    shifts = shift_tensors(shifted, MAKERS)
    assert len(shifts) == len(MAKERS)
    assert not any(node.op in ("Relu", "Clip") for node in shifted.nodes)
    for node in shifted.nodes:  # still int8 without zero points
        if node.op == "QuantizeLinear":
            assert load(node.inputs[2]).dtype == np.int8 and not load(node.inputs[2]).any()
    judge = OutputError(float_graph, DATA)
    before, after = judge.each(quantized), judge.each(shifted)
    assert after.relative < before.relative
    apart = OutputError(_in_uint8(quantized, shifts), DATA).each(shifted)
    assert np.median(apart.errors) < 1e-9  # of a few samples one number is rounded the other way
    assert apart.relative < 0.1 * after.relative


def test_dead_channels_get_larger_scales_so_that_biases_fit() -> None:
    """Oracle: the float model; shifts are more than 2**31 steps of a weight of 1e-9."""
    float_graph, quantized = tunable.pair(_net(tiny=True), "A8W8", DATA, per_channel=True)
    shifted = copy_graph(quantized)
    assert len(shift_tensors(shifted, MAKERS)) == len(MAKERS)
    judge = OutputError(float_graph, DATA)
    assert judge.each(shifted).relative < CLOSE * judge.each(quantized).relative


@pytest.mark.parametrize("name", ["XINT8", "U8S8", "A16W8", "W4A8", "BF16", "MX6"])
def test_other_formats_and_powers_of_two_stay(name: str) -> None:
    _, quantized = tunable.pair(NET, name, DATA)
    assert shift_tensors(copy_graph(quantized), MAKERS) == {}


def test_what_a_padded_convolution_reads_stays() -> None:
    model = _net(padded=True)
    _, quantized = tunable.pair(model, "A8W8", tunable.samples(model, 4))
    assert set(shift_tensors(copy_graph(quantized), MAKERS)) == {"c3"}


PADDED = _net(padded=True)
PADDED_DATA = [{"x": abs(feed["x"])} for feed in tunable.samples(PADDED, 24)]


@pytest.mark.parametrize("per_channel", [False, True])
def test_layers_that_pad_read_a_pad_of_the_level_of_zero(per_channel: bool) -> None:
    float_graph, quantized = tunable.pair(PADDED, "A8W8", PADDED_DATA, per_channel=per_channel)
    shifted = copy_graph(quantized)
    shifts = shift_tensors(shifted, MAKERS, padded=True)
    assert len(shifts) == len(MAKERS)
    assert sum(node.op == "Pad" for node in shifted.nodes) == 2
    assert not any(any(node.attrs.get("pads", ())) for node in shifted.nodes if node.op == "Conv")
    after = OutputError(float_graph, PADDED_DATA).each(shifted)
    apart = OutputError(_in_uint8(quantized, shifts), PADDED_DATA).each(shifted)
    assert np.median(apart.errors) < 1e-9  # of a few samples one number is rounded the other way
    assert apart.relative < 0.1 * after.relative


def test_an_input_without_negative_numbers_is_shifted_in_float() -> None:
    float_graph, quantized = tunable.pair(PADDED, "A8W8", PADDED_DATA, saturation="ignore")
    _, shifted, count = on_full_range(float_graph, quantized, padded_for=PADDED_DATA)
    assert count == len(MAKERS) + 1 and [node.op for node in shifted.nodes].count("Sub") == 1
    judge = OutputError(float_graph, PADDED_DATA)
    assert judge.each(shifted).relative < CLOSE * judge.each(quantized).relative
    negative = [*PADDED_DATA[:-1], {"x": -PADDED_DATA[-1]["x"]}]
    _, shifted, count = on_full_range(float_graph, quantized, padded_for=negative)
    assert count == len(MAKERS) and not any(node.op == "Sub" for node in shifted.nodes)


@pytest.mark.parametrize(("wish", "pads"), [("padded", 2), ("free", 0), ("off", 0)])
def test_the_option_says_which_nodes_may_be_added(wish: str, pads: int) -> None:
    float_graph, quantized = tunable.pair(PADDED, "A8W8", PADDED_DATA)
    done = finetune_model(float_graph, quantized, PADDED_DATA, FinetuneOptions(full_range=wish))
    assert done.after < done.before
    assert sum(node.op == "Pad" for node in done.graph.nodes) == pads
    assert done.spread == {"padded": 4, "free": 1, "off": 0}[wish]
    assert done.added == (3 if pads else 0)


def test_a_tensor_that_is_an_output_too_stays() -> None:
    _, quantized = tunable.pair(NET, "A8W8", DATA)
    quantized.outputs.append(next(node for node in quantized.nodes if node.op == "Clip").outputs[0])
    assert "c2" not in shift_tensors(quantized, MAKERS)


def test_the_float_model_computes_the_same_and_stays() -> None:
    float_graph, quantized = tunable.pair(NET, "A8W8", DATA)
    count = len(float_graph.nodes), len(quantized.nodes)
    before = OutputError(float_graph, DATA).each(quantized)
    reference, shifted, spread = on_full_range(float_graph, quantized)
    assert np.array_equal(OutputError(float_graph, DATA).each(quantized).errors, before.errors)
    assert spread == 3 and (len(float_graph.nodes), len(quantized.nodes)) == count
    assert OutputError(float_graph, DATA).each(reference).relative < 1e-10
    assert (
        OutputError(
            reference,
            DATA,
        )
        .each(shifted)
        .relative
        < 0.01
    )
    assert on_full_range(reference, shifted) == (reference, shifted, 0)


def test_tuning_uses_them_and_a_second_tuning_does_no_harm() -> None:
    float_graph, quantized = tunable.pair(NET, "A8W8", DATA)
    done = finetune_model(float_graph, quantized, DATA, FinetuneOptions())
    assert done.attempt is not None and done.spread == 3 and done.after < done.before
    again = finetune_model(float_graph, done.graph, DATA, FinetuneOptions())
    assert again.after <= again.before and again.spread == 0


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


def _highest(net: onnx.ModelProto, name: str, data: list[Feed]) -> float:
    graph = import_model(net)
    graph.outputs = [graph.tensors()[name]]
    model = open_model(graph.cleanup())
    return max(float(model.run(feed)[name].max()) for feed in data)


@pytest.mark.parametrize("kernel", [0, 4])
def test_a_mean_is_shifted_in_float(kernel: int) -> None:
    """Oracle: the float model."""
    net = _classifier(kernel)
    data = tunable.samples(net, 16)
    float_graph, quantized = tunable.pair(net, "A8W8", data, saturation="ignore")
    shifted = copy_graph(quantized)
    assert shift_tensors(shifted, {"g"}, tops={"g": 8 / 7 * _highest(net, "g", data)}).keys() == {"g"}
    assert len(shifted.nodes) == len(quantized.nodes) + 1 and count_added(shifted) == 1
    assert shifts_within(shifted).keys() == {"f"}
    judge = OutputError(float_graph, data)
    assert judge.each(shifted).relative < CLOSE * judge.each(quantized).relative
    assert judge.each(shift_alike(float_graph, shifted)).relative < 1e-10
    tuned = finetune_model(float_graph, shifted, data, FinetuneOptions())
    assert tuned.after <= tuned.before


def test_a_mean_of_some_positions_stays() -> None:
    net = _classifier(kernel=2)
    _, quantized = tunable.pair(net, "A8W8", tunable.samples(net, 4))
    assert shift_tensors(quantized, {"g"}, padded=True) == {}
