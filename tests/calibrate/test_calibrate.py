"""Oracle: a session with every tensor as an output and without optimization, and NumPy on its arrays."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import helper

import ops
from ops.formats import get_format
from tests.helpers import build, corpus
from transforms.calibrate.calibrate import Calibration, CalibrationOptions, calibrate
from transforms.calibrate.methods import METHODS
from transforms.model import graph_proto
from transforms.runtime.session import RunOptions

Feed = Mapping[str, NDArray]
PLAIN = RunOptions(threads=1, optimize=False)
NAN, INF = np.float32(np.nan), np.float32(np.inf)


def named(feeds: Sequence[Feed]) -> list[tuple[str, Feed]]:
    return [(f"s{i}", feed) for i, feed in enumerate(feeds)]


def all_arrays(model: onnx.ModelProto, feed: Feed) -> dict[str, NDArray]:
    """Every tensor of the main graph that a node makes."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    names = [name for node in model.graph.node for name in node.output if name]
    del copy.graph.output[:]
    copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    ops.register_custom_ops(options)
    session = ort.InferenceSession(copy.SerializeToString(), options)
    return dict(zip(names, session.run(names, dict(feed)), strict=True))


def float_names(arrays: Mapping[str, object]) -> list[str]:
    return [n for n, x in arrays.items() if isinstance(x, np.ndarray) and x.dtype == np.float32 and x.size]


def run(
    model: onnx.ModelProto,
    names: Sequence[str],
    feeds: Sequence[Feed],
    method: str = "MinMax",
    **more: object,
) -> Calibration:
    graph = graph_proto.import_model(model)
    return calibrate(graph, names, named(feeds), CalibrationOptions(method), run=PLAIN, **more)  # type: ignore[arg-type]


def int8(found: Calibration, name: str, *, symmetric: bool = True) -> tuple[float, float]:
    return found.range(name, get_format("int8"), symmetric=symmetric)


def dense_feeds(count: int, *, rows: int = 3, width: int = 16) -> list[dict[str, NDArray]]:
    random = np.random.default_rng(3)
    return [{"x": random.standard_normal((rows, width)).astype(np.float32)} for _ in range(count)]


NOT_COMPARED = {
    "optional": {"o"},  # no tensor
    "half island": {"f", "y"},  # behind a pair of Casts that the runtime drops at times
}


@pytest.mark.parametrize("method", ["MinMax", "MSE"])
@pytest.mark.parametrize("name", sorted(corpus.MODELS))
def test_extremes_of_every_tensor_of_the_corpus(name: str, method: str) -> None:
    model = corpus.build(name)
    feeds = [corpus.feeds(model), corpus.feeds(model)]
    factor = 1.5 if name == "resize computed" else -1
    feeds[1] = {n: np.asarray(x * factor, x.dtype) if x.dtype.kind == "f" else x for n, x in feeds[1].items()}
    arrays = [all_arrays(model, feed) for feed in feeds]
    names = [n for n in float_names(arrays[0]) + float_names(feeds[0]) if n not in NOT_COMPARED.get(name, ())]
    found = run(model, names, feeds, method)
    assert set(found.observed) == set(names)
    for tensor in names:
        both = [({**array, **feed})[tensor] for array, feed in zip(arrays, feeds, strict=True)]
        finite = np.concatenate([x[np.isfinite(x)].reshape(-1) for x in both])
        one = found.observed[tensor]
        assert (one.low, one.high) == (finite.min(), finite.max())
        if one.histogram:
            assert one.histogram.counts.sum() == finite.size


def test_the_optimized_model_gives_the_same_up_to_rounding() -> None:
    model, feeds = build.dense(layers=3), dense_feeds(4)
    names = [name for node in model.graph.node for name in node.output]
    exact, quick = run(model, names, feeds), calibrate(graph_proto.import_model(model), names, named(feeds))
    for name in names:
        assert int8(exact, name) == pytest.approx(int8(quick, name), rel=1e-5)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_the_graph_is_not_changed_and_the_result_is_the_same_again(method: str) -> None:
    graph = graph_proto.import_model(build.dense(width=160, layers=2))
    before = graph_proto.export_model(graph).SerializeToString(deterministic=True)
    options, feeds = CalibrationOptions(method), named(dense_feeds(3, width=160))
    names = ["x", "matmul0_out", "y", "weight0"]
    first, second = (calibrate(graph, names, feeds, options) for _ in range(2))
    assert graph_proto.export_model(graph).SerializeToString(deterministic=True) == before
    for name in names:
        assert int8(first, name) == int8(second, name)


def test_one_pass_serves_symmetric_and_asymmetric_ranges_of_any_format() -> None:
    """An asymmetric grid is twice as fine for numbers of one sign, so it pays to clip less of them."""
    x = np.random.default_rng(4).exponential(size=20_000).astype(np.float32)
    found = run(corpus.build("relu only"), ["y"], [{"x": x}], "MSE")
    signed = int8(found, "y")[1]
    unsigned = found.range("y", get_format("uint8"), symmetric=False)[1]
    wide = found.range("y", get_format("int16"), symmetric=True)[1]
    assert signed < unsigned < wide <= x.max()


def test_the_data_are_taken_once_one_sample_at_a_time() -> None:
    alive: list[int] = []

    class Sample(dict):  # type: ignore[type-arg]
        def __del__(self) -> None:
            alive.pop()

    def generate() -> Iterator[tuple[str, Feed]]:
        for i, feed in enumerate(dense_feeds(6)):
            alive.append(i)
            assert len(alive) <= 2
            yield str(i), Sample(feed)

    found = calibrate(graph_proto.import_model(build.dense()), ["y"], generate())
    assert int8(found, "y") == pytest.approx(int8(run(build.dense(), ["y"], dense_feeds(6)), "y"), rel=1e-5)


@pytest.mark.parametrize("method", ["MinMax", "Entropy"])
def test_memory_does_not_depend_on_the_number_of_samples(method: str) -> None:
    graph, array = graph_proto.import_model(build.dense()), np.ones((4096, 16), np.float32)

    def peak(count: int) -> int:
        feeds = ((str(i), {"x": array * np.float32(i + 1)}) for i in range(count))
        tracemalloc.start()
        calibrate(graph, ["x", "matmul0_out", "y"], feeds, CalibrationOptions(method))
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size

    peak(1)
    few, many = peak(4), peak(40)
    assert many < few + array.nbytes / 2


def test_progress() -> None:
    calls: list[tuple[int, int | None]] = []
    graph = graph_proto.import_model(build.dense())
    report = lambda done, total: calls.append((done, total))  # noqa: E731
    calibrate(graph, ["y"], named(dense_feeds(3)), progress=report)
    calibrate(graph, ["y"], iter(named(dense_feeds(2))), progress=report)
    assert calls[:3] == [(1, 3), (2, 3), (3, 3)] and [done for done, _ in calls[3:]] == [1, 2]


def test_constants_need_no_feed() -> None:
    model = build.dense()
    graph = graph_proto.import_model(model)

    def never() -> Iterator[tuple[str, Feed]]:
        raise AssertionError("nothing depends on the feeds")
        yield

    weight = onnx.numpy_helper.to_array(model.graph.initializer[0])
    found = calibrate(graph, ["weight0"], never())
    assert int8(found, "weight0") == (weight.min(), weight.max())


@pytest.mark.parametrize("method", ["MinMax", "MSE"])
def test_moments_per_channel(method: str) -> None:
    model, feeds = build.dense(width=16), dense_feeds(3) + dense_feeds(2, rows=7)
    found = run(model, ["y"], feeds, method, channels=[("matmul0_out", -1), ("x", 1), ("weight0", 0)])
    arrays = [all_arrays(model, feed) | feed for feed in feeds]
    for name, axis in (("matmul0_out", -1), ("x", 1)):
        x = np.concatenate([array[name] for array in arrays]).astype(np.float64)
        moments = found.observed[name].moments[axis]
        assert moments.count == len(x) == 3 * 3 + 2 * 7
        np.testing.assert_allclose(moments.means[0] * moments.count, x.sum(axis=0), rtol=1e-12)
        np.testing.assert_allclose(moments.means[1], np.square(x).mean(axis=0), rtol=1e-12)
        assert found.observed[name].high == x.max()
    weight = onnx.numpy_helper.to_array(model.graph.initializer[0]).astype(np.float64)
    total = found.observed["weight0"].moments[0].sums
    assert total is not None
    np.testing.assert_allclose(total[0], weight.sum(axis=1), rtol=1e-12)


def test_moments_along_an_axis_that_is_not_there() -> None:
    with pytest.raises(ValueError, match=r"sample 's0', tensor 'y': axis 2 is out of range for rank 2"):
        run(build.dense(), [], dense_feeds(1), channels=[("y", 2)])


def test_channels_that_change() -> None:
    model = corpus.build("relu only")
    feeds = [{"x": np.ones(size, np.float32)} for size in (3, 4)]
    with pytest.raises(
        ValueError, match=r"sample 's1', tensor 'y': 4 channels instead of 3 in earlier samples"
    ):
        run(model, [], feeds, channels=[("y", 0)])


def test_moving_average_over_samples() -> None:
    model = corpus.build("relu only")
    feeds = [{"x": np.float32([0, high])} for high in (4, 8, 2)]
    options = CalibrationOptions(moving_average=True, averaging_constant=0.5)
    found = calibrate(graph_proto.import_model(model), ["y"], named(feeds), options)
    assert int8(found, "y") == (0, 4) and found.observed["y"].high == 8


@pytest.mark.parametrize("domain", [ops.DOMAIN, ops.AMD_DOMAIN])
@pytest.mark.parametrize("method", ["MinMax", "MSE"])
def test_operators_of_ours_in_the_model(domain: str, method: str) -> None:
    block = {"bit_width": 16, "block_size": 8, "rounding_mode": 2, "bfp_method": "to_bfp", "axis": 1}
    nodes = [
        helper.make_node("Tanh", ["x"], ["t"]),
        helper.make_node("BFPQuantizeDequantize", ["t"], ["q"], domain=domain, **block),
        helper.make_node("Exp", ["q"], ["y"]),
    ]
    ends = [build.value(name, ["rows", 16]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "graph", ends[:1], ends[1:])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    feeds = dense_feeds(2)
    found = run(model, ["t", "q", "y"], feeds, method)
    for name in ("t", "q", "y"):
        x = np.concatenate([all_arrays(model, feed)[name] for feed in feeds])
        assert (found.observed[name].low, found.observed[name].high) == (x.min(), x.max())


@pytest.mark.parametrize("method", ["MinMax", "MSE"])
def test_infinite_numbers_do_not_count(method: str) -> None:
    model = corpus.parse("(float[N] x) => (float[N] y) { a = Neg(x) y = Identity(a) }")
    feeds = [{"x": np.float32([1, INF, -2])}, {"x": np.float32([-INF, 3])}, {"x": np.float32([INF])}]
    found = run(model, ["x", "a", "y"], feeds, method)
    for name in ("a", "y"):
        assert (found.observed[name].low, found.observed[name].high) == (-3, 2)


@pytest.mark.parametrize("method", ["MinMax", "MSE"])
def test_a_tensor_of_which_no_number_was_seen(method: str) -> None:
    found = run(corpus.build("relu only"), ["x"], [{"x": np.empty(0, np.float32)}], method)
    with pytest.raises(ValueError, match="tensor 'x' has no range: it had no elements in any sample"):
        int8(found, "x")


@pytest.mark.parametrize("method", ["MinMax", "MSE", "Entropy", "Percentile", "Extrapolated", "Wide"])
def test_a_tensor_of_infinities_alone_has_the_range_of_zero(method: str) -> None:
    found = run(corpus.build("relu only"), ["x"], [{"x": np.float32([INF, -INF])}], method)
    assert int8(found, "x") == (0, 0)


def test_a_tensor_that_was_not_calibrated() -> None:
    found = run(build.dense(), ["y"], dense_feeds(1))
    with pytest.raises(ValueError, match="tensor 'x' was not calibrated"):
        int8(found, "x")


def test_a_format_without_ranges() -> None:
    found = run(build.dense(), ["y"], dense_feeds(1))
    with pytest.raises(ValueError, match="tensor 'y' has no range: format 'mx9' has no scale"):
        found.range("y", get_format("mx9"), symmetric=True)


REACHING = {
    "in the output": "y = Sqrt(x)",
    "by Relu": "a = Sqrt(x) y = Relu(a)",
    "by Add, then Relu": "a = Sqrt(x) b = Add(a, x) y = Relu(b)",
    "behind a tensor that is not watched": "c = Sqrt(x) a = Neg(c) y = Relu(a)",
}


@pytest.mark.parametrize("place", [0, 16])
@pytest.mark.parametrize("case", sorted(REACHING))
def test_nan_that_reaches_an_output_is_an_error(case: str, place: int) -> None:
    model = corpus.parse(f"(float[N] x) => (float[N] y) {{ {REACHING[case]} }}")
    good, bad = np.ones(17, np.float32), np.ones(17, np.float32)
    bad[place] = -1
    tensor = "y" if case == "in the output" else "a"
    with pytest.raises(ValueError, match="sample 's1', tensor 'y': it holds NaN"):
        run(model, [tensor], [{"x": good}, {"x": bad}])


UNSEEN = {
    "a comparison": "a = Sqrt(x) b = Less(a, x) y = Cast <to = 1> (b)",
    "a guard": "a = Sqrt(x) b = IsNaN(a) y = Where(b, x, a)",
    "rows that are cut off": "a = Sqrt(x) y = Slice(a, one, end)",
}


@pytest.mark.parametrize("method", ["MinMax", "MSE"])
@pytest.mark.parametrize("case", sorted(UNSEEN))
def test_nan_that_no_output_sees_is_left_out(case: str, method: str) -> None:
    inits = "<int64[1] one = {1}, int64[1] end = {99}>"
    model = corpus.parse(f"(float[N] x) => (float[M] y) {inits} {{ {UNSEEN[case]} }}")
    feeds = [{"x": np.float32([-1, 4, 9])}, {"x": np.float32([-2, 16, 25])}]
    one = run(model, ["a"], feeds, method, channels=[("a", 0)]).observed["a"]
    assert (one.low, one.high, one.has_nan) == (2, 5, True)
    assert one.moments[0].sums is not None
    np.testing.assert_array_equal(one.moments[0].sums[0], [0, 6, 8])


def test_the_infinity_that_is_told_is_on_the_way_to_the_output() -> None:
    """A guarded quotient of infinities has nothing to do with the root of a negative number."""
    text = "{ e = Exp(h) d = Div(e, e) g = IsNaN(d) z = Where(g, h, d) y = Sqrt(x) }"
    model = corpus.parse(f"(float[N] x, float[N] h) => (float[N] z, float[N] y) {text}")
    with pytest.raises(ValueError, match="sample 's0', tensor 'y': it holds NaN"):
        run(model, ["z"], [{"x": np.float32([-1]), "h": np.float32([1000])}])


def test_nan_in_an_output_that_nobody_asked_for() -> None:
    model = corpus.parse("(float[N] x) => (float[N] y) { a = Neg(x) y = Sqrt(x) }")
    with pytest.raises(ValueError, match="sample 's0', tensor 'y': it holds NaN"):
        run(model, ["a"], [{"x": np.float32([-1])}])


def test_nan_in_an_output_beside_moments() -> None:
    model = corpus.parse("(float[N] x) => (float[N] y) { a = Neg(x) y = Sqrt(x) }")
    with pytest.raises(ValueError, match="sample 's0', tensor 'y': it holds NaN"):
        run(model, [], [{"x": np.float32([-1])}], channels=[("a", 0)])


def test_a_sample_with_which_the_model_fails() -> None:
    model = corpus.parse("(int64[N] i) => (float[N] y) <float[2] t = {1, 2}> { g = Gather(t, i) y = Neg(g) }")
    feeds = [{"i": np.array([1])}, {"i": np.array([7])}]
    with pytest.raises(ValueError, match=r"^sample 's1': the model fails: .*out of data bounds[^\n]*$"):
        run(model, ["g"], feeds)


def test_nan_in_a_constant() -> None:
    model = build.dense()
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.full((16, 16), NAN), "weight0"))
    with pytest.raises(ValueError, match="constant 'weight0': it holds NaN"):
        run(model, ["weight0"], dense_feeds(1))


def test_sums_that_overflow_are_not_nan() -> None:
    model, huge = corpus.build("relu only"), np.full(100, 3e38, np.float32)
    found = run(model, ["x", "y"], [{"x": huge}, {"x": -huge}])
    assert (found.observed["x"].low, found.observed["x"].high) == (-huge[0], huge[0])
    assert int8(found, "y") == (0, huge[0])


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("layers", "nowhere", "tensor 'nowhere' cannot be calibrated: it is not in the model"),
        (
            "if",
            "q",
            "tensor 'q' cannot be calibrated: it is inside a body of the model, not in its main graph",
        ),
        ("integers", "j", "'j' is a tensor(int64), only tensors of float32 have ranges"),
        ("integers", "i", "'i' is a tensor(int64), only tensors of float32 have ranges"),
        ("integers", "one", "'one' is a tensor(int64), only tensors of float32 have ranges"),
        ("casts", "d", "'d' is a tensor(double), only tensors of float32 have ranges"),
        ("half island", "h", "'h' is a tensor(float16), only tensors of float32 have ranges"),
        ("bool and where", "c", "'c' is a tensor(bool), only tensors of float32 have ranges"),
    ],
)
@pytest.mark.parametrize("method", ["MinMax", "MSE"])
def test_tensors_that_have_no_range(name: str, tensor: str, message: str, method: str) -> None:
    model = corpus.build(name)
    with pytest.raises(ValueError) as caught:
        run(model, [tensor], [corpus.feeds(model)], method)
    assert str(caught.value) == message


def test_no_samples() -> None:
    with pytest.raises(ValueError, match="the calibration data hold no sample"):
        run(build.dense(), ["y"], [])


def test_a_model_that_the_runtime_refuses() -> None:
    node = helper.make_node("Nonsense", ["x"], ["y"], domain="nowhere")
    ends = [build.value(name, [1]) for name in ("x", "y")]
    graph = helper.make_graph([node], "graph", ends[:1], ends[1:])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("nowhere", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    with pytest.raises(ValueError, match=r"ONNX Runtime refuses the model: .*Nonsense"):
        run(model, ["y"], [{"x": np.ones(1, np.float32)}])


@pytest.mark.parametrize("method", ["MinMax", "MSE"])
@pytest.mark.parametrize(
    ("text", "x", "cause"),
    [
        ("{ a = Relu(x) b = Sub(a, a) y = Neg(b) }", np.inf, "input 'x'"),
        ("{ a = Neg(x) b = Mul(a, k) y = Neg(b) }", 0, "constant 'k'"),
        ("{ a = Exp(x) b = Div(a, a) y = Neg(b) }", 1000, "tensor 'a'"),
    ],
)
def test_nan_that_infinity_becomes_is_told_as_that(method: str, text: str, x: float, cause: str) -> None:
    text = f"(float[N] x) => (float[N] y) <float[1] k = {{1}}> {text}"
    model = corpus.parse(text)
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.float32([np.inf]), "k"))
    message = f"sample 's1', {cause}: it holds inf, of which tensor 'b' becomes NaN"
    with pytest.raises(ValueError, match=message) as caught:
        run(model, ["y"], [{"x": np.float32([1, 2])}, {"x": np.float32([1, x])}], method)
    assert "\n" not in str(caught.value)


def test_infinity_beside_nan_is_not_its_cause() -> None:
    """The mask of an attention holds -inf as a matter of course."""
    text = """(float[N] x) => (float[N] y, float[N] z) <float[1] k = {1}> {
        a = Add(x, k) z = Exp(a) y = Sqrt(x) }"""
    model = corpus.parse(text)
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.float32([-np.inf]), "k"))
    with pytest.raises(ValueError, match="sample 's0', tensor 'y': it holds NaN"):
        run(model, ["y"], [{"x": np.float32([-1])}])
