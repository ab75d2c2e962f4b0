"""Weights on grids that are there already, by the tools. Oracle: how the weights were made."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnx_narrow
from tests.helpers import experts
from tests.helpers.experts import Experts
from tests.helpers.known_grids import GRIDS, Array
from tools.inspect import main as inspect
from tools.quantize import main


def _save(path: Path, *weights: Array) -> Path:
    """Write a model of products one after another: [K, N] by [N, K] and so on."""
    arrays = {f"w{i}": weight for i, weight in enumerate(weights)}
    names = ["x", *(f"y{i}" for i in range(len(arrays)))]
    nodes = [
        helper.make_node("MatMul", [names[i], f"w{i}"], [names[i + 1]], f"layer{i}")
        for i in range(len(arrays))
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", weights[0].shape[0]])
    y = helper.make_tensor_value_info(names[-1], TensorProto.FLOAT, None)
    stored = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "products", [x], [y], stored)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_found_weights_are_kept_and_others_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = np.ascontiguousarray(GRIDS["Q4_1"][0](0).T)
    second = np.random.default_rng(0).standard_normal((24, 512)).astype(np.float32)
    source, target = _save(tmp_path / "m.onnx", first, second), tmp_path / "q.onnx"
    assert main(["--input", str(source), "--output", str(target), "--config", "FOUND"]) == 0
    said = capsys.readouterr().out
    assert "On a grid already: 1 weight in 4 bits with a minimum, blocks of 32 (as Q4_1)\n" in said
    assert "Not on a grid: 1 weight, 50.0% of the numbers: 'w1'\n" in said
    assert [node.op_type for node in onnx.load(target).graph.node if node.op_type != "Cast"] == [
        *("MatMulNBits", "Reshape", "ReduceSum", "MatMul", "Add", "MatMul")
    ]
    assert inspect([str(source), "--grids"]) == 0
    assert "w0: 4 bits with a minimum, blocks of 32 (as Q4_1)\n" in capsys.readouterr().out
    weights = onnx_narrow.inspect(source, grids=True)["weights"]
    assert weights["w0"]["grid"]["axis"] == 0 and weights["w1"]["grid"] is None


def test_random_weights_leave_nothing_to_do(tmp_path: Path) -> None:
    weight = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    source = _save(tmp_path / "m.onnx", weight)
    assert main(["--input", str(source), "--output", str(tmp_path / "q.onnx"), "--config", "FOUND"]) == 3


def _quantized(source: Path, config: str, *more: str) -> onnx.ModelProto:
    target = source.with_name(f"{config}.onnx")
    assert main(["--input", str(source), "--output", str(target), "--config", config, "--force", *more]) == 0
    return onnx.load(target)


def _stored(model: onnx.ModelProto) -> list[tuple[str, bytes]]:
    return sorted((tensor.name, tensor.SerializeToString()) for tensor in model.graph.initializer)


def _integers(model: onnx.ModelProto) -> list[bytes]:
    return [tensor.raw_data for tensor in model.graph.initializer if tensor.data_type == TensorProto.UINT8]


@pytest.mark.parametrize(
    ("config", "names", "bits"),
    [("W4", ("Q4_0", "Q4_1", "Q8_0"), "4 to 8"), ("W8", ("Q8_0",), "8"), ("W8", ("Q4_0", "Q8_0"), "4 to 8")],
)
def test_weights_on_grids_of_few_bits_stay_on_them(
    config: str, names: tuple[str, ...], bits: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Oracle: the integers that FOUND stores."""
    source = _save(tmp_path / "m.onnx", *_squares(*names))
    model = _quantized(source, config)
    which, rounds = (
        f"All {len(names)} weights were" if names[1:] else "Its weight was",
        "--set found=false",
    )
    line = f"{which} in {bits} bits: stored as they are, no loss; {rounds} rounds them\n"
    assert line in capsys.readouterr().out
    assert len(_integers(model)) == len(names)
    assert _integers(model) == _integers(_quantized(source, "FOUND"))
    assert "MatMulNBits" not in {
        node.op_type for node in _quantized(source, config, "--set", "found=false").graph.node
    }
    assert "already" not in capsys.readouterr().out.replace("On a grid already", "")


def test_few_numbers_on_no_grid_stay_float(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drawn = np.random.default_rng(0).standard_normal((512, 48)).astype(np.float32)
    source = _save(tmp_path / "m.onnx", *_squares("Q4_0", "Q4_0"), drawn)
    nodes = [node.op_type for node in _quantized(source, "W4").graph.node if node.op_type != "Cast"]
    assert nodes == ["MatMulNBits", "MatMulNBits", "MatMul"]
    assert "2 of 3 weights were in 4 bits: stored as they are, no loss, the others in float" in (
        capsys.readouterr().out
    )


def _squares(*names: str) -> list[Array]:
    made = [
        np.concatenate([GRIDS[name][0](23 * i + seed) for seed in range(22)]) for i, name in enumerate(names)
    ]
    return [np.ascontiguousarray(rows[:512].T) for rows in made]


@pytest.mark.parametrize(
    ("config", "name", "words"),
    [("W4", "Q8_0", "8 bits, blocks of 32 (as Q8_0)"), ("W2", "Q4_0", "4 bits, blocks of 32 (as Q4_0)")],
)
def test_rounding_again_is_told(
    config: str, name: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fewer bits than the weights have are asked for: they are rounded."""
    model = _quantized(_save(tmp_path / "m.onnx", *_squares(name)), config)
    assert f"Weights were in {words} already: --config FOUND keeps them exactly\n" in capsys.readouterr().out
    assert "DequantizeLinear" in {node.op_type for node in model.graph.node}


def test_weights_on_no_grid_are_rounded_as_ever(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Oracle: the bytes without the key, and the summary's silence on grids."""
    drawn = np.random.default_rng(0).standard_normal((512, 512)).astype(np.float32)
    source = _save(tmp_path / "m.onnx", drawn, _squares("Q4_0")[0])
    model = _quantized(source, "W4")
    assert "already" not in capsys.readouterr().out and len(_stored(model)) > 1
    assert _stored(model) == _stored(_quantized(source, "W4", "--set", "found=false"))


def test_found_is_a_format_of_weights_beside_float_activations() -> None:
    assert onnx_narrow.preset("FOUND").weight == "found"
    for keys in ({"activation": "int8", "weight": "found"}, {"activation": "found", "weight": "int8"}):
        with pytest.raises(ValueError, match="found"):
            onnx_narrow.Scheme(**keys)


def test_rounded_inputs_of_experts_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """QMoE in blocks of 8 bits rounds them; that of 4 bits does not."""
    form = Experts(width=512, inner=512, count=2, k=1)
    for name, is_said in (("Q8_0", True), ("Q4_0", False)):
        weights = form.weights()
        rows = np.concatenate([GRIDS[name][0](seed) for seed in range(43)])[:1024].reshape(2, 512, 512)
        onnx.save(experts.moe(form, {**weights, "w1": rows, "w2": rows[::-1]}), tmp_path / "m.onnx")
        target = str(tmp_path / f"{name}.onnx")
        assert main(["--input", str(tmp_path / "m.onnx"), "--output", target, "--config", "FOUND"]) == 0
        said = capsys.readouterr().out
        assert ("Inputs of 1 mixture of experts: rounded to int8\n" in said) == is_said
