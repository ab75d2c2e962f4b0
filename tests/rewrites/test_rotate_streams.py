"""Residual streams that are rotated through all that writes and reads them.

Oracle: the model before, in double precision, in ONNX Runtime or, if it has no kernel, onnx's reference
evaluator. The bound is what outputs change by if weights get noise as large as one rounding to float32.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from transforms.graph.mixed_channels import anew

from tests.helpers import conversion, plans
from tests.helpers.pre_norm import LENGTH, WORDS, pre_norm
from tests.rewrites.test_rotate_channels import UNIT, doubled
from transforms import model_io
from transforms.graph import walk
from transforms.graph.lazy_values import LARGE
from transforms.graph.selection import select
from transforms.model import graph_proto
from transforms.model.copy_graph import copy_graph
from transforms.plan.weight_cache import WeightMemory
from transforms.rotate_channels import rotate_channels

ROUNDINGS = 8  # two of each weight and as many of a bias, and the scatter of a noise that is drawn once


def rotated(model: onnx.ModelProto) -> tuple[onnx.ModelProto, onnx.ModelProto, int]:
    """Return a model as it is loaded, with the stream ``sum`` rotated, and what the rewrite returned."""
    graph = model_io.load(model)
    before = graph_proto.export_model(graph)
    count, changed = conversion.rewritten(graph, lambda graph: rotate_channels(graph, ["sum"]))
    assert count or changed == before
    return before, changed, count


def outputs(model: onnx.ModelProto, seed: int = 3) -> NDArray[np.float64]:
    """Return what a model makes of random input, in double precision."""
    random = np.random.default_rng(seed)
    name, shape = (
        model.graph.input[0].name,
        [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim],
    )
    is_ids = model.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.INT64
    values = random.integers(0, WORDS, shape) if is_ids else random.standard_normal(shape)
    double = doubled(model)
    if any(node.op_type == "Conv" for node in model.graph.node):
        return np.asarray(ReferenceEvaluator(double).run(None, {name: values})[0])
    return next(iter(conversion.run(double, {name: values}).values()))


def noisy(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model in double precision with noise in its weights, of the norm of a rounding to float32."""
    random, found = np.random.default_rng(5), doubled(model)
    for tensor in found.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if values.ndim and values.dtype == np.float64:
            noise = UNIT * np.sqrt(np.mean(values**2)) * random.uniform(-1, 1, values.shape)
            tensor.CopyFrom(numpy_helper.from_array(values + noise, tensor.name))
    return found


def assert_same(before: onnx.ModelProto, changed: onnx.ModelProto) -> None:
    """Compare the outputs of two models, and see that none has other nodes."""
    wanted, found, near = outputs(before), outputs(changed), outputs(noisy(before))
    bound = ROUNDINGS * np.linalg.norm(near - wanted)
    assert 0 < np.linalg.norm(found - wanted) <= bound < 1e-4 * np.linalg.norm(wanted)
    assert [node.op_type for node in before.graph.node] == [node.op_type for node in changed.graph.node]


SETTINGS = pytest.mark.parametrize(("biases", "offset"), [(True, 0.1), (False, 0.1), (True, 0.0)])


@pytest.mark.parametrize("norm", ["LayerNormalization", "parts"])
@SETTINGS
def test_the_model_stays_the_same(norm: str, biases: bool, offset: float) -> None:
    before, changed, count = rotated(pre_norm(norm, factor=20, biases=biases, offset=offset))
    assert count == 1
    assert_same(before, changed)


@SETTINGS
def test_root_mean_squares_stay_the_same(biases: bool, offset: float) -> None:
    """RMSNormalization has no kernel for double precision. In float32, sums of up to 64 products in 12 layers
    one after the other: 64 * 12 UNIT, or 5e-5, of the outputs at most.
    """
    before, changed, count = rotated(pre_norm("RMSNormalization", factor=20, biases=biases, offset=offset))
    ids = np.random.default_rng(3).integers(0, WORDS, (1, LENGTH))
    wanted, found = (conversion.run(model, {"ids": ids})["logits"] for model in (before, changed))
    assert count == 1
    assert np.linalg.norm(found - wanted) <= 64 * 12 * UNIT * np.linalg.norm(wanted)


def test_channels_are_alike_after_it() -> None:
    """Three channels are 20 times the others."""
    ratios = []
    for model in rotated(pre_norm(factor=20))[:2]:
        name = next(node.input[0] for node in model.graph.node if node.op_type == "LayerNormalization")
        model.graph.output.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
        ids = np.random.default_rng(1).integers(0, WORDS, (1, LENGTH))
        peaks = np.abs(conversion.run(model, {"ids": ids})[name]).max((0, 1))
        ratios.append(float(peaks.max() / np.median(peaks)))
    assert ratios[0] > 15
    assert ratios[1] < 3


SCALE = np.linspace(0.5, 2, 8, dtype=np.float32)
WEIGHTS: plans.Weights = {
    **{
        "w": (12, 8),
        "v": (8, 8),
        "g": SCALE,
        "a": (8,),
        "g2": SCALE[::-1].copy(),
        "a2": (8,),
        "h": (8, 4),
        "far": np.float32([40] * 8),
    },
    **{
        "f": (8, 3, 2, 2),
        "fb": (8,),
        "cls": (1, 1, 8),
        "places": (6, 8),
        "t": (8, 8),
        "tb": (8,),
        "two": np.float32(2),
        "gg": (5, 8),
        "aa": (5, 8),
    },
    **{
        "flat": np.int64([2, 8, 9]),
        "first": np.int64(0),
        "one": np.int64([1]),
        "zero": np.int64([0]),
        "six": np.int64([6]),
        "minus": np.int64([-1]),
    },
}
HEAD = "(float[2,5,12] x) => (float[2,5,4] y) {{ {} }}"
WRITES = "sum = MatMul(x, w) "
BLOCK = "n = LayerNormalization<axis = -1>(sum, g, a) m = MatMul(n, v) r = Add(sum, m) "
READS = "k = LayerNormalization<axis = 2>(r, g2, a2) y = MatMul(k, h)"
PLAIN = HEAD.format(WRITES + BLOCK + READS)
TAKES = {
    "plain": PLAIN,
    "rows multiplied by a number, and left out": """(float[2,5,12] x) => (float[2,4] y) {
        u = MatMul(x, w) sum = Mul(u, two) n = LayerNormalization<axis = -1>(sum, g, a) m = MatMul(n, v)
        r = Sub(sum, m) q = Gather<axis = 1>(r, first) k = LayerNormalization<axis = -1>(q, g2, a2)
        y = MatMul(k, h) }""",
    "means of rows after the norm": """(float[2,5,12] x) => (float[2,4] y) {
        sum = MatMul(x, w) n = LayerNormalization<axis = -1>(sum, g, a) m = MatMul(n, v) r = Add(m, sum)
        k = LayerNormalization<axis = -1>(r, g2, a2) p = ReduceMean<keepdims = 0>(k, one)
        y = MatMul(p, h) }""",
    "patches of an image": """(float[2,3,6,6] x) => (float[2,4] y) {
        c = Conv<strides = [2, 2]>(x, f, fb) d = Reshape(c, flat) e = Transpose<perm = [0, 2, 1]>(d)
        o = Slice(e, zero, six, one) sum = Add(o, places) n = LayerNormalization<axis = -1>(sum, g, a)
        m = MatMul(n, v) b = Add(m, tb) r = Add(sum, b) q = Gather<axis = 1>(r, first)
        k = LayerNormalization<axis = -1>(q, g2, a2) y = MatMul(k, h) }""",
    "root mean squares in parts": HEAD.format(
        WRITES
        + """s2 = Mul(sum, sum) me = ReduceMean(s2, minus) ro = Sqrt(me) d = Div(sum, ro) n = Mul(g, d)
        m = MatMul(n, v) r = Add(sum, m) y = MatMul(r, h)"""
    ),
}
LEAVES = {
    "an output": PLAIN.replace("y) {", "y, float[2,5,8] r) {"),
    "a norm that is an output": PLAIN.replace("y) {", "y, float[2,5,8] n) {"),
    "the input": HEAD.format("sum = Identity(x8) " + BLOCK + READS).replace(
        "float[2,5,12] x", "float[2,5,8] x8"
    ),
    "a curve": HEAD.format(WRITES + "z = Relu(sum) " + BLOCK.replace("Add(sum, m)", "Add(z, m)") + READS),
    "a norm that is added": HEAD.format(WRITES + BLOCK.replace("Add(sum, m)", "Add(n, m)") + READS),
    "a norm with a curve": HEAD.format(
        WRITES
        + "n = LayerNormalization<axis = -1>(sum, g, a) q = Relu(n) m = MatMul(q, v) r = Add(sum, m) "
        + READS
    ),
    "a shared weight": HEAD.format(
        WRITES + BLOCK + "m2 = MatMul(r, v) r2 = Add(r, m2) " + READS.replace("(r,", "(r2,")
    ),
    "a weight that is computed": HEAD.format("w2 = Tanh(w) sum = MatMul(x, w2) " + BLOCK + READS),
    "an offset without a place": PLAIN.replace("(sum, g, a)", "(sum, g, far)"),
    "means of channels": HEAD.format(
        WRITES
        + "z = ReduceMean(sum, minus) "
        + BLOCK.replace("r = Add(sum, m)", "r2 = Add(sum, m) r = Add(r2, z)")
        + READS
    ),
    "norms of rows and channels": HEAD.format(
        WRITES + BLOCK.replace("axis = -1", "axis = 1").replace("g, a", "gg, aa") + "y = MatMul(r, h)"
    ),
}


@pytest.mark.parametrize("text", TAKES.values(), ids=TAKES.keys())
def test_streams_of_other_kinds_stay_the_same(text: str) -> None:
    before, changed, count = rotated(plans.model(text, WEIGHTS))
    assert count == 1
    assert_same(before, changed)


@pytest.mark.parametrize("text", LEAVES.values(), ids=LEAVES.keys())
def test_a_stream_is_not_touched(text: str) -> None:
    assert rotated(plans.model(text, WEIGHTS))[2] == 0


def test_excluded_nodes_stay() -> None:
    graph = model_io.load(plans.model(PLAIN, WEIGHTS))
    assert rotate_channels(graph, ["sum"], exclude=select(graph, op_types=["Add"])) == 0
    assert rotate_channels(graph, ["sum", "none"]) == 1


def test_a_vector_that_others_read_is_copied() -> None:
    """One offset for two layers and two norms, as exporters write them."""
    text = """(float[5,12] x) => (float[5,4] y) {
        sum = Gemm(x, w, a) n = LayerNormalization<axis = -1>(sum, g, a) m = Gemm(n, v, a) r = Add(sum, m)
        k = LayerNormalization<axis = -1>(r, g, a) y = MatMul(k, h) }"""
    before, changed, count = rotated(plans.model(text, WEIGHTS))
    assert count == 1
    assert_same(before, changed)


@pytest.mark.parametrize("norm", ["LayerNormalization", "parts"])
def test_copies_share_rotated_weights(norm: str) -> None:
    """Oracle: the same graph, of which nothing is remembered."""
    graph = model_io.load(pre_norm(norm, width=192, factor=8.0))
    copies = [copy_graph(graph) for _ in range(3)]
    memory = WeightMemory()
    for copy, recall in zip(copies, (memory.recall, memory.recall, anew), strict=True):
        assert rotate_channels(copy, ["sum"], recall=recall) == 1
    wanted = graph_proto.export_model(copies[2])
    assert [graph_proto.export_model(copy) == wanted for copy in copies] == [True] * 3
    large = [
        [tensor._values for tensor in walk.constants(copy) if tensor._values.nbytes >= LARGE]
        for copy in copies
    ]
    assert len(large[0]) > 8
    assert all(one is other for one, other in zip(*large[:2], strict=True))
