"""What ``tools.inspect`` says. Oracle: models whose operators, bytes and formats are counted by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import ops
from tools import inspect, quantize

EXAMPLES = Path(__file__).parents[1] / "examples"
MODEL = EXAMPLES / "digits.onnx"


def look(capsys: pytest.CaptureFixture[str], *options: object) -> dict[str, Any]:
    assert inspect.main([*map(str, options), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def words(capsys: pytest.CaptureFixture[str], *options: object) -> list[str]:
    assert inspect.main([*map(str, options)]) == 0
    return capsys.readouterr().out.splitlines()


def product(weight: np.ndarray, **more: Any) -> onnx.ModelProto:
    """Return x times a stored weight."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["N", weight.shape[0]])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["N", weight.shape[1]])],
        [numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, **more)


def test_a_float_model(capsys: pytest.CaptureFixture[str]) -> None:
    found = look(capsys, MODEL)
    assert found["operators"]["ai.onnx"] == {
        **{"Conv": 2, "Relu": 2, "BatchNormalization": 1, "MaxPool": 1, "Flatten": 1, "Gemm": 1}
    }
    stored = onnx.load(MODEL).graph.initializer
    elements = sum(int(np.prod(tensor.dims)) for tensor in stored)
    row = {"tensors": len(stored), "elements": elements, "bytes": 4 * elements, "bits": 32}
    assert found["weights"] == {"float32": row} and found["bits_per_weight"] == 32
    assert found["runs"]["CPU"] is True and found["library"] == "none"
    assert (found["bytes"], found["ir_version"], found["opsets"]) == (
        MODEL.stat().st_size,
        8,
        {"ai.onnx": 17},
    )
    assert found["inputs"] == {"images": "float32[batch, 1, 8, 8]"}


def test_what_a_float_model_computes_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(product(np.ones((8, 5), np.float32)), tmp_path / "m.onnx")
    found = look(capsys, tmp_path / "m.onnx")
    row = {"tensors": 1, "elements": 5, "bytes": 20, "bits": 32}  # of one row, N is not known
    assert found["computed_tensors"] == {"float32": row} and not found["sizes_known"]


@pytest.mark.parametrize("storage", ["plain", "packed"])
def test_a_block_format(storage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "q.onnx"
    given = ["--input", str(MODEL), "--output", str(path), "--config", "MX6", "--storage", storage]
    assert quantize.main(given) == 0
    capsys.readouterr()
    found = look(capsys, path)
    name = "mx6 in codes" if storage == "packed" else "mx6 as float32"
    bits = 6 if storage == "packed" else 32
    elements = 32 * 16 * 9 + 10 * 512  # conv2 and classifier
    assert found["weights"][name] == {
        **{"tensors": 2, "elements": elements, "bytes": elements * bits // 8, "bits": bits}
    }
    assert found["computed_tensors"]["mx6"]["tensors"] == 3 and not found["sizes_known"]
    assert found["made_by"].startswith("tools.quantize") and found["scheme"] == "MX6"
    said = words(capsys, path)
    assert said[-2:] == [
        "Runs on ONNX Runtime CPU: yes",
        "Operator library needed: none (standard-operator functions inside; faster with ours)",
    ]


def test_weights_that_nodes_round_in_every_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "q.onnx"
    given = ["--input", str(MODEL), "--output", str(path), "--config", "MX6", "--keep-weight-nodes"]
    assert quantize.main([*given, "--no-functions"]) == 0
    capsys.readouterr()
    found = look(capsys, path)
    assert found["rounded_weights"] == {"mx6": 3} and list(found["weights"]) == ["float32"]
    assert found["library"].startswith("this package's (ops.register_custom_ops")


def test_integers_and_narrow_types(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "q.onnx"
    given = ["--input", str(MODEL), "--output", str(path), "--config", "W4A8", "--random-data", "2"]
    assert quantize.main(given) == 0
    capsys.readouterr()
    found = look(capsys, path)
    assert found["weights"]["int4"]["bits"] == 4 and found["computed_tensors"]["int8"]["tensors"] == 6
    assert found["bits_per_weight"] < 5


@pytest.mark.parametrize("missing", [True, False])
def test_external_data(missing: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without the data everything is told but the grid of its numbers."""
    weight = np.asarray(
        ops.quantize_dequantize(np.random.default_rng(0).standard_normal((256, 256), np.float32), "mx9", 0)
    )
    path = tmp_path / "m.onnx"
    onnx.save(product(weight), path, save_as_external_data=True, location="m.data", size_threshold=0)
    if missing:
        (tmp_path / "m.data").unlink()
    found = look(capsys, path)
    assert found["files"]["m.data"] == (None if missing else 4 * weight.size)
    assert list(found["weights"]) == ["float32" if missing else "mx9 as float32"]
    assert found["runs"]["CPU"] is True
    size = f" is missing beside '{path}'" if missing else f", {4 * weight.size:,} bytes"
    assert f"External data: 'm.data'{size}" in words(capsys, path)


def test_models_beyond_the_limit_of_protobuf(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """4 GiB of weights in a sparse file: next to nothing of them is read."""
    model = product(np.zeros((1, 1), np.float32))
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.dims[:] = [1 << 15, 1 << 15]
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="m.data")
    for value, size in ((model.graph.input[0], 0), (model.graph.output[0], 1)):
        value.type.tensor_type.shape.dim[1].dim_value = 1 << 15
        assert size in (0, 1)
    with (tmp_path / "m.data").open("wb") as file:
        file.truncate(4 << 30)
        file.write(np.random.default_rng(0).standard_normal(1 << 12, np.float32).tobytes())
    onnx.save(model, tmp_path / "m.onnx")
    found = look(capsys, tmp_path / "m.onnx")
    assert found["weights"]["float32"]["bytes"] == 4 << 30 and found["runs"]["CPU"] is True


def test_bodies_foreign_domains_and_functions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17, "org.example": 1, "own": 1]>
        odd (float[2] x, bool yes) => (float[2] y) {
            a = If (yes) <then_branch = one () => (float[2] b) { b = Neg (x) },
                          else_branch = two () => (float[2] c) { c = org.example.Odd (x) }>
            y = own.Twice (a)
        }
        <domain: "own", opset_import: ["": 17]> Twice (u) => (v) { v = Add (u, u) }""")
    onnx.save(model, tmp_path / "m.onnx")
    found = look(capsys, tmp_path / "m.onnx")
    assert found["bodies"] == 2 and found["operators"]["org.example"] == {"Odd": 1}
    assert found["functions"]["of the model itself"]["count"] == 1
    assert found["library"] == "one that is not this package's, for the operators of domain 'org.example'"
    assert found["runs"]["CPU"] is False and "org.example" in found["why_not"]["CPU"]


def test_layers_and_tensors_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    graph = onnx.load(MODEL).graph
    found = look(capsys, MODEL, "--layers", "--tensors")
    assert found.keys() == {"layers", "tensors"}
    assert [(one["name"], one["operator"], one["inputs"], one["outputs"]) for one in found["layers"]] == [
        (node.name, node.op_type, list(node.input), list(node.output)) for node in graph.node
    ]
    kinds = {one["name"]: (one["kind"], one["type"]) for one in found["tensors"]}
    assert kinds["images"] == ("input", "float32[batch, 1, 8, 8]")
    assert kinds["conv2.weight"] == ("constant", "float32[32, 16, 3, 3]")
    assert kinds["pool1_out"] == ("computed", "float32[batch, 16, 4, 4]")
    assert kinds["logits"] == ("output", "float32[batch, 10]")
    stored = {tensor.name for tensor in graph.initializer}
    assert kinds.keys() == {"images"} | stored | {name for node in graph.node for name in node.output}
    said = words(capsys, MODEL, "--layers")
    assert said[0] == "Layers: 8" and len(said) == 9
    assert said[3].split() == [
        "relu1",
        "Relu",
        "norm1_out",
        "->",
        "relu1_out",
        "float32[batch,",
        "16,",
        "8,",
        "8]",
    ]
    assert words(capsys, MODEL, "--tensors")[:2] == [
        "Tensors: 18",
        "  images             input     float32[batch, 1, 8, 8]",
    ]


def test_lists_have_bodies_and_nodes_without_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    boolean = helper.make_tensor_value_info("flag", onnx.TensorProto.BOOL, [])
    x, out = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in ("x", "out"))
    branches = {
        name: helper.make_graph(
            [helper.make_node(op, ["x"], ["r"])], name, [], [helper.make_empty_tensor_value_info("r")]
        )
        for name, op in (("then_branch", "Relu"), ("else_branch", "Neg"))
    }
    node = helper.make_node("If", ["flag"], ["out"], **branches)
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(helper.make_graph([node], "g", [boolean, x], [out])), path)
    found = look(capsys, path, "--layers", "--tensors")
    assert [(one["name"], one["operator"]) for one in found["layers"]] == [
        ("out", "If"),
        ("r", "Neg"),
        ("r", "Relu"),
    ]
    assert [one["name"] for one in found["tensors"]] == ["flag", "x", "out", "r", "r"]


@pytest.mark.parametrize("option", ["--layers", "--tensors"])
def test_lists_are_of_one_model(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        inspect.main([str(MODEL), option, "--against", str(MODEL)])
    assert f"{option} and --against cannot be combined" in capsys.readouterr().err


def test_two_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    first, second = (
        product(rng.standard_normal((8, 8), np.float32)),
        product(rng.standard_normal((8, 8), np.float32)),
    )
    second.graph.node.append(helper.make_node("Relu", ["y"], ["z"]))
    second.opset_import[0].version = 18
    same = numpy_helper.from_array(np.float32([1, 2]), "same")
    for model, name in ((first, "a"), (second, "b")):
        model.graph.initializer.extend([same, numpy_helper.from_array(np.float32([1]), f"only_{name}")])
        onnx.save(model, tmp_path / f"{name}.onnx")
    found = look(capsys, tmp_path / "a.onnx", "--against", tmp_path / "b.onnx")["differences"]
    assert found == {
        "operators": {"ai.onnx::Relu": 1},
        "same": ["same"],
        "changed": ["w"],
        "only_here": ["only_a"],
        "only_there": ["only_b"],
        "missing": [],
    }
    said = words(capsys, tmp_path / "a.onnx", "--against", tmp_path / "b.onnx")
    assert "Operator set ai.onnx: 17 -> 18" in said and "Operators: Relu +1" in said
    assert "Constants with others: 1: 'w'" in said


def test_constants_are_the_same_by_their_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = np.array(["a", "b"], object)
    pairs = {
        "nan": (np.float32([np.nan]), np.float32([np.nan])),
        "zero": (np.float32([0.0]), np.float32([-0.0])),
        "text": (texts, texts),
        "words": (texts, texts[::-1]),
    }
    for place, name in enumerate("ab"):
        model = product(np.ones((4, 4), np.float32))
        held = (numpy_helper.from_array(both[place], key) for key, both in pairs.items())
        model.graph.initializer.extend(held)
        onnx.save(model, tmp_path / f"{name}.onnx")
    found = look(capsys, tmp_path / "a.onnx", "--against", tmp_path / "b.onnx")["differences"]
    assert (found["same"], found["changed"]) == (["w", "nan", "text"], ["zero", "words"])


@pytest.mark.parametrize("content", [b"", b"no model", b"\x08\x07"])
def test_other_files_are_refused(content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    assert inspect.main([str(path)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"tools.inspect: error: '{path}' is not an ONNX model")


def test_a_missing_file_and_a_missing_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert inspect.main([str(tmp_path / "m.onnx")]) == 1
    assert "No such file" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        inspect.main(["--json"])
