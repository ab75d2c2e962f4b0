"""Oracles: the float model in ONNX Runtime without graph optimizations, whose outputs stay the same bit for
bit (factors that are powers of two commute with rounding, barring underflow and overflow), and ranges of
weights taken with NumPy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper

import ops
from tests.helpers import build, conversion, real_models
from transforms import model_io
from transforms.balance_channels import balance_channels
from transforms.conversion.standard_form import standardize
from transforms.graph import walk
from transforms.graph.selection import Selection, select
from transforms.model import graph_proto

Weights = dict[str, NDArray]
Shape = tuple[int | str, ...]

IMAGE = (2, 8, 6, 6)
WIDE = np.float32(2) ** np.arange(-8, 8, 2, dtype=np.float32)
"""Eight sizes of channels: the largest is 2^14 times the smallest."""


def weight(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    """Return random weights between 1 and 2, or minus that: all channels have about the same range."""
    random = np.random.default_rng(seed)
    return (random.uniform(1, 2, shape) * random.choice([-1, 1], shape)).astype(np.float32)


def one_node(
    op: str, weights: Weights, shape: Shape, *, inputs: str = "x w", **attributes: Any
) -> onnx.ModelProto:
    """Return a model of one node ``product`` from ``x`` to ``y``."""
    node = helper.make_node(op, inputs.split(), ["y"], "product", **attributes)
    initializers = [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(
        [node], "graph", [build.value("x", shape)], [build.value("y", None)], initializers
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model, strict_mode=True)


def balance(
    source: onnx.ModelProto, *, feeds: dict[str, NDArray] | None = None, **options: Any
) -> tuple[int, onnx.ModelProto]:
    """Balance twice; assert that only the first changes anything, and no output; return what it became."""
    graph = model_io.load(source)
    count, changed = conversion.rewritten(graph, lambda graph: balance_channels(graph, **options))
    (x,) = source.graph.input
    shape = [d.dim_value or 2 for d in x.type.tensor_type.shape.dim]
    feeds = feeds or {x.name: np.random.default_rng(7).standard_normal(shape).astype(np.float32)}
    before = conversion.run(source, feeds)
    assert conversion.same(before, conversion.run(changed, feeds))
    assert all(np.isfinite(value).all() and value.any() for value in before.values())
    return count, changed


def arrays(model: onnx.ModelProto) -> Weights:
    """Return the initializers of the main graph."""
    return {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}


def ranges(array: NDArray, axis: int) -> NDArray:
    """Return the largest magnitude along an axis."""
    return np.abs(np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)).max(axis=1)


def depthwise(sizes: NDArray, multiplier: int = 1, taps: tuple[int, ...] = (3, 3)) -> NDArray[np.float32]:
    """Return the weight of a depthwise convolution whose input channels have the sizes given."""
    made = weight(len(sizes) * multiplier, 1, *taps)
    made[:, :, 0] = 2
    return (made * np.repeat(sizes, multiplier).reshape(-1, *[1] * (len(taps) + 1))).astype(np.float32)


@pytest.mark.parametrize("multiplier", (1, 3))
@pytest.mark.parametrize(
    ("taps", "shape"), (((3, 3), IMAGE), ((3,), (2, 8, 6)), ((2, 2, 2), (1, 8, 3, 3, 3)))
)
def test_depthwise_channels_come_to_one_range(
    taps: tuple[int, ...], shape: tuple[int, ...], multiplier: int
) -> None:
    source = one_node("Conv", {"w": depthwise(WIDE, multiplier, taps)}, shape, group=8)
    count, changed = balance(source)
    assert count == 1
    mul, conv = changed.graph.node
    after = arrays(changed)
    assert (mul.op_type, list(mul.input), list(mul.output)) == ("Mul", ["x", "x_balance"], ["x_balanced"])
    assert list(conv.input) == ["x_balanced", "w"]
    assert after["x_balance"].shape == (1, 8, *[1] * len(taps))
    assert after["x_balance"].dtype == np.float32
    assert np.array_equal(np.log2(after["x_balance"].ravel()), np.arange(-7, 9, 2))
    assert np.array_equal(ranges(after["w"].reshape(8, multiplier, *taps), 0), [1] * 8)


@pytest.mark.parametrize(("ratio", "count"), ((63.9, 0), (64, 1)))
def test_depthwise_channels_that_differ_little_stay(ratio: float, count: int) -> None:
    sizes = np.ones(8, np.float32)
    sizes[3] = ratio
    source = one_node("Conv", {"w": depthwise(sizes)}, IMAGE, group=8)
    found, changed = balance(source)
    assert found == count
    assert len(changed.graph.node) == 1 + count
    if count:
        assert np.array_equal(arrays(changed)["x_balance"].ravel(), [0.5, 0.5, 0.5, 32, *[0.5] * 4])


def test_the_geometric_mean_stays() -> None:
    """What is left of any ranges is within a factor of sqrt(2) of it."""
    sizes = np.array([3, 5, 0.1, 7, 900, 11, 0.2, 130], np.float32)
    values = depthwise(sizes)
    _, changed = balance(one_node("Conv", {"w": values}, IMAGE, group=8))
    after = np.log2(ranges(arrays(changed)["w"], 0))
    mean = np.log2(ranges(values, 0)).mean()
    assert (np.abs(after - mean) <= 0.5).all()


def test_channels_without_weight_stay() -> None:
    """No weight at all, or weights from which factors could lead out of the range of float32."""
    sizes = WIDE.copy()
    sizes[:3] = 0, 1e-30, 1e30
    source = one_node("Conv", {"w": depthwise(sizes)}, IMAGE, group=8)
    count, changed = balance(source)
    assert count == 1
    factors = arrays(changed)["x_balance"].ravel()
    assert np.array_equal(factors[:3], [1, 1, 1])
    assert np.array_equal(np.log2(factors[3:]), [-4, -2, 0, 2, 4])
    assert np.array_equal(arrays(changed)["w"][:3], depthwise(sizes)[:3])


def test_weights_that_are_all_zero_stay() -> None:
    weights = {"w": depthwise(WIDE) * 0, "b": np.ones(8, np.float32)}
    assert balance(one_node("Conv", weights, IMAGE, inputs="x w b", group=8))[0] == 0


def outlying(size: float, *shape: int, axis: int) -> NDArray[np.float32]:
    """Return a weight of ranges 1 but for the second row along an axis."""
    made = np.clip(weight(*shape), -1, 1)
    np.moveaxis(made, axis, 0)[1] *= np.float32(size)
    return made


PRODUCTS: dict[str, tuple[str, NDArray[np.float32], Shape, dict[str, Any], tuple[int, ...]]] = {
    "rows": ("MatMul", outlying(100, 6, 4, axis=0), (5, 6), {}, (1, 6)),
    "batches": ("MatMul", outlying(100, 6, 4, axis=0), (2, "n", 5, 6), {}, (1, 1, 1, 6)),
    "vector": ("MatMul", outlying(100, 6, 4, axis=0), (6,), {}, (6,)),
    "matrices": ("MatMul", outlying(100, 3, 6, 4, axis=1), (3, 5, 6), {}, (1, 1, 6)),
    "gemm": ("Gemm", outlying(100, 6, 4, axis=0), (5, 6), {"alpha": 0.5}, (1, 6)),
    "gemm, B transposed": ("Gemm", outlying(100, 4, 6, axis=1), (5, 6), {"transB": 1}, (1, 6)),
    "gemm, A transposed": ("Gemm", outlying(100, 6, 4, axis=0), (6, 5), {"transA": 1}, (6, 1)),
    "gemm, both": ("Gemm", outlying(100, 4, 6, axis=1), (6, 5), {"transA": 1, "transB": 1}, (6, 1)),
    "convolution": ("Conv", outlying(100, 4, 6, 3, 3, axis=1), (2, 6, 5, 5), {}, (1, 6, 1, 1)),
    "pointwise": ("Conv", outlying(100, 4, 6, 1, axis=1), (2, 6, 5), {"group": 1}, (1, 6, 1)),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_rows_that_stand_out_come_down(name: str) -> None:
    """From 100 times the median to 100 / 16, next to 8 times."""
    op, values, shape, attributes, factors_shape = PRODUCTS[name]
    source = one_node(op, {"w": values}, shape, **attributes)
    count, changed = balance(source, outliers=True)
    assert count == 1
    after = arrays(changed)
    assert after["x_balance"].shape == factors_shape
    assert np.array_equal(after["x_balance"].ravel(), [1, 16, 1, 1, 1, 1])
    moved = values / after["w"]
    assert np.array_equal(np.unique(moved), [1, 16])
    assert (moved == 16).sum() * 6 == moved.size
    assert balance(source)[0] == 0


@pytest.mark.parametrize(("size", "factor"), ((16, 1), (16.01, 2), (22, 2), (23, 4), (2000, 256)))
def test_rows_that_stand_out_little_stay(size: float, factor: int) -> None:
    source = one_node("MatMul", {"w": outlying(size, 6, 4, axis=0)}, (5, 6))
    count, changed = balance(source, outliers=True)
    assert count == (factor > 1)
    if count:
        assert np.array_equal(arrays(changed)["x_balance"].ravel(), [1, factor, 1, 1, 1, 1])


def test_rows_without_weight_do_not_count_for_the_median() -> None:
    values = outlying(100, 6, 4, axis=0)
    values[2:] = 0
    two_rows = one_node("MatMul", {"w": values}, (5, 6))
    assert balance(two_rows, outliers=True)[0] == 0  # 1 and 100: the median is between
    values[5] = 1
    count, changed = balance(one_node("MatMul", {"w": values}, (5, 6)), outliers=True)
    assert count == 1
    assert np.array_equal(arrays(changed)["x_balance"].ravel(), [1, 16, 1, 1, 1, 1])


def test_an_input_of_unknown_rank() -> None:
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["r"]),
        helper.make_node("MatMul", ["r", "w"], ["m"]),
        helper.make_node("Relu", ["m"], ["y"]),
    ]
    rough = helper.make_graph(
        nodes,
        "graph",
        [build.value("x", (2, 18)), build.value("shape", ("n",), np.int64)],
        [build.value("y", None)],
        [onnx.numpy_helper.from_array(outlying(100, 6, 4, axis=0), "w")],
    )
    source = helper.make_model(rough, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    graph = model_io.load(source)
    assert balance_channels(graph, outliers=True) == 1
    changed = graph_proto.export_model(graph)
    assert arrays(changed)["r_balance"].shape == (6,)
    x = np.random.default_rng(0).standard_normal((2, 18)).astype(np.float32)
    for shape in ([2, 3, 6], [6, 6]):
        feeds: dict[str, NDArray] = {"x": x, "shape": np.array(shape)}
        assert conversion.same(conversion.run(source, feeds), conversion.run(changed, feeds))


REFUSED: dict[str, onnx.ModelProto] = {
    "groups of two": one_node("Conv", {"w": outlying(500, 4, 2, 3, 3, axis=0)}, IMAGE, group=4),
    "a weight on the left": one_node("MatMul", {"w": outlying(500, 4, 6, axis=1)}, (6, 5), inputs="w x"),
    "a vector": one_node("MatMul", {"w": outlying(500, 6, axis=0)}, (5, 6)),
    "doubles": build.model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        [build.value("x", (5, 6), np.float64)],
        [build.value("y", (5, 4), np.float64)],
        {"w": outlying(500, 6, 4, axis=0).astype(np.float64)},
    ),
    "transposed convolution": one_node("ConvTranspose", {"w": outlying(500, 8, 4, 3, 3, axis=0)}, IMAGE),
    "computed": build.model(
        [helper.make_node("Neg", ["w"], ["n"]), helper.make_node("MatMul", ["x", "n"], ["y"])],
        [build.value("x", (5, 6))],
        [build.value("y", (5, 4))],
        {"w": outlying(500, 6, 4, axis=0)},
    ),
    "no numbers": build.model(
        [
            helper.make_node("MatMul", ["x", "w"], ["m"]),
            helper.make_node("Concat", ["m", "x"], ["y"], axis=1),
        ],
        [build.value("x", (5, 6))],
        [build.value("y", (5, 6))],
        {"w": np.zeros((6, 0), np.float32)},
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_leaves_alone(name: str) -> None:
    source = REFUSED[name]
    dtype = helper.tensor_dtype_to_np_dtype(source.graph.input[0].type.tensor_type.elem_type)
    shape = [d.dim_value for d in source.graph.input[0].type.tensor_type.shape.dim]
    count, changed = balance(source, outliers=True, feeds={"x": np.ones(shape, dtype)})
    assert count == 0
    assert [node.op_type for node in changed.graph.node] == [node.op_type for node in source.graph.node]


def test_leaves_weights_that_can_be_overridden_alone() -> None:
    graph = model_io.load(one_node("MatMul", {"w": outlying(100, 6, 4, axis=0)}, (5, 6)))
    (weight_tensor,) = walk.constants(graph)
    graph.inputs.append(weight_tensor)
    assert balance_channels(graph, outliers=True) == 0
    graph.inputs.pop()
    assert balance_channels(graph, outliers=True) == 1


def test_leaves_foreign_operators_alone() -> None:
    graph = model_io.load(one_node("MatMul", {"w": outlying(100, 6, 4, axis=0)}, (5, 6)))
    graph.nodes[0].domain = "example.org"
    assert balance_channels(graph, outliers=True) == 0


def test_options_choose_the_rules() -> None:
    source = mixed()
    assert balance(source)[0] == 1
    assert balance(source, outliers=True)[0] == 2
    assert balance(source, outliers=True, depthwise=False)[0] == 1
    assert balance(source, depthwise=False)[0] == 0


def mixed() -> onnx.ModelProto:
    """Return a model of one node for each rule: a separable convolution."""
    nodes = [
        helper.make_node("Conv", ["x", "depth"], ["a"], "first", group=8),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "point"], ["y"], "second"),
    ]
    weights: Weights = {"depth": depthwise(WIDE), "point": outlying(100, 4, 8, 1, 1, axis=1)}
    return build.model(nodes, [build.value("x", IMAGE)], [build.value("y", (2, 4, 4, 4))], weights)


@pytest.mark.parametrize(("excluded", "left"), (("first", "second"), ("second", "first")))
def test_excluded_nodes_are_left_alone(excluded: str, left: str) -> None:
    graph = model_io.load(mixed())
    chosen = select(graph, names=[excluded])
    assert balance_channels(graph, outliers=True, exclude=chosen) == 1
    place = [node.name for node in graph.nodes].index(left)
    assert graph.nodes[place - 1].op == "Mul"
    assert [node.op for node in graph.nodes].count("Mul") == 1


def test_each_reader_gets_its_own_factors() -> None:
    """Two products of one input and one weight, which the model also shows, and a third reader of it."""
    values = outlying(100, 6, 6, axis=0)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("MatMul", ["x", "w"], ["b"]),
        helper.make_node("Add", ["a", "w"], ["c"]),
        helper.make_node("Sub", ["c", "b"], ["y"]),
    ]
    ends = [build.value("x", (6, 6))], [build.value("y", (6, 6)), build.value("w", (6, 6))]
    source = build.model(nodes, *ends, {"w": values})
    count, changed = balance(source, outliers=True)
    assert count == 2
    after = arrays(changed)
    assert np.array_equal(after["w"], values)
    assert ranges(after["w_balanced"], 0)[1] == ranges(values, 0)[1] / 16
    assert [node.op_type for node in changed.graph.node] == ["Mul", "MatMul", "Mul", "MatMul", "Add", "Sub"]
    assert [list(node.input) for node in changed.graph.node[:4]] == [
        ["x", "x_balance"],
        ["x_balanced", "w_balanced"],
        ["x", "x_balance_2"],
        ["x_balanced_2", "w_balanced_2"],
    ]


def test_a_weight_that_is_an_output_stays() -> None:
    values = outlying(100, 6, 4, axis=0)
    ends = [build.value("x", (5, 6))], [build.value("y", (5, 4)), build.value("w", (6, 4))]
    source = build.model([helper.make_node("MatMul", ["x", "w"], ["y"])], *ends, {"w": values})
    count, changed = balance(source, outliers=True)
    assert count == 1
    assert np.array_equal(arrays(changed)["w"], values)
    assert list(changed.graph.node[1].input) == ["x_balanced", "w_balanced"]


def test_in_bodies() -> None:
    """Of an If: the input comes from outside, the weight of one branch from outside as well."""
    branches = {}
    for name, weights in (("then_branch", {}), ("else_branch", {"own": outlying(200, 6, 4, axis=0)})):
        node = helper.make_node("MatMul", ["x", *(weights or ["w"])], [f"{name}_y"])
        initializers = [onnx.numpy_helper.from_array(array, key) for key, array in weights.items()]
        branches[name] = helper.make_graph([node], name, [], [build.value(f"{name}_y", (5, 4))], initializers)
    choose = helper.make_node("If", ["c"], ["y"], **branches)
    for chosen in (True, False):
        source = build.model(
            [choose],
            [build.value("x", (5, 6))],
            [build.value("y", (5, 4))],
            {"c": np.array(chosen), "w": outlying(100, 6, 4, axis=0)},
        )
        count, changed = balance(source, outliers=True)
        assert count == 2
        (node,) = changed.graph.node
        bodies = [attribute.g for attribute in node.attribute]
        assert [[n.op_type for n in body.node] for body in bodies] == [["Mul", "MatMul"]] * 2
        made = [output for body in bodies for n in body.node for output in n.output]
        assert len(set(made)) == 4


def test_a_loop_that_reads_a_weight_from_outside() -> None:
    """The weight is read once in the body and once outside: the two get different tensors."""
    values = outlying(100, 6, 6, axis=0) / 100
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["state", "w"], ["next"]),
            helper.make_node("Identity", ["going"], ["still"]),
        ],
        "body",
        [build.value("i", (), np.int64), build.value("going", (), np.bool_), build.value("state", (5, 6))],
        [build.value("still", (), np.bool_), build.value("next", (5, 6))],
    )
    nodes = [
        helper.make_node("Loop", ["three", "", "x"], ["z"], body=body),
        helper.make_node("MatMul", ["z", "w"], ["y"]),
    ]
    source = build.model(
        nodes, [build.value("x", (5, 6))], [build.value("y", (5, 6))], {"three": np.array(3), "w": values}
    )
    count, changed = balance(source, outliers=True)
    assert count == 2
    assert [node.op_type for node in changed.graph.node] == ["Loop", "Mul", "MatMul"]


def snr_of_blocks(values: NDArray, feed: NDArray) -> float:
    """Return the SNR in dB of the worst channel of a depthwise convolution of MXINT8 blocks."""
    rounded = ops.quantize_dequantize(values, "mxint8", 0), ops.quantize_dequantize(feed, "mxint8", 1)
    exact, coarse = (
        conversion.run(one_node("Conv", {"w": w}, feed.shape, group=len(w)), {"x": x})["y"]
        for w, x in ((values, feed), rounded)
    )
    noise = np.square(exact - coarse).sum(axis=(0, 2, 3)) / np.square(exact).sum(axis=(0, 2, 3))
    return float(-10 * np.log10(noise.max()))


def test_small_channels_of_blocks_gain_by_it() -> None:
    """Of inputs that are as small where weights are large, as trained. Seen: 0 dB and 42 dB."""
    values = depthwise(WIDE)
    feed = np.random.default_rng(0).standard_normal(IMAGE).astype(np.float32) / WIDE.reshape(-1, 1, 1)
    _, changed = balance(one_node("Conv", {"w": values}, IMAGE, group=8))
    after = arrays(changed)
    assert snr_of_blocks(values, feed) < 10
    assert snr_of_blocks(after["w"], feed * after["x_balance"]) > 30


@pytest.mark.skipif(not real_models.NAMES, reason="the real models are not there")
@pytest.mark.parametrize(
    ("name", "depthwise_count", "outliers_count"),
    (
        ("yolox_nano_ext", 4, 0),
        ("ppocrv3_det_en", 10, 0),
        ("minilm_l6_op13", 0, 4),
        ("mobilenet_v1_025", 6, 0),
    ),
)
@pytest.mark.heavy
def test_real_models_stay_what_they_are(name: str, depthwise_count: int, outliers_count: int) -> None:
    graph = model_io.load(real_models.MODELS / name / "model.onnx")
    standardize(graph, Selection())
    before = real_models.first_outputs(graph_proto.export_model(graph).SerializeToString(), name)
    assert balance_channels(graph) == depthwise_count
    assert balance_channels(graph, outliers=True) == outliers_count
    assert balance_channels(graph, outliers=True) == 0
    after = real_models.first_outputs(graph_proto.export_model(graph).SerializeToString(), name)
    assert conversion.same(before, after)
