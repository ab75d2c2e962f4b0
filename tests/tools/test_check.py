"""``tools.check`` on models made elsewhere or for other targets. Oracle: what each model is made of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.helpers import build, tunable
from tools import check, quantize

NETWORK = tunable.conv_net()
INPUT = NETWORK.graph.input[0].name
FIRST = tunable.samples(NETWORK, 1)[0][INPUT]
SHAPE = f"{INPUT}:{','.join(map(str, FIRST.shape))}"

node = helper.make_node
GRID = {"s": np.array(0.5, np.float32), "z": np.array(0, np.int8)}
MATRIX = {"w": np.eye(4, dtype=np.float32)}
PAIR = (node("QuantizeLinear", ["x", "s", "z"], ["q"], "q"), node("DequantizeLinear", ["q", "s", "z"], ["d"]))
PRODUCT = node("MatMul", ["d", "w"], ["y"], "product")


def _written(path: Path, nodes: list[onnx.NodeProto], weights: dict[str, np.ndarray], kind: int = 1) -> Path:
    ends = [helper.make_tensor_value_info(name, k, [2, 4]) for name, k in (("x", kind), ("y", 1))]
    held = [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], held)
    domains = {one.domain for one in nodes} | {""}
    opsets = [helper.make_opsetid(domain, 1 if domain else 17) for domain in sorted(domains)]
    return build.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)


def _checked(path: Path, target: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = check.main(["--input", str(path), "--target", target])
    return code, capsys.readouterr().out


@pytest.mark.parametrize("words", ["--target qnn m.onnx", "m.onnx --target qnn", "--target=qnn m.onnx"])
def test_a_model_stands_before_or_after_the_target(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(NETWORK, tmp_path / "m.onnx")
    monkeypatch.chdir(tmp_path)
    said = _checked(tmp_path / "m.onnx", "qnn", capsys)
    assert check.main(words.split()) == said[0] == 3
    assert capsys.readouterr().out == said[1]
    with pytest.raises(SystemExit, match="2"):
        check.main([*words.split(), "other.onnx"])


@pytest.mark.parametrize("target", ["ort-cpu", "tensorrt", "openvino", "qnn", "ryzen-ai-cnn"])
def test_casts_do_not_make_a_model_quantized(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cast = node("Cast", ["x"], ["d"], "cast", to=TensorProto.FLOAT)
    path = _written(tmp_path / "m.onnx", [cast, PRODUCT], MATRIX, TensorProto.INT64)
    code, out = _checked(path, target, capsys)
    assert (
        code == 3
        and "nothing is quantized" in out
        and "Not in low precision: 1 node, an input is float" in out
    )


def test_a_model_that_fits_is_not_said_to_be_timed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, path = build.save(NETWORK, tmp_path / "m.onnx"), tmp_path / "q.onnx"
    words = ["--input", str(source), "--output", str(path), "--target", "ort-cpu", "--no-time", "--fast"]
    data = tmp_path / "data.npy"
    np.save(data, np.random.default_rng(0).standard_normal((4, *FIRST.shape[1:])).astype(np.float32))
    assert quantize.main([*words, "--data", str(data)]) == 0
    capsys.readouterr()
    code, out = _checked(path, "ort-cpu", capsys)
    assert code == 0 and "this machine" not in out
    assert "Fits ort-cpu: yes, by its rules; tools.infer --time compares its time" in out


@pytest.mark.parametrize("target", ["ort-cpu", "ort-cuda", "tensorrt", "openvino", "ryzen-ai-bf16"])
def test_block_formats_are_grids_too(target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, path = build.save(NETWORK, tmp_path / "m.onnx"), tmp_path / "q.onnx"
    words = ["--input", str(source), "--output", str(path), "--config", "MX6", "--input-shape", SHAPE]
    assert quantize.main([*words, "--keep-weight-nodes"]) == 0
    capsys.readouterr()
    code, out = _checked(path, target, capsys)
    assert code == 3 and "activation is mx6, it takes " in out and "weight is mx6, it takes " in out


@pytest.mark.parametrize("target", ["ort-cpu", "tensorrt", "ryzen-ai-cnn"])
def test_an_operator_of_nobody_fits_nowhere(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unknown = node("Foo", ["t"], ["y"], "foo", domain="my.own")
    nodes = [*PAIR, node("MatMul", ["d", "w"], ["t"], "product"), unknown]
    code, out = _checked(_written(tmp_path / "m.onnx", nodes, GRID | MATRIX), target, capsys)
    assert code == 3 and "'foo': operator Foo of domain 'my.own' is not known to run there" in out
    assert "no kernel in low precision: Foo 1" in out


def test_scales_that_are_computed_cannot_be_held_to_rules(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = [node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], "measure")]
    nodes += [node("DequantizeLinear", ["q", "s", "z"], ["d"], "back"), PRODUCT]
    path = _written(tmp_path / "m.onnx", nodes, MATRIX)
    code, out = _checked(path, "qnn", capsys)
    assert code == 3 and "'back': its scale or zero point is computed, it has to be stored" in out
    assert "'measure': operator DynamicQuantizeLinear is not known to run there" in out
    assert _checked(path, "ort-cpu", capsys)[0] == 0


def test_operators_on_integers_run_in_low_precision_if_the_runtime_has_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weight = {"i": np.eye(4, dtype=np.int8)}
    operands = ["q", "s", "z", "i", "s", "z", "s", "z"]
    nodes = [PAIR[0], node("QLinearMatMul", operands, ["p"], "product")]
    nodes += [node("DequantizeLinear", ["p", "s", "z"], ["y"])]
    path = _written(tmp_path / "m.onnx", nodes, GRID | weight)
    code, out = _checked(path, "ort-cpu", capsys)
    assert code == 0 and "1 node in low precision: QLinearMatMul 1" in out
    code, out = _checked(path, "tensorrt", capsys)
    assert code == 3 and "'product': operator QLinearMatMul is not known to run there" in out


def test_nothing_is_written_that_a_storage_makes_unfit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The form of ``--matmul-nbits`` is held to the target, too."""
    source, path = build.save(build.dense(64), tmp_path / "m.onnx"), tmp_path / "q.onnx"
    words = ["--input", str(source), "--output", str(path), "--input-shape", "x:2,64"]
    assert quantize.main([*words, "--target", "tensorrt", "--config", "W4", "--matmul-nbits"]) == 1
    assert "operator MatMulNBits" in capsys.readouterr().err and not path.exists()


def test_weights_that_nodes_round_in_every_run_are_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, path = build.save(NETWORK, tmp_path / "m.onnx"), tmp_path / "q.onnx"
    words = ["--input", str(source), "--output", str(path), "--input-shape", SHAPE, "--target", "qnn"]
    assert quantize.main([*words, "--random-data", "1", "--keep-weight-nodes"]) == 0
    assert _checked(path, "qnn", capsys)[0] == 0
