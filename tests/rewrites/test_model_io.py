"""Oracle: the bytes of files, and the model that went in."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.helpers import build, corpus
from transforms import model_io
from transforms.model import detached_weights, graph_proto

WIDE = 256
assert WIDE * WIDE * 4 >= detached_weights.LARGE


def test_a_path_and_a_model_load_alike(tmp_path: Path) -> None:
    model = build.dense(WIDE)
    path = build.save(model, tmp_path / "m.onnx")
    from_path, from_model = model_io.load(str(path)), model_io.load(model)
    assert from_path.source_sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (from_path.source_files, from_model.source_files) == ([path], [])
    assert from_model.source_sha256 is None
    exported = [graph_proto.export_model(graph) for graph in (from_path, from_model)]
    assert exported[0] == exported[1]


def test_shapes_and_types_are_inferred() -> None:
    graph = model_io.load(build.dense(16, layers=2))
    (tensor,) = graph.nodes[0].outputs
    assert (tensor.dtype, tensor.shape) == (np.float32, ["rows", 16])


@pytest.mark.parametrize("external", (False, True))
@pytest.mark.parametrize("width", (4, WIDE))
def test_save_writes_what_was_loaded(external: bool, width: int, tmp_path: Path) -> None:
    model = build.dense(width, layers=2)
    files = model_io.save(model_io.load(model), tmp_path / "out.onnx", external_data=external)
    assert sorted(files) == sorted(tmp_path.iterdir())
    assert files[0] == tmp_path / "out.onnx"
    again = onnx.load(tmp_path / "out.onnx")
    found = {t.name: numpy_helper.to_array(t) for t in again.graph.initializer}
    for tensor in model.graph.initializer:
        assert np.array_equal(found[tensor.name], numpy_helper.to_array(tensor))
    onnx.checker.check_model(str(tmp_path / "out.onnx"), full_check=True)


def test_external_data_is_aligned_and_ordered(tmp_path: Path) -> None:
    model_io.save(model_io.load(build.dense(200, layers=3)), tmp_path / "out.onnx", external_data=True)
    stored = onnx.load(tmp_path / "out.onnx", load_external_data=False)
    entries = [{e.key: e.value for e in t.external_data} for t in stored.graph.initializer]
    offsets = [int(entry["offset"]) for entry in entries]
    assert offsets == sorted(offsets)
    assert all(offset % 4096 == 0 for offset in offsets)
    content = next(tmp_path.glob("*.data")).read_bytes()
    name = f"out.onnx.{hashlib.sha256(content).hexdigest()[:16]}.data"
    assert {entry["location"] for entry in entries} == {name}
    assert {int(entry["length"]) for entry in entries} == {200 * 200 * 4}


def test_external_data_in_and_out_beside_each_other(tmp_path: Path) -> None:
    path = build.save_external(build.dense(WIDE), tmp_path / "in.onnx", "in.weights")
    graph = model_io.load(path)
    assert graph.source_files == [path, tmp_path / "in.weights"]
    _, data = model_io.save(graph, tmp_path / "out.onnx", external_data=True)
    name = data.name.replace("out", "other")
    other = model_io.load(build.save_external(build.dense(WIDE, seed=1), tmp_path / "in2.onnx", name))
    other.nodes, other.inputs, other.outputs = graph.nodes, graph.inputs, graph.outputs
    with pytest.raises(ValueError, match=f"{name}' belongs to the input"):
        model_io.save(other, tmp_path / "other.onnx", external_data=True)
    with pytest.raises(ValueError, match="belongs to the input"):
        model_io.save(graph, path)


def test_metadata_is_added_and_replaced(tmp_path: Path) -> None:
    model = build.dense(4)
    model.metadata_props.add(key="kept", value="1")
    model.metadata_props.add(key="replaced", value="old")
    model_io.save(model_io.load(model), tmp_path / "out.onnx", metadata={"replaced": "new", "added": "2"})
    found = {p.key: p.value for p in onnx.load(tmp_path / "out.onnx").metadata_props}
    assert found == {"kept": "1", "replaced": "new", "added": "2"}


def test_an_invalid_graph_is_not_written(tmp_path: Path) -> None:
    graph = model_io.load(corpus.build("two consumers"))
    graph.nodes.reverse()
    with pytest.raises(model_io.ModelError, match=r"does not pass onnx\.checker"):
        model_io.save(graph, tmp_path / "out.onnx")
    assert list(tmp_path.iterdir()) == []


def test_an_output_of_unknown_shape_is_named(tmp_path: Path) -> None:
    text = "(float[2] x) => (float[2] y) { y = own.Odd(x) }"
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 17, "own": 1]> main {text}')
    model.graph.output[0].type.tensor_type.ClearField("shape")
    with pytest.raises(model_io.ModelError, match=r"^output 'y' has no shape: the model declares none"):
        model_io.save(model_io.load(model), tmp_path / "out.onnx")


def test_same_bytes_twice(tmp_path: Path) -> None:
    for name in ("a", "b"):
        model_io.save(
            model_io.load(corpus.build("nested if")), tmp_path / name, metadata={"y": "1", "x": "2"}
        )
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_check_output(tmp_path: Path) -> None:
    source = build.save(build.dense(4), tmp_path / "in.onnx")
    target = tmp_path / "out.onnx"
    assert model_io.check_output(str(target), source) == target
    (tmp_path / "link.onnx").symlink_to(source)
    for path in (source, tmp_path / "link.onnx"):
        with pytest.raises(ValueError, match="input itself"):
            model_io.check_output(path, source, force=True)
    with pytest.raises(ValueError, match="is a folder"):
        model_io.check_output(tmp_path, source, force=True)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        model_io.check_output(tmp_path / "missing" / "out.onnx", source)
    target.touch()
    with pytest.raises(FileExistsError, match="force overwrites"):
        model_io.check_output(target, source)
    assert model_io.check_output(target, source, force=True) == target


def claim(tensor: TensorProto) -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("Identity", ["w"], ["y"])], "g", [], [build.value("y", None)], [tensor]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(
    ("tensor", "words"),
    (
        (TensorProto(name="w", data_type=1, dims=[3], raw_data=b"1234"), "'w'"),
        (TensorProto(name="w", data_type=1, dims=[1 << 40, 1 << 40], raw_data=b"1234"), "'w'"),
        (TensorProto(name="w", data_type=1, dims=[-1], raw_data=b"1234"), "negative"),
        (TensorProto(name="w", data_type=99, dims=[1], raw_data=b"1234"), "unknown element type 99"),
    ),
)
def test_tensors_that_claim_more_than_they_hold(tensor: TensorProto, words: str, tmp_path: Path) -> None:
    path = build.save(claim(tensor), tmp_path / "in.onnx")
    with pytest.raises(model_io.ModelError, match=words):
        model_io.load(path)


def test_what_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        model_io.load(tmp_path / "missing.onnx")
    for data in (b"", b"not a model", build.dense(4).SerializeToString()[:-9]):
        (tmp_path / "in.onnx").write_bytes(data)
        with pytest.raises(model_io.ModelError, match="not an ONNX model"):
            model_io.load(tmp_path / "in.onnx")
