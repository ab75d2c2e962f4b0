"""Both converters refuse bad files, paths and options in one line that names the thing, and touch nothing."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.helpers import build
from tests.helpers.refusal import TOOLS, Scene

OTHER_TOOL = dict(zip(TOOLS, reversed(TOOLS), strict=True))

NOT_MODELS = {
    "empty": b"",
    "text": b"weights of the network\n" * 40,
    "json": json.dumps({"graph": {"node": []}, "opset_import": []}).encode(),
    "zeros": bytes(100),
    "picture": b"\x89PNG\r\n\x1a\n" + bytes(64),
    "archive": b"PK\x03\x04" + bytes(64),
    "pointer of git lfs": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n",
    "no graph": onnx.ModelProto(ir_version=8, opset_import=[helper.make_opsetid("", 17)]).SerializeToString(),
}


def test_the_scene_itself_is_sound(scene: Scene) -> None:
    scene.write()
    assert scene.convert() == (0, "")
    files = sorted(path.name for path in scene.folder.rglob("*") if path.is_file())
    assert files == ["model.onnx", "result.onnx"]


# The input file


def test_missing_file(scene: Scene) -> None:
    assert "model.onnx" in scene.refused()


def test_folder_as_input(scene: Scene) -> None:
    scene.source.mkdir()
    assert "model.onnx" in scene.refused()


@pytest.mark.parametrize("kind", NOT_MODELS)
def test_not_an_onnx_file(scene: Scene, kind: str) -> None:
    scene.write(NOT_MODELS[kind])
    assert "model.onnx" in scene.refused()


def test_file_truncated_anywhere(scene: Scene) -> None:
    whole = build.dense(dtype=scene.dtype).SerializeToString()
    boundary = whole.rindex(build.dense().opset_import[0].SerializeToString())
    for size in {*range(1, len(whole), len(whole) // 12), boundary - 2, boundary, len(whole) - 1}:
        scene.write(whole[:size])
        assert "model.onnx" in scene.refused()


@pytest.mark.heavy
def test_file_with_damaged_bytes_is_converted_or_refused(scene: Scene) -> None:
    whole = np.frombuffer(build.dense(4, dtype=scene.dtype).SerializeToString(), np.uint8)
    random = np.random.default_rng(7)
    refusals = 0
    for _ in range(100):
        damaged = whole.copy()
        damaged[random.integers(len(whole), size=2)] = random.integers(256, size=2)
        scene.write(damaged.tobytes())
        code, errors = scene.convert("--force")
        if code:
            scene.message(code, errors)
            refusals += 1
        assert {path.name for path in scene.target.parent.iterdir()} <= {"result.onnx"}
    assert 20 < refusals < 100  # the names and weights may change, the structure may not


def test_wrong_tool_for_the_type_names_the_right_one(scene: Scene) -> None:
    scene.write(build.dense(dtype=TOOLS[OTHER_TOOL[scene.tool]]))
    assert OTHER_TOOL[scene.tool] in scene.refused()


def _field(number: int, content: bytes) -> bytes:
    """Return a protobuf field that holds a message of up to 2 MiB."""
    length = len(content)
    return bytes([number << 3 | 2, length & 127 | 128, length >> 7 & 127 | 128, length >> 14]) + content


def test_subgraphs_nested_beyond_reason(scene: Scene) -> None:
    graph = b""
    for _ in range(10_000):
        graph = _field(
            1, _field(5, _field(6, graph))
        )  # GraphProto.node, NodeProto.attribute, AttributeProto.g
    scene.write(_field(7, graph) + onnx.ModelProto(ir_version=8).SerializeToString())
    assert "model.onnx" in scene.refused()


# Tensors that claim what the file does not hold


def test_tensor_with_other_bytes_than_its_shape_claims(scene: Scene) -> None:
    for cut in (0, 1, 100):
        model = build.dense(dtype=scene.dtype)
        model.graph.initializer[0].raw_data = model.graph.initializer[0].raw_data[:cut]
        scene.write(model)
        assert "weight0" in scene.refused()


@pytest.mark.parametrize(
    "dims",
    [(2**50, 2), (2**32, 2**32), (2**62, 4), (-1, 16), (16, -16)],
    ids=lambda dims: "x".join(map(str, dims)),
)
@pytest.mark.parametrize("empty", [False, True], ids=["bytes", "no bytes"])
def test_tensor_of_impossible_shape(scene: Scene, dims: tuple[int, int], empty: bool) -> None:
    model = build.dense(dtype=scene.dtype)
    weight = model.graph.initializer[0]
    weight.dims[:] = dims
    weight.raw_data = b"" if empty else weight.raw_data
    scene.write(model)
    assert "weight0" in scene.refused()


@pytest.mark.parametrize("dims", [(16, 16), (2**50, 2)], ids=["16x16", "huge"])
@pytest.mark.parametrize("values", [0, 1, 300])
def test_tensor_in_typed_fields_of_other_number_than_its_shape(
    scene: Scene, dims: tuple[int, int], values: int
) -> None:
    model = build.dense(dtype=scene.dtype)
    weight = model.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.dims[:] = dims
    getattr(weight, helper.tensor_dtype_to_field(weight.data_type)).extend([1] * values)
    scene.write(model)
    assert "weight0" in scene.refused()


def test_constant_node_that_claims_more_than_it_holds(scene: Scene) -> None:
    model = build.dense(dtype=scene.dtype)
    weight = model.graph.initializer.pop()
    weight.raw_data = weight.raw_data[:100]
    model.graph.node.insert(0, helper.make_node("Constant", [], ["weight0"], "constant", value=weight))
    scene.write(model)
    assert "weight0" in scene.refused()


@pytest.mark.parametrize("code", [0, 999])
def test_tensor_of_unknown_type(scene: Scene, code: int) -> None:
    model = build.dense(dtype=scene.dtype)
    model.graph.initializer[0].data_type = code
    scene.write(model)
    assert "weight0" in scene.refused()


# External data

DAMAGES = {
    "outside": {"location": "../secret.data"},
    "outside by detour": {"location": "sub/../../secret.data"},
    "absolute": {"location": "/etc/hostname"},
    "nowhere": {"location": "other.data"},
    "folder": {"location": "."},
    "length beyond the end": {"length": "1000000"},
    "length beyond reason": {"length": str(2**62)},
    "length below the shape": {"length": "8"},
    "length is no number": {"length": "many"},
    "negative length": {"length": "-4"},
    "offset beyond the end": {"offset": "1000000"},
    "negative offset": {"offset": "-4"},
}


def test_model_with_external_data_is_accepted_when_sound(scene: Scene) -> None:
    build.save_external(build.dense(dtype=scene.dtype), scene.source, "weights.data")
    assert scene.convert() == (0, "")


def test_external_data_that_is_missing(scene: Scene) -> None:
    build.save_external(build.dense(dtype=scene.dtype), scene.source, "weights.data")
    scene.source.with_name("weights.data").unlink()
    assert "weights.data" in scene.refused()


def test_external_data_shorter_than_claimed(scene: Scene) -> None:
    build.save_external(build.dense(dtype=scene.dtype), scene.source, "weights.data")
    data = scene.source.with_name("weights.data")
    data.write_bytes(data.read_bytes()[:-1])
    message = scene.refused()
    assert "weights.data" in message or "weight0" in message


@pytest.mark.parametrize("damage", DAMAGES)
def test_external_data_outside_the_folder_or_outside_the_file(scene: Scene, damage: str) -> None:
    (scene.folder / "secret.data").write_bytes(bytes(10_000))
    build.save_external(build.dense(dtype=scene.dtype), scene.source, "weights.data")
    build.edit_external(scene.source, **DAMAGES[damage])
    message = scene.refused()
    assert "weight0" in message or DAMAGES[damage].get("location", "weights.data") in message


@pytest.mark.parametrize("target", ["gone", "/dev/zero", "."])
def test_external_data_that_is_a_link_to_no_file(scene: Scene, target: str) -> None:
    build.save_external(build.dense(dtype=scene.dtype), scene.source, "weights.data")
    data = scene.source.with_name("weights.data")
    data.unlink()
    data.symlink_to(target)
    assert "'weights.data' of tensor 'weight0' beside" in (message := scene.refused())
    fault = "does not exist" if target == "gone" else "is not a regular file"
    assert "is a link to" in message and fault in message


@pytest.mark.parametrize(
    ("domain", "version"),
    [("", 0), ("", -1), ("", 999), ("", 2**40), ("ai.onnx", 2**63 - 1), ("foo", 2**31), ("foo", -1)],
)
def test_opset_beyond_what_onnx_knows(scene: Scene, domain: str, version: int) -> None:
    model = build.dense(dtype=scene.dtype)
    if domain != "foo":
        del model.opset_import[:]
    model.opset_import.append(helper.make_opsetid(domain, version))
    scene.write(model)
    assert f"opset {version} of '{domain or 'ai.onnx'}' is none of" in scene.refused()
