"""Sentinels: numbers that stand for no number. Oracles: the tensors listed in each test; the float model."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from numpy.typing import NDArray

from transforms import model_io
from transforms.calibrate.calibrate import calibrate
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.graph import walk
from transforms.graph.masks import masks_in
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.plan.sentinels import sentinels
from transforms.run.run_model import open_model
from transforms.scheme import preset

RANDOM = np.random.default_rng(4)
INF, LOWEST = np.float32(np.inf), np.finfo(np.float32).min

POOL = "MaxPool <kernel_shape = [2, 2], strides = [2, 2]>"
IMAGE = "(float[1,3,8,8] x) => (float[A,B,C,D] y)"
TOKENS = "(float[2,6,16] x, bool[2,6,1] k) => (float[A,B] y)"


def model(text: str, value: float) -> onnx.ModelProto:
    made = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> main {text}')
    constants = {
        "v": np.float32(value),
        "o": np.float32(-value),
        "turn": np.float32(-1),
        "one": np.float32(1),
        "p": np.int64([0, 0, 1, 1, 0, 0, 1, 1]),
        "w": RANDOM.standard_normal((4, 3, 1, 1)).astype(np.float32),
        "w2": RANDOM.standard_normal((4, 4, 1, 1)).astype(np.float32),
        "m": RANDOM.standard_normal((16, 12)).astype(np.float32),
        "m2": RANDOM.standard_normal((12, 5)).astype(np.float32),
    }
    for name, array in constants.items():
        if any(name in node.input for node in made.graph.node):
            made.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return made


def feeds(source: onnx.ModelProto, count: int = 4) -> list[dict[str, NDArray]]:
    found = []
    for i in range(count):
        feed: dict[str, NDArray] = {}
        for value in source.graph.input:
            shape = [size.dim_value for size in value.type.tensor_type.shape.dim]
            feed[value.name] = RANDOM.standard_normal(shape).astype(np.float32)
            if value.name == "k":
                feed["k"] = np.arange(6)[None, :, None] < np.array([6 - i, 4])[:, None, None]
        found.append(feed)
    return found


DROPPED = {
    "Pad": (IMAGE, f"a = Conv(x, w) q = Pad(a, p, v) s = {POOL}(q) y = Conv(s, w2)", "q"),
    "two Pads": (
        IMAGE,
        "a = Conv(x, w) q0 = Pad(a, p, v) q = Pad(q0, p, v) s = MaxPool <kernel_shape = [5, 5]> (q) "
        "y = Conv(s, w2)",
        "q q0",
    ),
    "Pad, then Transpose": (
        IMAGE,
        f"a = Conv(x, w) q = Pad(a, p, v) t = Transpose <perm = [0,1,3,2]> (q) s = {POOL}(t) y = Conv(s, w2)",
        "q t",
    ),
    "the least of numbers": (
        IMAGE,
        f"a = Conv(x, w) q = Pad(a, p, o) t = Neg(q) s = {POOL}(t) n = Neg(s) y = Conv(n, w2)",
        "q t",
    ),
    "times -1": (
        IMAGE,
        f"a = Conv(x, w) q = Pad(a, p, o) t = Mul(turn, q) s = {POOL}(t) n = Mul(s, turn) y = Conv(n, w2)",
        "q t",
    ),
    "Where": (
        TOKENS,
        "a = MatMul(x, m) q = Where(k, a, v) t = Transpose <perm = [0,2,1]> (q) g = GlobalMaxPool(t) "
        "f = Flatten(g) y = MatMul(f, m2)",
        "q t",
    ),
    "Relu": (IMAGE, "a = Conv(x, w) q = Pad(a, p, v) r = Relu(q) y = Conv(r, w2)", "q"),
}
ADDED = """a = MatMul(x, m) c = Cast <to = 1> (k) n = Sub(one, c) s = Mul(n, v) q = Add(a, s)
    t = Transpose <perm = [0,2,1]> (q) g = GlobalMaxPool(t) f = Flatten(g) y = MatMul(f, m2)"""

COUNTED = {
    "an average": "a = Conv(x, w) q = Pad(a, p, v) y = AveragePool <kernel_shape = [2, 2]> (q)",
    "a layer": "a = Conv(x, w) q = Pad(a, p, v) y = Conv(q, w2)",
    "an output": "a = Conv(x, w) y = Pad(a, p, v)",
    "a Sigmoid": "a = Conv(x, w) q = Pad(a, p, v) y = Sigmoid(q)",
    "one reader of two": f"a = Conv(x, w) q = Pad(a, p, v) s = {POOL}(q) b = Conv(s, w2) y = Neg(q)",
    "another factor": f"a = Conv(x, w) q = Pad(a, p, v) t = Mul(q, a2) y = {POOL}(t)",
}


@pytest.mark.parametrize("value", (LOWEST, -1e9, -65504, -INF))
@pytest.mark.parametrize("case", sorted(DROPPED))
def test_they_set_no_range_where_they_are_dropped(case: str, value: float) -> None:
    head, text, names = DROPPED[case]
    source = model(f"{head} {{ {text} }}", value)
    graph = model_io.load(source)
    found = sentinels(graph)
    known = {id(tensor): name for name, tensor in walk.tensors(graph).items()}
    assert {known[key] for key in found.bounds} == set(names.split())
    assert not found.counted
    seen = calibrate(graph, names.split(), ((str(i), feed) for i, feed in enumerate(feeds(source))))
    assert all(max(-one.low, one.high) < 100 for one in seen.observed.values())


@pytest.mark.parametrize("config", ("A8W8", "U8S8", "XINT8"))
@pytest.mark.parametrize("case", sorted(DROPPED))
def test_a_model_with_them_is_quantized_well(case: str, config: str) -> None:
    head, text, _ = DROPPED[case]
    assert decibels(model(f"{head} {{ {text} }}", LOWEST), config) > 25


@pytest.mark.parametrize("value", (LOWEST, -1e9))
def test_masks_that_are_added_to_some_tokens(value: float) -> None:
    """The mask itself is no operand of an integer Add: its range would be that of zero, or leave nothing."""
    source = model(f"{TOKENS} {{ {ADDED} }}", value)
    graph = model_io.load(source)
    found, known = sentinels(graph), {id(t): name for name, t in walk.tensors(graph).items()}
    assert {known[key] for key in found.bounds} == {"q", "t"}
    assert {known[key] for key in found.counted} == {"s"}
    assert min(decibels(source, config) for config in ("A8W8", "U8S8")) > 25


@pytest.mark.parametrize("case", sorted(COUNTED))
def test_they_count_where_something_reads_them(case: str) -> None:
    text = COUNTED[case].replace("a2", "w3")
    source = model(f"{IMAGE} {{ {text} }}", -1e9)
    if "w3" in text:
        source.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(2.5), "w3"))
    found = sentinels(model_io.load(source))
    assert not found.bounds and found.counted


def test_they_count_where_they_meet_numbers_of_another_tensor() -> None:
    """The end of the range of one may be above what the other holds."""
    text = f"a = Conv(x, w) q = Pad(a, p, v) b = Pad(x, p) c = Concat <axis = 1> (q, b) y = {POOL}(c)"
    graph = model_io.load(model(f"{IMAGE} {{ {text} }}", -1e9))
    found, known = sentinels(graph), walk.tensors(graph)
    assert found.counted == {id(known["q"])} and found.bounds.keys() == {id(known["c"])}


def test_ordinary_numbers_are_none() -> None:
    head, text, _ = DROPPED["Pad"]
    found = sentinels(model_io.load(model(f"{head} {{ {text} }}", -2)))
    assert not found.bounds and not found.counted


@pytest.mark.parametrize(
    ("values", "masks"),
    [
        ([1, -INF, 2], [0, 1, 0]),
        ([1, -1e4, 65504], [0, 1, 1]),
        ([2e5, 1.8e5], [0, 0]),
        ([2.0**24, 2e5], [1, 0]),
        ([1, np.nan, -INF], [0, 0, 0]),
        ([], []),
    ],
)
def test_masks_in_constants(values: list[float], masks: list[int]) -> None:
    np.testing.assert_array_equal(masks_in(np.float32(values)), np.bool_(masks))


def decibels(source: onnx.ModelProto, config: str) -> float:
    samples, graph = feeds(source), model_io.load(source)
    quantize_graph(graph, preset(config).by_rule(), CalibrationData(samples))
    wanted, found = (open_model(one) for one in (model_io.load(source), graph))
    pairs = [(wanted.run(feed)["y"], found.run(feed)["y"]) for feed in samples]
    error = sum(np.square(a - b, dtype=np.float64).sum() for a, b in pairs)
    return float(10 * np.log10(sum(np.square(a, dtype=np.float64).sum() for a, _ in pairs) / error))
