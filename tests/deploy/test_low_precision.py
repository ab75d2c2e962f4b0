"""What runs in low precision on a target. Oracle: the operators of the model that ONNX Runtime makes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import helper

import onnx_narrow
from tests.helpers import build
from transforms.deploy.low_precision import has_low_precision, low_precision
from transforms.model import graph_proto
from transforms.scheme.targets import ON_CPU, target

GRID: dict[str, NDArray[Any]] = {"s": np.array(0.05, np.float32), "z": np.array(100, np.uint8)}


def pair(name: str, to: str) -> list[onnx.NodeProto]:
    quantize = helper.make_node("QuantizeLinear", [name, "s", "z"], [f"{to}_q"])
    return [quantize, helper.make_node("DequantizeLinear", [f"{to}_q", "s", "z"], [to])]


ADD = [*pair("x", "d"), helper.make_node("Add", ["d", "d"], ["a"], "add")]
CASES: dict[str, Sequence[onnx.NodeProto]] = {
    "a quantization follows": [*ADD, *pair("a", "y")],
    "a quantization follows behind a move": [
        *ADD,
        helper.make_node("Transpose", ["a"], ["t"], perm=[1, 0]),
        *pair("t", "y"),
    ],
    "what follows is float": [*ADD, helper.make_node("Exp", ["a"], ["y"], "exp")],
    "some of what follows is float": [
        *ADD,
        *pair("a", "b"),
        helper.make_node("Exp", ["a"], ["e"], "exp"),
        helper.make_node("Mul", ["e", "b"], ["y"], "mul"),
    ],
    "it is an output": [*pair("x", "d"), helper.make_node("Add", ["d", "d"], ["y"], "add")],
    "an input is float": [
        *pair("x", "d"),
        helper.make_node("Add", ["d", "x"], ["a"], "add"),
        *pair("a", "y"),
    ],
}


@pytest.mark.parametrize("case", CASES)
def test_an_addition_is_one_of_integers_where_the_runtime_makes_it_one(case: str, tmp_path: Path) -> None:
    model = build.model(CASES[case], [build.value("x", [4, 4])], [build.value("y", [4, 4])], GRID)
    found = low_precision(graph_proto.import_model(model), target(ON_CPU))
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    made = [one.op_type for one in onnx.load(tmp_path / "optimized.onnx").graph.node]
    assert found.low["Add"] == made.count("QLinearAdd")
    assert found.count + sum(map(len, found.high.values())) == sum(one.name != "" for one in CASES[case])


@pytest.mark.parametrize(
    ("config", "keywords"),
    [
        *((name, {}) for name in ("W8", "W4A8", "MX6", "BF16", "FP16", "A8W8_DYNAMIC", "BF16_BFP16")),
        *(("W4", {"matmul_nbits": form}) for form in (True, False)),
        ("MX6", {"storage": "packed"}),
    ],
)
def test_every_preset_puts_numbers_in_low_precision(config: str, keywords: dict[str, Any]) -> None:
    """The float model has none of it, nor with inputs and outputs of float16 alone."""
    source = build.dense(32, layers=2)
    halves = [
        helper.make_node("Cast", ["h"], ["x"], "widen", to=onnx.TensorProto.FLOAT),
        *source.graph.node,
        helper.make_node("Cast", ["y"], ["n"], "narrow", to=onnx.TensorProto.FLOAT16),
    ]
    ends = [build.value(name, ["rows", 32], np.float16) for name in ("h", "n")]
    weights = {one.name: onnx.numpy_helper.to_array(one) for one in source.graph.initializer}
    for model in (source, build.model(halves, ends[:1], ends[1:], weights)):
        assert not has_low_precision(graph_proto.import_model(model))
    data = {"random_data": 4} if config == "W4A8" else {}
    made = onnx_narrow.quantize(source, config=config, time=False, **data, **keywords).model
    assert has_low_precision(graph_proto.import_model(made))
