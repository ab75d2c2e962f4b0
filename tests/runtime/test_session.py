"""Oracle: the same model given to ONNX Runtime whole; memory as the system counts it."""

from __future__ import annotations

import gc
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

from tests.benchmarks.transformer import Size, transformer
from tests.helpers import build, tunable
from transforms import model_io
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.graph.lazy_values import is_weightless
from transforms.model import graph_proto
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.run.run_model import open_model
from transforms.runtime import session, weight_arrays
from transforms.runtime.session import OpenModel, RunOptions, open_light, open_session
from transforms.scheme import preset as preset_of

WIDE = Size(layers=1, width=256, heads=4, vocabulary=300, positions=16)
X = np.random.default_rng(0).standard_normal((3, 200)).astype(np.float32)


def whole(graph: gs.Graph, options: RunOptions | None = None) -> OpenModel:
    """Return the model, opened as one message with all its weights."""
    message = graph_proto.export_model(graph).SerializeToString()
    return OpenModel(ort.InferenceSession(message, session.session_settings(options or RunOptions())), {})


@pytest.mark.parametrize("options", [None, RunOptions(threads=1, optimize=False)])
def test_results_are_those_of_the_whole_model(options: RunOptions | None) -> None:
    graph = graph_proto.import_model(build.dense(width=200, layers=3))
    light, weights = graph_proto.export_light(graph)
    assert len(weights) == 3
    found = open_light(light, weights, options).run({"x": X})["y"]
    assert np.array_equal(found, whole(graph, options).run({"x": X})["y"])


def test_threads_that_do_not_spin_compute_the_same() -> None:
    """Oracle: threads that do, bit for bit; what the runtime is asked for."""
    graph = graph_proto.import_model(build.dense(width=200, layers=3))
    spinning, waiting = RunOptions(threads=2), RunOptions(threads=2, spin=False)
    found = [open_session(graph, options).run({"x": X})["y"] for options in (spinning, waiting)]
    assert found[0].tobytes() == found[1].tobytes()
    settings = session.session_settings(waiting)
    assert settings.get_session_config_entry("session.intra_op.allow_spinning") == "0"


@pytest.mark.parametrize("preset", [None, "A8W8", "MX6"])
def test_our_operators_are_registered_where_there_are_any(
    preset: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alike in results: a model with them could not be opened without."""
    calls: list[int] = []
    register = session.register_custom_ops
    monkeypatch.setattr(
        session, "register_custom_ops", lambda settings: (calls.append(1), register(settings))
    )
    source, data = tunable.matmul_net(), tunable.samples(tunable.matmul_net(), 2)
    graph = graph_proto.import_model(source) if preset is None else tunable.pair(source, preset, data)[1]
    calls.clear()
    found = open_session(graph).run(data[0])
    assert len(calls) == (preset == "MX6")
    for name, expected in whole(graph).run(data[0]).items():
        assert np.array_equal(found[name], expected)


@pytest.mark.parametrize("start", [open_session, open_model])
def test_a_graph_larger_than_a_message(
    start: Callable[[gs.Graph], OpenModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its weights of 160 kB are never part of a message."""
    graph = graph_proto.import_model(build.dense(width=200))
    monkeypatch.setattr(session, "PROTOBUF_LIMIT", 100_000)
    assert np.array_equal(start(graph).run({"x": X})["y"], whole(graph).run({"x": X})["y"])


def test_weights_outlive_who_made_them() -> None:
    model = open_light(*graph_proto.export_light(graph_proto.import_model(build.dense(width=200))))
    gc.collect()
    waste = [np.full((200, 200), np.nan, np.float32) for _ in range(20)]
    assert np.isfinite(model.run({"x": X})["y"]).all() and len(waste) == 20


def test_weights_that_are_stored_column_by_column() -> None:
    graph = graph_proto.import_model(build.dense(width=200))
    light, weights = graph_proto.export_light(graph)
    turned = {name: np.asfortranarray(array) for name, array in weights.items()}
    assert turned and not any(array.flags.c_contiguous for array in turned.values())
    expected = whole(graph).run({"x": X})["y"]
    assert np.array_equal(open_light(light, turned).run({"x": X})["y"], expected)


def test_weights_that_the_optimizer_transposes() -> None:
    """Transposes around an Add are dropped when the weight is transposed instead, without a new name."""
    cube = np.random.default_rng(2).standard_normal((32, 32, 32)).astype(np.float32)
    turn = {"perm": [2, 1, 0]}
    nodes = [
        helper.make_node("Transpose", ["x"], ["a"], **turn),
        helper.make_node("Add", ["a", "w"], ["b"]),
        helper.make_node("Transpose", ["b"], ["y"], **turn),
    ]
    ends = [build.value(name, cube.shape) for name in ("x", "y")]
    light, weights = graph_proto.export_light(
        graph_proto.import_model(build.model(nodes, ends[:1], ends[1:], {"w": cube}))
    )
    found = open_light(light, weights).run({"x": cube[::-1].copy()})["y"]
    assert list(weights) == ["w"] and np.array_equal(found, cube[::-1] + cube.T)


@pytest.mark.parametrize("options", [None, RunOptions(threads=1, prepack=False)])
def test_a_table_that_is_transposed_is_read_as_it_is(
    options: RunOptions | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Oracle: the whole model, whose output layer multiplies by the table of embeddings."""
    random = np.random.default_rng(0)
    table = numpy_helper.from_array(random.standard_normal((300, 96), np.float32), "table")
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["x"]),
        helper.make_node("Tanh", ["x"], ["state"]),
        helper.make_node("Transpose", ["table"], ["turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["state", "turned"], ["logits"]),
    ]
    ends = [
        helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, [None, None]),
        helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, [None, None, 300]),
    ]
    proto = helper.make_graph(nodes, "tied", ends[:1], ends[1:], [table])
    graph = graph_proto.import_model(helper.make_model(proto, opset_imports=[helper.make_opsetid("", 17)]))
    feed = {"ids": random.integers(0, 300, (1, 9))}
    expected = whole(graph, options).run(feed)["logits"]
    for most, left in ((weight_arrays._MOST_TRANSPOSED, []), (1000, ["table"])):
        monkeypatch.setattr(weight_arrays, "_MOST_TRANSPOSED", most)
        opened = open_session(graph, options)
        assert [one.name for one in opened.session.get_overridable_initializers()] == left
        assert [one.name for one in opened.inputs] == ["ids"]
        np.testing.assert_allclose(opened.run(feed)["logits"], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "dtype", [np.float16, np.float64, np.int8, np.uint8, np.int64, np.bool_, ml_dtypes.bfloat16]
)
def test_weights_of_every_type(dtype: type) -> None:
    """A large weight, cast to float32 and added up, is what NumPy makes of it."""
    weight = np.random.default_rng(1).integers(0, 2, 70_000).astype(dtype)
    nodes = [helper.make_node("Cast", ["w"], ["c"], to=1), helper.make_node("Add", ["x", "c"], ["y"])]
    ends = [build.value(name, [70_000]) for name in ("x", "y")]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    holder = numpy_helper.from_array(weight, "w")
    assert holder.data_type == kind
    graph = helper.make_graph(nodes, "graph", ends[:1], ends[1:], [holder])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    light, weights = graph_proto.export_light(graph_proto.import_model(model))
    x = np.ones(70_000, np.float32)
    found = open_light(light, weights).run({"x": x})["y"]
    assert list(weights) == ["w"] and np.array_equal(found, weight.astype(np.float32) + 1)


def test_captured_weights() -> None:
    """A large weight of the main graph that both branches of an If read."""
    weight = np.arange(20_000, dtype=np.float32)
    bodies = {
        name: helper.make_graph(
            [helper.make_node(op, ["x", "w"], ["p"])], name, [], [build.value("p", [20_000])]
        )
        for name, op in (("then_branch", "Add"), ("else_branch", "Sub"))
    }
    node = helper.make_node("If", ["c"], ["y"], **bodies)
    ends = [build.value("x", [20_000]), build.value("c", [], np.bool_)]
    model = build.model([node], ends, [build.value("y", [20_000])], {"w": weight})
    light, weights = graph_proto.export_light(graph_proto.import_model(model))
    opened = open_light(light, weights)
    for condition, sign in ((True, 1), (False, -1)):
        feed = {"x": np.ones(20_000, np.float32), "c": np.array(condition)}
        assert np.array_equal(opened.run(feed)["y"], 1 + sign * weight)


def test_a_provider_that_is_not_there() -> None:
    light, weights = graph_proto.export_light(graph_proto.import_model(build.dense()))
    with pytest.raises(ValueError, match="provider 'tpu' is not one of"):
        open_light(light, weights, RunOptions(provider="tpu"))


MEASURE = """
import numpy as np
from onnx import helper
from tests.helpers import build, tunable
from transforms.model import graph_proto
from transforms.runtime.session import open_light

def peak():
    status = open("/proc/self/status").read()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024

def light(model):
    return graph_proto.export_light(graph_proto.import_model(model))

table = np.ones((40_000, 400), np.float32)
node = helper.make_node("Gather", ["table", "i"], ["y"])
ends = build.value("i", ["n"], np.int64), build.value("y", ["n", 400])
model, weights = light(build.model([node], ends[:1], ends[1:], {"table": table}))
open_light(*light(build.dense())).run({"x": np.ones((1, 16), np.float32)})
open("/proc/self/clear_refs", "w").write("5")
before = peak()
open_light(model, weights).run({"i": np.arange(3)})
print((peak() - before) / table.nbytes)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_large_weights_are_copied_only_once() -> None:
    done = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True)
    assert 0 < float(done.stdout) < 1.2


@pytest.mark.parametrize("preset", ["BFP16", "BF16", "W4A8"])
def test_a_large_model_has_no_weight_in_memory(
    preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of weights in a file, and computed from them. Oracle: the results without a limit, bit for bit.

    One thread and no order of kernels, in which sums differ.
    """
    source = tmp_path / "m.onnx"
    onnx.save(transformer(WIDE), source, save_as_external_data=True, location="m.data")
    feed = {name: np.ones((1, 4), np.int64) for name in ("input_ids", "attention_mask")}
    results, kinds = [], []
    for limit in (1 << 31, 0):
        monkeypatch.setattr(session, "_MOST_COPIED", limit)
        graph = model_io.load(source)
        data = CalibrationData([feed], run=RunOptions(threads=1, prepack=False))
        quantize_graph(graph, preset_of(preset), data)
        opened = open_model(graph, RunOptions(threads=1, prepack=False, simulate=True))
        kinds.append([is_weightless(array) for array in opened._weights.values() if array.dtype.itemsize > 1])
        results.append(opened.run(feed)["last_hidden_state"])
    assert np.array_equal(*results)
    assert not all(kinds[0]) if preset != "W4A8" else True
    assert all(kinds[1]) and not list(Path(tempfile.gettempdir()).glob("onnx-narrow-*/weights"))


def test_many_inputs_give_what_few_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: the runtime's plain run; arrays of no axes and in another order of memory are among them."""
    names = [f"x{i}" for i in range(5)]
    nodes = [helper.make_node("Sum", names, ["y"]), helper.make_node("Neg", ["x4"], ["z"])]
    shapes = ([], [3], [2, 3], [2, 1], [2, 3])
    inputs = [build.value(n, shape) for n, shape in zip(names, shapes, strict=True)]
    outputs = [build.value(name, [2, 3]) for name in "yz"]
    model = build.model(nodes, inputs, outputs)
    random = np.random.default_rng(0)
    feed = {n: random.random(shape, np.float32) for n, shape in zip(names, shapes, strict=True)}
    feed["x4"] = np.asfortranarray(feed["x4"])
    opened = open_session(model_io.load(model))
    expected = opened.run(feed)
    monkeypatch.setattr(session, "_MANY", 2)
    for wanted in (["y", "z"], ["z"]):
        found = opened.run(feed, wanted)
        assert list(found) == wanted
        assert all(np.array_equal(found[name], expected[name]) for name in wanted)
