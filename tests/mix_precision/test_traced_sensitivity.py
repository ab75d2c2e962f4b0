"""Traced sensitivities.

Oracle: |J e|^2 / |o|^2 as ONNX Runtime computes it on the float model, no gradient being involved. The models
have no bias and are linear behind each layer, so that J e is what the model makes where the errors of an
operand stand in its place. Signs are the rows of a Hadamard matrix H in most tests: as H^T H = n I, the mean
of (v^T J e)^2 over the n rows is |J e|^2 itself, and not only its expectation.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from onnx import helper

from ops.array_types import Float32Array
from tests.helpers import build, mixing
from transforms.graph import walk
from transforms.graph.lazy_values import LARGE, Computed, become_constant
from transforms.mix_precision import traced_sensitivity, weight_parts
from transforms.mix_precision.candidates import find_candidates, layers_of, measure_candidates
from transforms.mix_precision.evaluation import EvaluationSet
from transforms.mix_precision.sensitivity import Sensitivity
from transforms.mix_precision.traced_sensitivity import trace_sensitivity
from transforms.model import graph_proto
from transforms.model.copy_graph import copy_graph
from transforms.run.run_model import open_model
from transforms.run.task_log import TaskLog
from transforms.run.workers import Workers
from transforms.runtime.session import OpenModel, RunOptions
from transforms.scheme import Scheme, preset

Found = dict[tuple[str, str], float]

CLOSE = 1e-4
"""Sums of at most 200 float32 products: 200 * 2^-24 is 1.2e-5 of their size, which may cancel to a tenth."""


def of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sequence[int | str]],
    outputs: Mapping[str, Sequence[int | str]],
    weights: Mapping[str, Float32Array],
) -> onnx.ModelProto:
    ends = ([build.value(*one) for one in side.items()] for side in (inputs, outputs))
    return build.model(nodes, *ends, weights)


def conv() -> onnx.ModelProto:
    """Convolutions in groups, with strides, dilations and uneven pads, then a Gemm with alpha."""
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], "grouped", group=2, strides=[2, 1], pads=[1, 0, 1, 1]),
        helper.make_node("Conv", ["a", "w2"], ["b"], "dilated", dilations=[2, 1], pads=[1, 1, 1, 0]),
        helper.make_node("Conv", ["b", "w3"], ["c"], "depthwise", group=3),
        helper.make_node("Flatten", ["c"], ["f"], "flatten"),
        helper.make_node("Gemm", ["f", "w4"], ["y"], "dense", transB=1, alpha=0.6),
    ]
    shapes = {"w1": (4, 2, 3, 2), "w2": (3, 4, 2, 2), "w3": (3, 1, 2, 2), "w4": (8, 3 * 2 * 4)}
    weights = {name: mixing.normal(*shape, seed=i) for i, (name, shape) in enumerate(shapes.items())}
    return of(nodes, {"x": [1, 4, 5, 5]}, {"y": [1, 8]}, weights)


def transposed() -> onnx.ModelProto:
    pads = [1, 0, 0, 1]
    nodes = [
        helper.make_node("ConvTranspose", ["x", "w1"], ["a"], "up", group=2, strides=[2, 2], pads=pads),
        helper.make_node("ConvTranspose", ["a", "w2"], ["b"], "wide", output_padding=[1, 0], strides=[2, 1]),
        helper.make_node("GlobalAveragePool", ["b"], ["y"], "pool"),
    ]
    weights = {"w1": mixing.normal(4, 3, 3, 2, seed=1), "w2": mixing.normal(6, 8, 2, 2, seed=2)}
    return of(nodes, {"x": [1, 4, 3, 3]}, {"y": [1, 8, 1, 1]}, weights)


def sides() -> onnx.ModelProto:
    """Weights on the left and on the right, a stack of them, a vector, and Gemm with both transposed."""
    nodes = [
        helper.make_node("MatMul", ["w1", "x"], ["a"], "left"),
        helper.make_node("MatMul", ["a", "w2"], ["b"], "stack"),
        helper.make_node("ReduceMean", ["b"], ["c"], "mean", axes=[0], keepdims=0),
        helper.make_node("Gemm", ["c", "w3"], ["y"], "gemm", transA=1, transB=1, alpha=-1.5),
        helper.make_node("MatMul", ["c", "w4"], ["z"], "vector"),
    ]
    shapes = {"w1": (4, 3), "w2": (3, 5, 2), "w3": (6, 4), "w4": (2,)}
    weights = {name: mixing.normal(*shape, seed=i) for i, (name, shape) in enumerate(shapes.items())}
    return of(nodes, {"x": [3, 5]}, {"y": [2, 6], "z": [4]}, weights)


def computed() -> onnx.ModelProto:
    """Products of two computed operands, the last of a tensor with itself."""
    nodes = [
        helper.make_node("MatMul", ["x", "wq"], ["q"], "query"),
        helper.make_node("MatMul", ["x", "wk"], ["k"], "key"),
        helper.make_node("Transpose", ["k"], ["kt"], "transpose", perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "kt"], ["y"], "scores"),
        helper.make_node("MatMul", ["s", "s"], ["z"], "square"),
    ]
    weights = {"wq": mixing.normal(6, 5, seed=1), "wk": mixing.normal(6, 5, seed=2)}
    return of(nodes, {"x": [1, 4, 6], "s": [4, 4]}, {"y": [1, 4, 4], "z": [4, 4]}, weights)


def shared() -> onnx.ModelProto:
    """One tensor read by two layers whose outputs add up: each answers for what it reads itself."""
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], "relu"),
        helper.make_node("MatMul", ["r", "w1"], ["a"], "one"),
        helper.make_node("MatMul", ["r", "w2"], ["b"], "two"),
        helper.make_node("Sub", ["a", "b"], ["y"], "sub"),
    ]
    weights = {"w1": mixing.normal(6, 4, seed=1), "w2": mixing.normal(6, 4, seed=2)}
    return of(nodes, {"x": [2, 6]}, {"y": [2, 4]}, weights)


MODELS = {f.__name__: f for f in (conv, transposed, sides, computed, shared)}


def samples(model: onnx.ModelProto, count: int = 2) -> list[dict[str, Float32Array]]:
    shapes = {
        one.name: [d.dim_value or 1 for d in one.type.tensor_type.shape.dim] for one in model.graph.input
    }
    random = np.random.default_rng(7)
    return [
        {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
        for _ in range(count)
    ]


class Case:
    """A model that is prepared for formats, with samples and what is expected of it."""

    def __init__(
        self,
        model: onnx.ModelProto,
        scheme: Scheme,
        labels: Sequence[str],
        count: int = 2,
        feeds: Sequence[Mapping[str, Float32Array]] = (),
    ) -> None:
        self.feeds = feeds or samples(model, count)
        scheme = scheme.with_(optimize=False)
        self.mixed, self.names = mixing.prepared(model, scheme, labels, self.feeds)
        self.labels = list(labels)
        self._behind_layers: dict[str, OpenModel] = {}
        self._known: dict[int, dict[str, Float32Array]] = {}
        self.outputs = [str(tensor.name) for tensor in self.mixed.graph.outputs]

    def expected(self) -> list[dict[str, Float32Array]]:
        model = open_model(copy_graph(self.mixed.graph), RunOptions(threads=1))
        return [model.run(feed, self.outputs) for feed in self.feeds]

    def trace(self, folder: Path, threads: int = 1, **options: Any) -> Sensitivity:
        options_of_run = RunOptions(threads=threads)
        log = TaskLog(folder / "log")
        bench = EvaluationSet(self.feeds, self.expected(), options_of_run, folder, Workers(), log)
        nodes = find_candidates(self.mixed, ())
        candidates = measure_candidates(nodes, self.mixed.graph, self.feeds[0], options_of_run)
        choices = [mixing.rule(label) for label in self.labels]
        return trace_sensitivity(self.mixed, candidates, choices, bench, **options)

    def exact(self) -> Found:
        """Return |J e|^2 / |o|^2 over all samples."""
        power = sum(float(np.square(a).sum()) for one in self.expected() for a in one.values())
        return {
            (name, label): sum(self._square(name, label, feed) for feed in self.feeds) / power
            for name in self.names
            for label in self.labels
        }

    def _square(self, name: str, label: str, feed: Mapping[str, Float32Array]) -> float:
        """Return |J e|^2 of one sample, e being first operand by second error, and the other way round."""
        operands = self.operands(name, feed)
        plain, moved = (self.mixed.fake_quants(mix)[name][0] for mix in ({}, {name: mixing.rule(label)}))
        total: dict[str, Float32Array] = {}
        for index in range(2):
            read = list(operands)
            values = operands[index]
            error = np.zeros_like(values)
            for sign, found in ((1, moved), (-1, plain)):
                error += sign * (found[index](values) if index in found else values)
            read[index] = error
            for output, array in zip(self.outputs, self._behind(name, read, feed), strict=True):
                total[output] = total.get(output, np.zeros_like(array)) + array
        return sum(float(np.square(array, dtype=np.float64).sum()) for array in total.values())

    def _behind(
        self, name: str, read: Sequence[Float32Array], feed: Mapping[str, Float32Array]
    ) -> list[Float32Array]:
        """Return what in the outputs comes from a layer that reads these operands instead of its own."""
        found = []
        for operands in (read, [read[0] * 0, read[1] * 0]):
            given = {**feed, **{f"operand{i}": array for i, array in enumerate(operands)}}
            found.append(list(self._open_behind(name).run(given, self.outputs).values()))
        return [a - b for a, b in zip(*found, strict=True)]

    def _open_behind(self, name: str) -> OpenModel:
        if name not in self._behind_layers:
            self._behind_layers[name] = self._cut(name)
        return self._behind_layers[name]

    def operands(self, name: str, feed: Mapping[str, Float32Array]) -> list[Float32Array]:
        """Return what the float model multiplies in a layer."""
        read = layers_of(self.mixed.graph)[name][0].inputs[:2]
        if id(feed) not in self._known:
            graph = copy_graph(self.mixed.graph)
            every = [t for nodes in layers_of(graph).values() for node in nodes for t in node.inputs[:2]]
            graph.outputs = list({t.name: t for t in every if t.inputs}.values())
            made = open_model(graph, RunOptions(threads=1)).run(feed) if graph.outputs else {}
            self._known[id(feed)] = {**feed, **made}
        known = self._known[id(feed)]
        return [np.asarray(t.values) if isinstance(t, gs.Constant) else known[t.name] for t in read]

    def _cut(self, name: str) -> OpenModel:
        graph = copy_graph(self.mixed.graph)
        node = layers_of(graph)[name][0]
        for index in range(2):
            shape = [None] * len(node.inputs[index].shape)
            node.inputs[index] = gs.Variable(f"operand{index}", np.dtype(np.float32), shape)
            graph.inputs.append(node.inputs[index])
        return open_model(graph, RunOptions(threads=1))


class Hadamard:
    """Stands for a generator of random signs: those of one row, piece by piece."""

    def __init__(self, row: Float32Array) -> None:
        self._row, self._start = row, 0

    def choice(self, _: Float32Array, shape: tuple[int, ...]) -> Float32Array:
        start, self._start = self._start, self._start + int(np.prod(shape))
        return self._row[start : self._start].reshape(shape)


def hadamard(size: int) -> Float32Array:
    rows = np.ones((1, 1), np.float32)
    while len(rows) < size:
        rows = np.kron(rows, np.array([[1, 1], [1, -1]], np.float32))
    return rows


@pytest.fixture
def exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all samples be run, with all rows of a Hadamard matrix as signs."""
    rows = hadamard(32)
    run, signs = traced_sensitivity._TracedModel.run, itertools.cycle(rows)
    monkeypatch.setattr(traced_sensitivity, "_runs", lambda samples, _: (list(range(samples)), len(rows)))
    monkeypatch.setattr(
        traced_sensitivity._TracedModel,
        "run",
        lambda self, feed, expected, _: run(self, feed, expected, Hadamard(next(signs))),  # type: ignore[arg-type]
    )


def harms(found: Sensitivity) -> Found:
    assert found.method == "trace" and found.metric == "sqnr"
    return {(one.layer, one.label): one.harm for one in found.damages}


@pytest.mark.usefixtures("exactly")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    ("scheme", "labels"),
    [
        (preset("A16W8").with_(per_channel=True), ["int8", "int8/int4", "bfp16"]),
        (preset("BF16"), ["mx6", "mxfp8_e4m3", "bfloat16/int8"]),
    ],
    ids=["integers", "blocks"],
)
def test_harms_are_the_exact_ones(name: str, scheme: Scheme, labels: list[str], tmp_path: Path) -> None:
    case = Case(MODELS[name](), scheme, labels)
    found, exact = harms(case.trace(tmp_path)), case.exact()
    assert found.keys() == exact.keys() and len(exact) == len(labels) * len(case.names)
    at_rest = {("scores", "bfloat16/int8"), ("square", "bfloat16/int8")}  # which have no weight
    assert {key for key, harm in exact.items() if harm == 0} <= at_rest
    assert found == pytest.approx(exact, rel=CLOSE)


def test_random_signs_come_near_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # For random signs v the variance of (v^T a)^2 is 2 (|a|^4 - sum a_i^4), less than 2 |a|^4: the mean of
    # 2048 draws has a standard error of at most sqrt(2 / 2048), 3.1 %, of which four are allowed.
    monkeypatch.setattr(traced_sensitivity, "_RUNS", 2048)
    monkeypatch.setattr(traced_sensitivity, "_runs", lambda *_: ([0], traced_sensitivity._RUNS))
    case = Case(conv(), preset("BF16"), ["mx6"], 1)
    assert harms(case.trace(tmp_path)) == pytest.approx(case.exact(), rel=4 * (2 / 2048) ** 0.5)


def test_the_unpatched_estimate_is_within_its_error(tmp_path: Path) -> None:
    # 32 runs: a standard error of at most a quarter, of which four are allowed.
    case = Case(shared(), preset("BF16"), ["mx6"], 33)
    found = case.trace(tmp_path)
    assert found.samples == 32
    assert harms(found) == pytest.approx(case.exact(), rel=1)
    for one in found.damages:
        assert one.value == pytest.approx(-10 * np.log10(one.harm))


def test_nothing_moves_where_formats_are_those_there_were(tmp_path: Path) -> None:
    found = Case(conv(), preset("A16W8"), ["int16/int8", "int8"]).trace(tmp_path)
    for one in found.damages:
        assert (one.harm == 0) == (one.value == np.inf) == (one.label == "int16/int8")


def test_a_weight_on_the_grid_does_no_harm(tmp_path: Path) -> None:
    model = shared()
    weight = next(tensor for tensor in model.graph.initializer if tensor.name == "w1")
    on_grid = np.random.default_rng(0).integers(-8, 9, (6, 4)).astype(np.float32)  # 4 bits and a sign
    weight.CopyFrom(onnx.numpy_helper.from_array(on_grid, "w1"))
    found = harms(Case(model, preset("BF16"), ["bfloat16/mx9"]).trace(tmp_path))
    assert found["one", "bfloat16/mx9"] == 0 < found["two", "bfloat16/mx9"]


@pytest.mark.usefixtures("exactly")
def test_outputs_that_do_not_count_are_not_looked_at(tmp_path: Path) -> None:
    case = Case(sides(), preset("BF16"), ["mx6"])
    case.outputs = ["z"]
    found = harms(case.trace(tmp_path))
    assert found["gemm", "mx6"] == 0 < found["vector", "mx6"]
    assert found == pytest.approx(case.exact(), rel=CLOSE)


def test_a_layer_whose_numbers_end_in_indices_has_no_influence(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["a"], "counted"),
        helper.make_node("ArgMax", ["a"], ["i"], "index", axis=1, keepdims=0),
        helper.make_node("Gather", ["x", "i"], ["g"], "gather"),
        helper.make_node("MatMul", ["g", "w2"], ["y"], "last"),
    ]
    weights = {"w1": mixing.normal(16, 16), "w2": mixing.normal(16, 16, seed=1)}
    model = of(nodes, {"x": [16, 16]}, {"y": [16, 16]}, weights)
    found = harms(Case(model, preset("BF16"), ["mx6"]).trace(tmp_path))
    assert found["counted", "mx6"] == 0 < found["last", "mx6"]


RESIZE = helper.make_node("Resize", ["a", "", "scales"], ["r"], "resize", mode="linear")
"""Has no gradient."""


def in_front_of_resize() -> onnx.ModelProto:
    """Three kinds of layers behind which there is no gradient, and one behind which there is."""
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["c"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("MatMul", ["c", "c"], ["m"], "product"),
        helper.make_node("Conv", ["m", "k"], ["a"], "computed"),
        RESIZE,
        helper.make_node("MatMul", ["r", "w2"], ["y"], "last"),
        helper.make_node("Reshape", ["s", "shape"], ["k"], "reshape"),
    ]
    nodes.insert(0, nodes.pop())
    weights = {"w1": mixing.normal(2, 2, 3, 3), "w2": mixing.normal(8, 2, seed=1)}
    weights |= {"scales": np.array([1, 1, 2, 2], np.float32), "shape": np.array([1, 2, 1, 1])}  # type: ignore[dict-item]
    return of(nodes, {"x": [1, 2, 4, 4], "s": [2]}, {"y": [1, 1, 8, 2]}, weights)


def test_without_gradient_the_share_of_a_layer_s_error_counts(tmp_path: Path) -> None:
    """Oracle: the layer itself by NumPy and ONNX Runtime, with operands as the plain and the moved model
    read them."""
    case = Case(in_front_of_resize(), preset("A16W8"), ["int8", "bfp16"])
    found = case.trace(tmp_path)
    for label in case.labels:
        assert found.harm_of("product", label) == pytest.approx(_share(case, "product", label), rel=CLOSE)
        assert found.harm_of("conv", label) == pytest.approx(_share(case, "conv", label, _conv), rel=CLOSE)
        assert 0 < found.harm_of("last", label) < 1
        assert found.harm_of("computed", label) == np.inf  # nothing is known of it


def test_in_front_of_a_recurrent_layer(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["a"], "first"),
        helper.make_node("LSTM", ["a", "w", "r"], ["o"], "lstm", hidden_size=2),
        helper.make_node("Reshape", ["o", "shape"], ["f"], "reshape"),
        helper.make_node("MatMul", ["f", "w2"], ["y"], "last"),
    ]
    shapes = {"w1": (5, 4), "w": (1, 8, 4), "r": (1, 8, 2), "w2": (2, 4)}
    weights = {name: mixing.normal(*shape, seed=i) for i, (name, shape) in enumerate(shapes.items())}
    weights["shape"] = np.array([3, 2])  # type: ignore[assignment]
    case = Case(of(nodes, {"x": [3, 1, 5]}, {"y": [3, 4]}, weights), preset("BF16"), ["mx6"])
    found = harms(case.trace(tmp_path))
    assert found["first", "mx6"] == pytest.approx(_share(case, "first", "mx6"), rel=CLOSE)
    exact = case.exact()["last", "mx6"]  # 2 samples and 2 layers: 32 runs, four standard errors of a quarter
    assert (
        found["last", "mx6"] == pytest.approx(exact, rel=1) and found["last", "mx6"] != found["first", "mx6"]
    )


def _share(case: Case, name: str, label: str, make: Callable[..., Float32Array] = np.matmul) -> float:
    errors = powers = 0.0
    for feed in case.feeds:
        plain, moved = (
            make(
                *(case.mixed.fake_quants(mix)[name][0][i](v) for i, v in enumerate(case.operands(name, feed)))
            )
            for mix in ({}, {name: mixing.rule(label)})
        )
        errors += float(np.square(moved - plain).sum())
        powers += float(np.square(plain).sum())
    return errors / powers


def _conv(x: Float32Array, w: Float32Array) -> Float32Array:
    node = helper.make_node("Conv", ["x", "w"], ["y"], "conv", pads=[1, 1, 1, 1])
    model = of([node], {"x": x.shape, "w": w.shape}, {"y": (1, 2, 4, 4)}, {})
    made: Float32Array = open_model(graph_proto.import_model(model), RunOptions(threads=1)).run(
        {"x": x, "w": w}
    )["y"]
    return made


def test_no_layer_at_all_has_influence(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"], "one"),
        helper.make_node("Relu", ["x"], ["z"], "relu"),
    ]
    case = Case(
        of(nodes, {"x": [2, 4]}, {"y": [2, 4], "z": [2, 4]}, {"w": mixing.normal(4, 4)}),
        preset("BF16"),
        ["mx6"],
    )
    case.outputs = ["z"]
    assert harms(case.trace(tmp_path)) == {("one", "mx6"): 0}


def test_a_layer_of_known_output_gradient_but_no_other(tmp_path: Path) -> None:
    # Where sizes are free, how much such a ConvTranspose pads has no gradient; the Relu behind it has one.
    nodes = [
        helper.make_node("ConvTranspose", ["x", "w"], ["a"], "up", auto_pad="SAME_UPPER", strides=[2, 2]),
        helper.make_node("Relu", ["a"], ["y"], "relu"),
    ]
    model = of(nodes, {"x": [1, 2, "h", "w_"]}, {"y": [1, 3, "h2", "w2"]}, {"w": mixing.normal(2, 3, 3, 3)})
    feeds = [{"x": mixing.normal(1, 2, 4, 4, seed=i)} for i in range(2)]
    case = Case(model, preset("BF16"), ["mx6"], feeds=feeds)
    assert 0 < case.trace(tmp_path).harm_of("up", "mx6") < 1


def test_a_model_without_float_outputs_can_not_be_traced(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], "one"),
        helper.make_node("ArgMax", ["a"], ["y"], "index", axis=1),
    ]
    model = build.model(
        nodes, [build.value("x", [2, 4])], [build.value("y", [2, 1], np.int64)], {"w": mixing.normal(4, 4)}
    )
    with pytest.raises(ValueError, match="no output that counts is float: sensitivities can be measured"):
        Case(model, preset("BF16"), ["mx6"]).trace(tmp_path)


def test_an_output_of_integers_has_no_power(tmp_path: Path) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], "one")]
    model = of(nodes, {"x": [2, 4]}, {"y": [2, 4]}, {"w": mixing.normal(4, 4)})
    alone = Case(model, preset("BF16"), ["mx6"]).trace(tmp_path)
    model.graph.node.append(helper.make_node("ArgMax", ["y"], ["i"], "index", axis=1))
    model.graph.output.append(build.value("i", [2, 1], np.int64))
    assert Case(model, preset("BF16"), ["mx6"]).trace(tmp_path) == alone


def test_outputs_of_zeros_stay_zeros(tmp_path: Path) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], "one")]
    model = of(nodes, {"x": [2, 4]}, {"y": [2, 4]}, {"w": np.zeros((4, 4), np.float32)})
    (found,) = Case(model, preset("BF16"), ["mx6"]).trace(tmp_path).damages
    assert (found.value, found.harm) == (np.inf, 0)


def test_an_output_that_is_a_constant(tmp_path: Path) -> None:
    weights = {"w": mixing.normal(4, 4), "c": mixing.normal(3)}
    model = of([helper.make_node("MatMul", ["x", "w"], ["y"], "one")], {"x": [2, 4]}, {"y": [2, 4]}, weights)
    alone = harms(Case(model, preset("BF16"), ["mx6"]).trace(tmp_path))
    model.graph.output.append(build.value("c", [3]))
    case = Case(model, preset("BF16"), ["mx6"])
    found = harms(case.trace(tmp_path))
    constant = float(np.square(weights["c"]).sum()) * len(case.feeds)
    power = sum(float(np.square(one["y"]).sum()) for one in case.expected())
    # What the constant adds to the outputs does not change with the layer.
    assert found["one", "mx6"] == pytest.approx(alone["one", "mx6"] * power / (power + constant))


def test_equal_at_every_call_and_for_any_number_of_threads(tmp_path: Path) -> None:
    case = Case(conv(), preset("A16W8"), ["int8", "bfp16"], 5)
    told: list[tuple[int, int, str]] = []
    first = case.trace(tmp_path, progress=lambda *said: told.append(said))
    assert told == [(i + 1, 5, f"sample {i + 1}") for i in range(5)]
    assert case.trace(tmp_path) == first == case.trace(tmp_path, threads=2)
    again = Case(conv(), preset("A16W8"), ["int8", "bfp16"], 5)
    assert again.trace(tmp_path, threads=3) == first


def test_sizes_count_what_is_stored_and_what_is_computed_for_a_sample() -> None:
    sizes = {}
    for model in (sides(), computed()):
        case = Case(model, preset("BF16"), ["mx6"])
        nodes = find_candidates(case.mixed, ())
        found = measure_candidates(nodes, case.mixed.graph, case.feeds[0], RunOptions(threads=1))
        sizes |= {one.name: (one.op, one.weights, one.activations) for one in found}
    assert sizes == {
        "left": ("MatMul", 4 * 3, 3 * 5),
        "stack": ("MatMul", 3 * 5 * 2, 4 * 5),
        "gemm": ("Gemm", 6 * 4, 4 * 2),
        "vector": ("MatMul", 2, 4 * 2),
        "query": ("MatMul", 6 * 5, 4 * 6),
        "key": ("MatMul", 6 * 5, 4 * 6),
        "scores": ("MatMul", 0, 2 * 4 * 5),
        "square": ("MatMul", 0, 2 * 4 * 4),
    }


@pytest.mark.parametrize(
    ("samples", "layers", "taken", "draws"),
    [
        (1, 1, [0], 32),
        (1, 8, [0], 4),
        (3, 2, [0, 1, 2], 11),  # 33 runs are the least that are 32
        (3, 20, [0, 1, 2], 1),
        (31, 1, list(range(31)), 2),
        (32, 1, list(range(32)), 1),
        (63, 1, list(range(0, 63, 2)), 1),
        (10_001, 33, [int(10_000 / 15 * i) for i in range(16)], 1),
        (4, 100, [0, 1, 2, 3], 1),
        (16, 33, list(range(16)), 1),
    ],
)
def test_how_many_runs_there_are(samples: int, layers: int, taken: list[int], draws: int) -> None:
    assert traced_sensitivity._runs(samples, layers) == (taken, draws)


@pytest.mark.usefixtures("exactly")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    ("scheme", "label"),
    [
        (preset("A16W8").with_(per_channel=True), "int8/int4"),
        (preset("BF16"), "mx6"),
    ],
    ids=["channels", "blocks"],
)
def test_parts_of_weights_make_the_same_sums(
    name: str, scheme: Scheme, label: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Oracle: the sums of whole weights; no part has more numbers than an output has, or 7."""
    found = {}
    for most in (weight_parts.MOST, 7):
        monkeypatch.setattr(weight_parts, "MOST", most)
        found[most] = harms(Case(MODELS[name](), scheme, [label]).trace(tmp_path))
    whole, parts = found.values()
    assert parts == pytest.approx(whole, rel=CLOSE)


def test_parts_make_the_same_share_without_a_gradient(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Oracle: the sums of whole weights."""
    found = []
    for most in (weight_parts.MOST, 18):
        monkeypatch.setattr(weight_parts, "MOST", most)
        case = Case(in_front_of_resize(), preset("A16W8"), ["int8", "bfp16"])
        found.append(harms(case.trace(tmp_path)))
    assert found[1] == pytest.approx(found[0], rel=CLOSE)


@pytest.mark.parametrize(("room", "at_once"), [(1, 1), (LARGE, 1), (2 * LARGE, 2), (1 << 20, 3)])
def test_weights_that_have_to_be_loaded_are_loaded_as_many_as_there_is_room_for(
    room: int, at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Oracle: each weight has LARGE bytes, and three threads are asked for; room is for a weight at least."""
    asked: list[int] = []

    def _pool(threads: int) -> ThreadPoolExecutor:
        asked.append(threads)
        return ThreadPoolExecutor(threads)

    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["y"], "one"),
        helper.make_node("MatMul", ["x", "w2"], ["z"], "two"),
    ]
    weights = {name: mixing.normal(128, LARGE // 4 // 128) for name in ("w1", "w2")}
    outputs: dict[str, Sequence[int | str]] = {"y": [2, LARGE // 4 // 128], "z": [2, LARGE // 4 // 128]}
    case = Case(of(nodes, {"x": [2, 128]}, outputs, weights), preset("BF16"), ["mx6"])
    plain = case.trace(tmp_path, threads=3)
    for tensor in walk.constants(case.mixed.graph):
        values = tensor.values
        become_constant(tensor, Computed(values.shape, values.dtype, partial(np.array, values)))
    monkeypatch.setattr(traced_sensitivity, "ThreadPoolExecutor", _pool)
    monkeypatch.setattr(traced_sensitivity, "_LEAST_KEPT", room)
    assert case.trace(tmp_path, threads=3) == plain
    assert asked == [at_once]
