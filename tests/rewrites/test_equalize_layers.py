"""Oracles: the float model in ONNX Runtime, whose outputs stay the same bit for bit (powers of two round
nothing), and largest weights taken with NumPy.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper

import ops
from tests.helpers import build, conversion, real_models
from transforms import model_io
from transforms.conversion.standard_form import standardize
from transforms.equalize_layers import equalize_layers
from transforms.graph import walk
from transforms.graph.selection import Selection, select
from transforms.model import graph_proto

Weights = dict[str, NDArray[np.float32]]
Nodes = list[tuple[Any, ...]]

RELU = ("Relu", "a", "b")
CONV1 = ("Conv", "x w1 b1", "a")
CONV2 = ("Conv", "b w2", "y")
IMAGE, ROWS = (2, 3, 10, 10), (5, 3)


def spread(shape: tuple[int, ...], axis: int, seed: int) -> NDArray[np.float32]:
    """Return random weights whose channels along an axis differ by up to a million."""
    random = np.random.default_rng(seed)
    along = [1] * len(shape)
    along[axis] = shape[axis]
    size = 10.0 ** random.uniform(-3, 3, shape[axis])
    return (random.standard_normal(shape) * size.reshape(along)).astype(np.float32)


def model(nodes: Nodes, weights: Weights, shape: tuple[int, ...] = IMAGE) -> onnx.ModelProto:
    """Return a model from ``x`` to ``y`` of nodes ``(operator, inputs, output, attributes)``."""
    made = []
    for op, names, output, *attributes in nodes:
        inputs = ["" if name == "_" else name for name in names.split()]
        made.append(helper.make_node(op, inputs, [output], f"{output}_node", **dict(*attributes)))
    rough = helper.make_model(
        helper.make_graph(
            made,
            "graph",
            [build.value("x", shape)],
            [build.value("y", None)],
            [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    return onnx.shape_inference.infer_shapes(rough, strict_mode=True)


def equalize(source: onnx.ModelProto, **options: Any) -> tuple[int, Weights]:
    """Equalize twice; assert that only the first changes anything, and no output; return the weights."""
    graph = model_io.load(source)
    count = equalize_layers(graph, **options)
    assert equalize_layers(graph, **options) == 0
    changed = graph_proto.export_model(graph)
    onnx.checker.check_model(changed, full_check=True)
    (x,) = source.graph.input
    shape = [d.dim_value or 2 for d in x.type.tensor_type.shape.dim]
    feeds = {x.name: np.random.default_rng(7).standard_normal(shape).astype(np.float32)}
    before = conversion.run(source, feeds)
    assert conversion.same(before, conversion.run(changed, feeds))
    assert all(np.isfinite(value).all() for value in before.values())
    return count, {t.name: onnx.numpy_helper.to_array(t) for t in changed.graph.initializer}


def imbalance(made: NDArray[np.float32], read: NDArray[np.float32]) -> float:
    """Return by how many powers of two the ratios of the channels' ranges are at most away from the middle.

    Both arrays are ``[channels, ...]``.
    """
    first, second = (np.abs(w.reshape(len(w), -1)).max(axis=1).astype(np.float64) for w in (made, read))
    return float(np.ptp(np.log2(first / second))) / 2


CONVS: Weights = {
    "w1": spread((8, 3, 3, 3), 0, 1),
    "b1": np.zeros(8, np.float32),
    "w2": spread((4, 8, 3, 3), 1, 2),
}


@pytest.mark.parametrize(
    "between",
    (
        [("Identity", "a", "b")],
        [("Relu", "a", "b")],
        [("LeakyRelu", "a", "b", {"alpha": 0.2})],
        [("PRelu", "a slope", "b")],
        [("Relu", "a", "r"), ("MaxPool", "r", "b", {"kernel_shape": [2, 2]})],
        [("AveragePool", "a", "r", {"kernel_shape": [3, 3]}), ("Relu", "r", "b")],
        [("Add", "a offset", "s"), ("Relu", "s", "b")],
        [("Add", "offset a", "s"), ("Relu", "s", "b")],
        [("Relu", "a", "r"), ("Min", "r six", "b")],
        [("Max", "a bounds", "b")],
    ),
    ids=("identity", "relu", "leaky", "prelu", "max", "average", "add", "add left", "min", "bounds"),
)
def test_convolutions_become_alike(between: Nodes) -> None:
    extra: Weights = {
        "slope": np.array([[[0.1]], [[-3]], [[2]], [[1]], [[0]], [[0.5]], [[7]], [[0.3]]], np.float32),
        "offset": np.full((8, 1, 1), 1e-9, np.float32),
        "six": np.array(6, np.float32),
        "bounds": np.arange(8, dtype=np.float32).reshape(1, 8, 1, 1),
    }
    used = {name for node in between for name in node[1].split()}
    weights = {**CONVS, **{name: array for name, array in extra.items() if name in used}}
    limited = "offset" in used
    count, after = equalize(model([CONV1, *between, CONV2], weights))
    assert count == 1
    if not limited:
        assert imbalance(CONVS["w1"], CONVS["w2"].swapaxes(0, 1)) > 10
        assert imbalance(after["w1"], after["w2"].swapaxes(0, 1)) <= 1


def test_channels_that_are_all_alike_stay() -> None:
    """However much smaller one layer is: in itself it is as even as the other."""
    ones = np.ones((8, 1, 1, 1), np.float32)
    weights = {"w1": CONVS["w1"], "b1": CONVS["b1"], "w2": CONVS["w2"]}
    weights["w1"] = CONVS["w1"] / np.abs(CONVS["w1"]).max(axis=(1, 2, 3), keepdims=True) * ones / 1000
    weights["w2"] = CONVS["w2"] / np.abs(CONVS["w2"]).max(axis=(0, 2, 3), keepdims=True)
    assert equalize(model([CONV1, RELU, CONV2], weights))[0] == 0


@pytest.mark.parametrize(("factor", "shift"), ((1.99, 0), (2.01, 1), (0.49, -1), (7.9, 1), (8.1, 2)))
def test_one_channel_comes_near_the_others(factor: float, shift: int) -> None:
    """The others have the median ratio, and stay: twice as much is near, eight times is halved twice."""
    made, read = np.ones((3, 5), np.float32), np.full((5, 4), 32, np.float32)
    made[:, 2] = factor
    made[:, 4] = 8  # by this the pair is taken up whatever the factor is
    nodes = [("MatMul", "x w1", "a"), RELU, ("MatMul", "b w2", "y")]
    count, after = equalize(model(nodes, {"w1": made, "w2": read}, ROWS))
    assert count == 1
    assert np.array_equal(np.log2(after["w2"] / read)[:, 0], [0, 0, shift, 0, 2])


def test_offsets_of_the_largest_kind_only_shrink() -> None:
    """Where all biases are alike no channel may grow: those above the median shrink, those below stay."""
    made = np.ldexp(np.ones((3, 6), np.float32), [-9, -6, -3, 0, 0, 9])
    weights = {"w1": made, "b1": np.ones(6, np.float32), "w2": np.ones((6, 4), np.float32)}
    nodes = [("Gemm", "x w1 b1", "a"), RELU, ("Gemm", "b w2", "y")]
    count, after = equalize(model(nodes, weights, ROWS))
    assert count == 1
    assert np.array_equal(np.log2(made / after["w1"])[0], np.log2(after["w2"])[:, 0])
    assert (np.log2(after["b1"]) <= 0).all()
    assert np.array_equal(np.log2(after["b1"]), [0, 0, 0, -1, -1, -6])


@pytest.mark.parametrize("mask", (-np.inf, -1e9, -65504))
@pytest.mark.parametrize(
    "added", ([("Gemm", "x w1 b1", "a"), RELU], [("Gemm", "x w1", "c"), ("Add", "c b1", "a"), RELU])
)
def test_masks_are_not_scaled(added: Nodes, mask: float) -> None:
    """They would set how far all other channels may grow, and be no masks any more."""
    weights = {
        "w1": spread((3, 6), 1, 3),
        "b1": np.float32([0, mask, 1, 1, 0, 1]),
        "w2": spread((6, 4), 0, 4),
    }
    count, after = equalize(model([*added, ("Gemm", "b w2", "y")], weights, ROWS))
    assert count == 0 and all(np.array_equal(after[name], weights[name]) for name in weights)


def chain(seed: int) -> onnx.ModelProto:
    """Return a model of up to ten layers, whose features and inputs of each are uneven by a million."""
    random = np.random.default_rng(seed)
    widths = [3, *random.integers(5, 40, random.integers(3, 10)), 4]
    nodes: Nodes = []
    weights: Weights = {}
    for i, (rows, columns) in enumerate(itertools.pairwise(widths)):
        sizes = 2.0 ** (random.integers(-10, 11, (rows, 1)) + random.integers(-10, 11, columns))
        weights[f"w{i}"] = (sizes * random.standard_normal((rows, columns))).astype(np.float32)
        weights[f"w{i}"] *= random.random((rows, columns)) < random.choice([0.3, 1])
        names = f"{'x' if i == 0 else f'r{i - 1}'} w{i}"
        if random.random() < 0.5:
            weights[f"b{i}"] = random.standard_normal(columns).astype(np.float32)
            names += f" b{i}"
        last = i == len(widths) - 2
        nodes.append(("Gemm", names, "y" if last else f"a{i}"))
        if not last:
            nodes.append(("Relu", f"a{i}", f"r{i}"))
    return model(nodes, weights, ROWS)


@pytest.mark.parametrize("seed", (*range(20), 742, 1372))
def test_chains_come_to_rest(seed: int) -> None:
    """What one pair gains its neighbours may lose, and medians move: a second run changes nothing even so.

    The last two would go round in circles with medians that rise and fall for ever.
    """
    source = chain(seed)
    count, after = equalize(source)
    assert count <= len(source.graph.node) // 2
    assert all(np.isfinite(array).all() for array in after.values())


def test_offsets_do_not_grow_beyond_the_largest() -> None:
    """A channel of tiny weights and an ordinary bias would else set the range of all activations."""
    bias = np.array([1, 2, 3, 4, 5, 6, 7, -8], np.float32)
    count, after = equalize(model([CONV1, ("Relu", "a", "b"), CONV2], {**CONVS, "b1": bias}))
    assert count == 1
    assert np.abs(after["b1"]).max() <= 8
    assert (np.abs(after["b1"]) > np.abs(bias)).any()


def test_a_separable_chain_becomes_alike() -> None:
    nodes = [
        CONV1,
        ("Relu", "a", "b"),
        ("Conv", "b depth", "c", {"group": 8}),
        ("Relu", "c", "d"),
        ("Conv", "d w2", "y"),
    ]
    weights = {**CONVS, "depth": spread((8, 1, 3, 3), 0, 3)}
    count, after = equalize(model(nodes, weights))
    assert count == 2
    assert imbalance(after["w1"], after["depth"]) <= 1
    assert imbalance(after["depth"], after["w2"].swapaxes(0, 1)) <= 1


def test_groups_of_convolutions() -> None:
    """Of weights in groups the channels of inputs are counted through the groups."""
    nodes = [
        ("Conv", "x w1", "a", {"group": 2}),
        ("Relu", "a", "b"),
        ("ConvTranspose", "b w2", "c", {"group": 3}),
        ("Relu", "c", "d"),
        ("Conv", "d w3", "y", {"group": 2}),
    ]
    weights = {
        "w1": spread((6, 2, 3, 3), 0, 1),
        "w2": spread((6, 4, 3, 3), 0, 2) * spread((1, 4, 1, 1), 1, 3),
        "w3": spread((2, 6, 1, 1), 1, 4),
    }
    count, after = equalize(model(nodes, weights, (2, 4, 8, 8)))
    assert count == 2
    assert imbalance(after["w1"], after["w2"]) <= 1
    made = after["w2"].reshape(3, 2, 4, 9).swapaxes(1, 2).reshape(12, -1)
    read = after["w3"].reshape(2, 1, 6).swapaxes(1, 2).reshape(12, -1)
    assert imbalance(made, read) <= 1


@pytest.mark.parametrize("transposed", (0, 1))
def test_images_flattened_into_rows(transposed: int) -> None:
    """Each channel of 8 x 8 pixels is 64 inputs in a row of the Gemm, and one after a global pool."""
    for pool, repeat in (("Relu", 64), ("GlobalAveragePool", 1)):
        dense = np.repeat(spread((8, 5), 0, 4), repeat, axis=0)
        weights = {"w1": CONVS["w1"], "w2": np.ascontiguousarray(dense.T) if transposed else dense}
        nodes = [
            ("Conv", "x w1", "a"),
            (pool, "a", "b"),
            ("Flatten", "b", "f"),
            ("Gemm", "f w2", "y", {"transB": transposed}),
        ]
        count, after = equalize(model(nodes, weights))
        assert count == 1
        read = after["w2"].T if transposed else after["w2"]
        assert imbalance(after["w1"], read.reshape(8, -1)) <= 1


@pytest.mark.parametrize("first", ("MatMul", "Gemm"))
def test_rows_of_features(first: str) -> None:
    """With a bias of one number for all channels, and three axes for MatMul."""
    weights = {
        "w1": spread((3, 6), 1, 1),
        "offset": np.full(1, 1e-9, np.float32),
        "w2": spread((6, 4), 0, 2),
        "b2": np.ones(4, np.float32),
    }
    nodes: dict[str, Nodes] = {
        "MatMul": [
            ("MatMul", "x w1", "a"),
            ("Add", "a offset", "s"),
            ("Relu", "s", "b"),
            ("MatMul", "b w2", "y"),
        ],
        "Gemm": [("Gemm", "x w1 offset", "a", {"alpha": 0.5}), ("Relu", "a", "b"), ("Gemm", "b w2 b2", "y")],
    }
    count, after = equalize(model(nodes[first], weights, (2, 5, 3) if first == "MatMul" else ROWS))
    assert count == 1
    assert np.abs(after["offset"]).max() <= np.float32(1e-9)
    assert after["offset"].size == 6
    shift = np.log2(weights["w1"] / after["w1"])
    assert (shift == np.rint(shift)).all() and (shift == shift[0]).all() and shift.any()


def test_convolutions_of_one_axis() -> None:
    weights = {"w1": spread((8, 3, 3), 0, 1), "b1": np.zeros(8, np.float32), "w2": spread((4, 8, 3), 1, 2)}
    count, after = equalize(model([CONV1, ("Relu", "a", "b"), CONV2], weights, (2, 3, 10)))
    assert count == 1
    assert imbalance(after["w1"], after["w2"].swapaxes(0, 1)) <= 1


def test_channels_without_weight_stay() -> None:
    """No weight at all, or so little that a factor for it would be out of range."""
    weights = {name: array.copy() for name, array in CONVS.items()}
    weights["w1"][0], weights["w1"][1], weights["w2"][:, 2] = 0, 1e-30, 0
    count, after = equalize(model([CONV1, ("Relu", "a", "b"), CONV2], weights))
    assert count == 1
    assert np.array_equal(after["w1"][:3], weights["w1"][:3])
    assert np.array_equal(after["w2"][:, :3], weights["w2"][:, :3])
    assert imbalance(after["w1"][3:], after["w2"].swapaxes(0, 1)[3:]) <= 1


REFUSED: dict[str, Nodes] = {
    "clip": [CONV1, ("Clip", "a low six", "b"), CONV2],
    "sigmoid": [CONV1, ("Sigmoid", "a", "b"), CONV2],
    "another reader": [
        CONV1,
        RELU,
        ("Conv", "b w2", "c"),
        ("ReduceMax", "b", "m", {"keepdims": 0}),
        ("Add", "c m", "y"),
    ],
    "twice the same": [CONV1, ("Add", "a a", "b"), CONV2],
    "sum of layers": [CONV1, ("Conv", "x w3", "c"), ("Add", "a c", "b"), CONV2],
    "computed slope": [CONV1, ("Abs", "six", "slope"), ("PRelu", "a slope", "b"), CONV2],
    "computed weight": [("Abs", "w1", "w"), ("Conv", "x w b1", "a"), RELU, CONV2],
    "computed bias": [("Abs", "b1", "computed"), ("Conv", "x w1 computed", "a"), RELU, CONV2],
    "shared bias": [CONV1, RELU, ("Conv", "b w2", "c"), ("Tanh", "c", "e"), ("Conv", "e w3to8 b1", "y")],
    "shared weight": [("Conv", "x w3 b1", "a"), RELU, CONV2, ("Conv", "x w3", "z")],
    "rows of pixels": [CONV1, RELU, ("MatMul", "b square", "y")],
    "channels of features": [("MatMul", "x wide", "a"), RELU, ("Conv", "b w1", "y")],
    "flattened pixels": [CONV1, ("Flatten", "a", "b", {"axis": 2}), ("MatMul", "b tall", "y")],
    "offset of pixels": [CONV1, ("Flatten", "a", "f"), ("Add", "f long", "b"), ("MatMul", "b longer", "y")],
    "turned": [CONV1, ("Transpose", "a", "b", {"perm": [0, 1, 3, 2]}), CONV2],
    "weight on the left": [CONV1, RELU, ("MatMul", "left b", "y")],
    "one more axis": [CONV1, ("Add", "a five", "s"), ("Flatten", "s", "b"), ("MatMul", "b all", "y")],
}


@pytest.mark.parametrize("name", REFUSED)
def test_leaves_alone_what_would_change(name: str) -> None:
    nodes = REFUSED[name]
    known = {
        **CONVS,
        "low": np.array(0, np.float32),
        "six": np.array(6, np.float32),
        "w3": spread((8, 3, 3, 3), 0, 5),
        "w3to8": spread((8, 4, 1, 1), 0, 5),
        "square": spread((8, 8), 0, 6),
        "wide": spread((10, 10), 1, 6),
        "tall": spread((64, 4), 0, 6),
        "long": np.ones(1, np.float32),
        "longer": spread((512, 4), 0, 6) * np.float32(1e-6),
        "left": spread((8, 8), 0, 6),
        "five": np.ones((1, 1, 1, 1, 1), np.float32),
        "all": spread((1024, 4), 0, 6) * np.float32(1e-6),
    }
    used = {word for node in nodes for word in node[1].split()}
    weights: dict[str, Any] = {word: array for word, array in known.items() if word in used}
    if name == "channels of features":
        weights["w1"] = spread((8, 3, 1, 1), 0, 1)
        weights.pop("b1", None)
    count, after = equalize(model(nodes, weights))
    assert count == 0
    assert all(np.array_equal(after[word], weights[word]) for word in weights)


def test_leaves_columns_of_features_alone() -> None:
    nodes = [("Gemm", "x w1", "a"), RELU, ("Gemm", "b w2", "y", {"transA": 1})]
    weights = {"w1": spread((3, 8), 1, 1), "w2": spread((8, 4), 0, 2)}
    assert equalize(model(nodes, weights, (8, 3)))[0] == 0


def test_leaves_outputs_and_what_can_be_overridden_alone() -> None:
    plain = model([CONV1, RELU, CONV2], CONVS)
    shown, given = onnx.ModelProto(), onnx.ModelProto()
    shown.CopyFrom(plain)
    shown.graph.output.append(build.value("b", (2, 8, 8, 8)))
    assert equalize(plain)[0] == 1
    assert equalize(shown)[0] == 0
    given.CopyFrom(plain)
    graph = model_io.load(given)
    (weight,) = (t for t in walk.constants(graph) if t.name == "w2")
    graph.inputs.append(weight)
    assert equalize_layers(graph) == 0


@pytest.mark.parametrize("name", ("a_node", "b_node", "y_node"))
def test_excluded_nodes_are_left_alone(name: str) -> None:
    graph = model_io.load(model([CONV1, RELU, CONV2], CONVS))
    assert equalize_layers(graph, exclude=select(graph, names=[name])) == 0


def test_in_bodies() -> None:
    branches = {}
    for name, seed in (("then_branch", 1), ("else_branch", 2)):
        weights = {f"{name}w1": spread((3, 6), 1, seed), f"{name}w2": spread((6, 4), 0, seed)}
        nodes = [
            helper.make_node("MatMul", ["x", f"{name}w1"], [f"{name}a"]),
            helper.make_node("Relu", [f"{name}a"], [f"{name}b"]),
            helper.make_node("MatMul", [f"{name}b", f"{name}w2"], [f"{name}y"]),
        ]
        initializers = [onnx.numpy_helper.from_array(array, key) for key, array in weights.items()]
        branches[name] = helper.make_graph(nodes, name, [], [build.value(f"{name}y", (5, 4))], initializers)
    choose = helper.make_node("If", ["c"], ["y"], **branches)
    source = build.model(
        [choose], [build.value("x", ROWS)], [build.value("y", (5, 4))], {"c": np.array(True)}
    )
    assert equalize(source)[0] == 2


def test_leaves_a_layer_that_a_body_reads_alone() -> None:
    inner = [helper.make_node("MatMul", ["b", "w2"], ["inner_y"])]
    branch = helper.make_graph(inner, "branch", [], [build.value("inner_y", (5, 4))])
    other = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w3"], ["other_y"])], "other", [], [build.value("other_y", (5, 4))]
    )
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=other),
    ]
    weights = {"w1": spread((3, 6), 1, 1), "w2": spread((6, 4), 0, 2), "w3": spread((3, 4), 0, 3)}
    ends = [build.value("x", ROWS)], [build.value("y", (5, 4))]
    assert equalize(build.model(nodes, *ends, {**weights, "c": np.array(True)}))[0] == 0


def test_a_clip_is_in_the_way() -> None:
    clipped = [CONV1, ("Clip", "a _ six", "b"), CONV2]
    graph = model_io.load(model(clipped, {**CONVS, "six": np.array(6, np.float32)}))
    assert equalize_layers(graph) == 0
    graph = model_io.load(model([CONV1, RELU, CONV2], CONVS))
    assert equalize_layers(graph) == 1


def quantized(source: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with weights rounded to int8, one scale for each."""
    graph = model_io.load(source)
    for tensor in walk.constants(graph):
        if tensor.values.ndim > 1:
            tensor.values = ops.quantize_dequantize(tensor.values, "int8")
    return graph_proto.export_model(graph)


def test_integers_for_whole_weights_gain_by_it() -> None:
    """With one scale for all channels most of the small ones are rounded to zero. Seen: 0 dB and 40 dB."""
    source = model([CONV1, RELU, CONV2], CONVS)
    graph = model_io.load(source)
    equalize_layers(graph)
    feeds = {"x": np.random.default_rng(0).standard_normal(IMAGE).astype(np.float32)}
    exact = conversion.run(source, feeds)["y"]
    noise = [
        float(np.square(conversion.run(quantized(m), feeds)["y"] - exact).sum())
        for m in (source, graph_proto.export_model(graph))
    ]
    print("SNR in dB:", [float(10 * np.log10(np.square(exact).sum() / n).round(1)) for n in noise])
    assert noise[0] > 100 * noise[1]


@pytest.mark.skipif(not real_models.NAMES, reason="the real models are not there")
@pytest.mark.parametrize(
    ("name", "pairs"),
    (
        ("mnist_cntk", 0),
        ("resnet8_cifar10", 2),
        ("superres_zoo", 3),
        ("vittrack", 7),
        ("ppocrv3_det_en", 16),
    ),
)
@pytest.mark.heavy
def test_real_models_stay_what_they_are(name: str, pairs: int) -> None:
    graph = model_io.load(real_models.MODELS / name / "model.onnx")
    standardize(graph, Selection())
    before = real_models.first_outputs(graph_proto.export_model(graph).SerializeToString(), name)
    assert equalize_layers(graph) == pairs
    assert equalize_layers(graph) == 0
    after = real_models.first_outputs(graph_proto.export_model(graph).SerializeToString(), name)
    assert conversion.same(before, after)


@pytest.mark.skipif(not real_models.NAMES, reason="the real models are not there")
def test_mobilenet_is_all_clips() -> None:
    graph = model_io.load(real_models.MODELS / "mobilenet_v1_025" / "model.onnx")
    standardize(graph, Selection())
    assert equalize_layers(graph) == 0
