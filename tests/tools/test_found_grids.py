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
        *("MatMulNBits", "MatMul")
    ]
    assert inspect([str(source), "--grids"]) == 0
    assert "w0: 4 bits with a minimum, blocks of 32 (as Q4_1)\n" in capsys.readouterr().out
    weights = onnx_narrow.inspect(source, grids=True)["weights"]
    assert weights["w0"]["grid"]["axis"] == 0 and weights["w1"]["grid"] is None


def test_random_weights_leave_nothing_to_do(tmp_path: Path) -> None:
    weight = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    source = _save(tmp_path / "m.onnx", weight)
    assert main(["--input", str(source), "--output", str(tmp_path / "q.onnx"), "--config", "FOUND"]) == 3


@pytest.mark.parametrize(("name", "is_said"), [("Q4_0", True), ("", False)])
def test_rounding_again_is_told(
    name: str, is_said: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn = np.random.default_rng(0).standard_normal((512, 48)).astype(np.float32)
    known = [np.ascontiguousarray(GRIDS[name][0](seed).T) for seed in range(2)] if name else []
    source = _save(tmp_path / "m.onnx", np.concatenate(known, 1) if name else drawn)
    assert main(["--input", str(source), "--output", str(tmp_path / "q.onnx"), "--config", "W4"]) == 0
    line = "Weights were in 4 bits, blocks of 32 (as Q4_0) already: --config FOUND keeps them exactly\n"
    assert (line in capsys.readouterr().out) == is_said


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
