"""Packed weights in whole graphs. Oracle: the model before packing, its weights and outputs, bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

import ops
from ops.formats import FORMATS
from transforms import model_io
from transforms.functions import DOMAIN
from transforms.graph import walk
from transforms.graph.lazy_values import Computed
from transforms.model import graph_proto
from transforms.model.read_model import ModelError
from transforms.optimize import optimize
from transforms.pack_weights import PackedWeights, pack_weights
from transforms.runtime.session import open_session

BLOCKS = [name for name, fmt in FORMATS.items() if fmt.block > 1]
RNG = np.random.default_rng(0)


def on_grid(name: str, shape: tuple[int, ...], axis: int) -> np.ndarray:
    x = RNG.standard_normal(shape).astype(np.float32)
    return np.asarray(ops.quantize_dequantize(x, name, axis))


def dense(name: str, *, rows: int = 64, columns: int = 96, opset: int = 17) -> onnx.ModelProto:
    """Return x times a weight on the grid of a format."""
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": {opset}]> dense (float[N, {rows}] x) => (float[N, {columns}] y)
        <float[{rows}, {columns}] w> {{ y = MatMul (x, w) }}""")
    del model.graph.initializer[:]
    model.graph.initializer.append(numpy_helper.from_array(on_grid(name, (rows, columns), 0), "w"))
    return model


def outputs(model: onnx.ModelProto | Path, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Return outputs of a session without our library."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    return list(onnxruntime.InferenceSession(source, options).run(None, feeds))


def bits(arrays: list[np.ndarray]) -> list[bytes]:
    return [np.asarray(array).tobytes() for array in arrays]


@pytest.mark.parametrize("name", BLOCKS)
def test_outputs_weights_and_size(name: str, tmp_path: Path) -> None:
    model, feeds = dense(name), {"x": RNG.standard_normal((5, 64)).astype(np.float32)}
    graph, done = model_io.load(model), PackedWeights()
    assert pack_weights(graph, [FORMATS[name]], done=done) == 1
    assert pack_weights(graph) == 0
    model_io.save(graph, tmp_path / "packed.onnx")
    assert bits(outputs(tmp_path / "packed.onnx", feeds)) == bits(outputs(model, feeds))
    assert FORMATS[name].bits <= 8 * done.after / done.elements <= 1.1 * FORMATS[name].bits
    assert (done.before, dict(done.formats)) == (4 * 64 * 96, {name: 1})


@pytest.mark.parametrize("name", ["mx6", "mxint8"])
@pytest.mark.parametrize("columns", [96, 4096])
def test_what_is_read_again_has_the_weights(name: str, columns: int, tmp_path: Path) -> None:
    """Large ones are decoded when needed; no node, function or domain is left."""
    model = dense(name, columns=columns)
    graph = model_io.load(model)
    pack_weights(graph, [FORMATS[name]])
    for place in ("first.onnx", "again.onnx"):
        model_io.save(graph, tmp_path / place, external_data=columns > 96)
        graph = model_io.load(tmp_path / place)
        assert [node.op for node in graph.nodes] == ["MatMul"] and not graph.functions
        assert all(one.domain != DOMAIN for one in graph.import_domains)
        (weight,) = walk.constants(graph)
        assert isinstance(weight._values, Computed) == (columns > 96)
        assert weight.values.tobytes() == model.graph.initializer[0].raw_data
        assert pack_weights(graph, [FORMATS[name]]) == 1
    assert (tmp_path / "again.onnx").stat().st_size == (tmp_path / "first.onnx").stat().st_size


def test_sessions_and_rewrites_on_a_packed_graph() -> None:
    graph, feeds = model_io.load(dense("mx9")), {"x": RNG.standard_normal((5, 64)).astype(np.float32)}
    (expected,) = open_session(graph).run(feeds).values()
    pack_weights(graph)
    (found,) = open_session(graph).run(feeds).values()
    assert found.tobytes() == expected.tobytes()
    optimize(graph)
    (folded,) = open_session(graph).run(feeds).values()
    assert folded.tobytes() == expected.tobytes()


BODIES = """
    <ir_version: 8, opset_import: ["": 17]>
    bodies (float[4, 64] x, bool yes) => (float[4, 64] y, float[4, 64] z)
    <float[64, 64] outer> {
        y = If (yes) <
            then_branch = one () => (float[4, 64] a) <float[64, 64] inner> { a = MatMul (x, inner) },
            else_branch = two () => (float[4, 64] b) { b = MatMul (x, outer) }>
        z = MatMul (x, outer)
    }"""


def test_weights_of_bodies_and_shared_ones(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(BODIES)
    body = model.graph.node[0].attribute[0].g
    for graph, name in ((model.graph, "outer"), (body, "inner")):
        del graph.initializer[:]
        graph.initializer.append(numpy_helper.from_array(on_grid("mx6", (64, 64), 0), name))
    graph = model_io.load(model)
    assert pack_weights(graph) == 2
    assert [node.domain == DOMAIN for node in graph.nodes] == [True, False, False]
    model_io.save(graph, tmp_path / "packed.onnx")
    x = RNG.standard_normal((4, 64)).astype(np.float32)
    for yes in (True, False):
        feeds = {"x": x, "yes": np.array(yes)}
        assert bits(outputs(tmp_path / "packed.onnx", feeds)) == bits(outputs(model, feeds))
    again = model_io.load(tmp_path / "packed.onnx")
    found = sorted(tensor.values.tobytes() for tensor in walk.constants(again))
    assert found == sorted(g.initializer[0].raw_data for g in (model.graph, body))
    assert DOMAIN not in {node.domain for node in walk.nodes(again)}


def test_a_weight_read_along_two_axes() -> None:
    """Blocks run along the axis of either reader; both get the same numbers."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]> twice (float[4, 64] x) => (float[4, 64] y, float[4, 64] z)
        <float[64, 64] w> { y = MatMul (x, w) z = Gemm <transB: int = 1> (x, w) }""")
    del model.graph.initializer[:]
    model.graph.initializer.append(numpy_helper.from_array(on_grid("mx6", (64, 64), 1), "w"))
    graph, feeds = model_io.load(model), {"x": RNG.standard_normal((4, 64)).astype(np.float32)}
    assert pack_weights(graph) == 1
    assert bits(outputs(graph_proto.export_model(graph), feeds)) == bits(outputs(model, feeds))


def test_what_stays_as_it_is() -> None:
    """Numbers on no grid, small weights, other types, outputs, empty tensors."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        kept (float[64, 64] x) => (float[64, 64] y, float[64, 64] out, float[64, 0] none)
        <float[64, 64] out, float[64, 64] free, float[64] small, float16[64, 64] half,
         float[64, 0] empty, float number = {1}> {
            a = MatMul (x, out)
            c = MatMul (a, free)
            d = Add (c, small)
            e = Cast <to = 1> (half)
            f = Add (d, e)
            y = Mul (f, number)
            none = MatMul (x, empty)
        }""")
    grid = on_grid("mx4", (64, 64), 0)
    arrays = {
        "out": grid,
        "free": RNG.standard_normal((64, 64)).astype(np.float32),
        "small": on_grid("mx4", (64,), 0),
        "half": grid.astype(np.float16),
        "empty": np.zeros((64, 0), np.float32),
    }
    numbers = [tensor for tensor in model.graph.initializer if tensor.name == "number"]
    del model.graph.initializer[:]
    model.graph.initializer.extend(
        [*numbers, *(numpy_helper.from_array(a, name) for name, a in arrays.items())]
    )
    graph, done = model_io.load(model), PackedWeights()
    assert pack_weights(graph, done=done) == 0
    assert dict(done.left) == {"on no grid": 1, "too small": 3} and not done.formats


def test_nothing_is_packed_below_opset_13() -> None:
    with pytest.raises(ModelError, match="need opset 13, the model has 12"):
        pack_weights(model_io.load(dense("mx6", opset=12)))


def test_a_function_that_was_changed_is_an_ordinary_one() -> None:
    """Only functions made here are taken for what their names say; others are inlined, as any function is."""
    graph, feeds = model_io.load(dense("mxfp4")), {"x": RNG.standard_normal((2, 64)).astype(np.float32)}
    pack_weights(graph)
    model = graph_proto.export_model(graph)
    values = next(node for node in model.functions[0].node if node.output[0] == "values")
    doubled = numpy_helper.to_array(values.attribute[0].t) * 2
    values.attribute[0].t.CopyFrom(numpy_helper.from_array(doubled))
    expected = outputs(model, feeds)
    again = model_io.load(model)
    assert len(again.nodes) > 2
    assert bits(outputs(graph_proto.export_model(again), feeds)) == bits(expected)


@pytest.mark.parametrize(
    ("attribute", "numbers"),
    [("cut", [1, 64, 95]), ("shape", [96, 65]), ("blocks", [1, 1, 64, 96]), ("cut", [1])],
)
def test_calls_that_contradict_themselves_are_left_to_the_runtime(attribute: str, numbers: list[int]) -> None:
    graph = model_io.load(dense("mxfp4"))
    pack_weights(graph)
    model = graph_proto.export_model(graph)
    call = next(node for node in model.graph.node if node.domain == DOMAIN)
    given = next(one for one in call.attribute if one.name == attribute)
    given.ints[:] = numbers
    try:
        again = model_io.load(model)
    except ModelError:
        return
    assert len(again.nodes) > 2


def test_places_outside_of_the_weight_are_left_to_the_runtime() -> None:
    model = dense("mx6")
    w = numpy_helper.to_array(model.graph.initializer[0]).copy()
    w[0, 0] = np.nan
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(w, "w"))
    graph = model_io.load(model)
    assert pack_weights(graph) == 1
    packed = graph_proto.export_model(graph)
    places = next(tensor for tensor in packed.graph.initializer if tensor.name.endswith("places"))
    places.CopyFrom(numpy_helper.from_array(np.int32([64 * 96] * places.dims[0]), places.name))
    assert len(model_io.load(packed).nodes) > 2


def test_mapped_weights_are_packed_one_at_a_time(tmp_path: Path) -> None:
    """Codes of weights in mapped files are computed when they are written, and read back when needed."""
    model = dense("mx6", rows=256, columns=512)
    path = tmp_path / "plain.onnx"
    model_io.save(model_io.load(model), path, external_data=True)
    graph = model_io.load(path)
    assert pack_weights(graph) == 1
    codes = [tensor for tensor in walk.constants(graph) if "codes" in tensor.name]
    assert codes and all(isinstance(tensor._values, Computed) for tensor in codes)
    model_io.save(graph, tmp_path / "packed.onnx", external_data=True)
    feeds = {"x": RNG.standard_normal((5, 256)).astype(np.float32)}
    assert bits(outputs(tmp_path / "packed.onnx", feeds)) == bits(outputs(model, feeds))


def test_bytes_that_lie_elsewhere_are_left_to_the_runtime() -> None:
    """The function that decodes a large weight reads the shapes of its inputs; the numbers are the same."""
    model = dense("mx6", rows=512, columns=512)
    graph, feeds = model_io.load(model), {"x": RNG.standard_normal((2, 512)).astype(np.float32)}
    pack_weights(graph)
    packed = graph_proto.export_model(graph)
    codes = next(tensor for tensor in packed.graph.initializer if tensor.name.endswith("codes4"))
    codes.dims[:2] = [codes.dims[1], codes.dims[0]]
    try:
        expected = outputs(packed, feeds)
    except Exception:  # of the runtime
        expected = []
    try:
        again = model_io.load(packed)
    except ModelError:
        assert not expected
        return
    assert len(again.nodes) > 2


def test_packed_files_are_decoded_here_before_they_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runtime would keep all steps, for which there is a limit. Oracle: a plain session."""
    model = dense("mx6", rows=512, columns=512)
    graph, feeds = model_io.load(model), {"x": RNG.standard_normal((2, 512)).astype(np.float32)}
    pack_weights(graph)
    path = tmp_path / "packed.onnx"
    model_io.save(graph, path)
    monkeypatch.setattr("transforms.model.constant_size.ALL", 1 << 21)
    monkeypatch.setattr("transforms.model.constant_size.GROWTH", 1)
    assert bits(list(open_session(path).run(feeds).values())) == bits(outputs(model, feeds))
    foreign = onnx.load(path)
    foreign.functions[0].doc_string = "changed"
    onnx.save(foreign, path)
    with pytest.raises(ModelError, match=r"packed\.onnx.*constants up to here come to"):
        open_session(path)
