"""Oracle: the fields of the source, one by one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import onnx
import onnx.parser
import pytest
from onnx import helper

from tools import convert_fp32_to_bf16, quantize
from transforms import model_io

BODY = "then_branch = t () => (u) { u = Neg (x) }, else_branch = e () => (v) { v = Relu (x) }"
TEXT = (
    '<ir_version: 11, opset_import: ["": 20, "f": 1]> g (float[4, 4] x) => (float[4, 4] y) '
    "<float[4, 4] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}> "
    f"{{ c = Constant <value = bool {{1}}> () a = If (c) <{BODY}> y = MatMul (a, w) }}"
)


def source() -> onnx.ModelProto:
    return onnx.parser.parse_model(TEXT)


def _training(model: onnx.ModelProto) -> None:
    model.training_info.add().update_binding.add(key="w", value="y")


def _devices(model: onnx.ModelProto) -> None:
    model.configuration.add(name="two", num_devices=2)


def _function(model: onnx.ModelProto) -> None:
    model.graph.node[2].op_type, model.graph.node[2].domain = "F", "f"
    node = helper.make_node("MatMul", ["a", "b"], ["c"])
    opsets = [helper.make_opsetid("", 20)]
    model.functions.append(helper.make_function("f", "F", ["a", "b"], ["c"], [node], opsets))


def _documented(model: onnx.ModelProto) -> None:
    _function(model)
    model.functions[0].doc_string = "of the function"


def _sparse(model: onnx.ModelProto) -> None:
    del model.graph.initializer[:]
    values, places = helper.make_tensor("w", 1, [1], [2.0]), helper.make_tensor("i", 7, [1], [3])
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [4, 4]))


def _annotated(model: onnx.ModelProto) -> None:
    model.graph.node[1].attribute[0].g.quantization_annotation.add(tensor_name="u")


def _body(model: onnx.ModelProto) -> None:
    model.graph.node[1].attribute[0].g.metadata_props.add(key="k", value="v")


def _tensor(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].doc_string = "of w"


LEFT_OUT = {
    _training: ["Left out of the result: training_info"],
    _devices: ["Left out of the result: device configurations"],
    _annotated: ["Left out of the result: quantization annotations inside bodies"],
    _body: ["Left out of the result: metadata of bodies"],
    _tensor: ["Left out of the result: documentation and metadata of tensors"],
    _function: ["Local functions inlined: 1"],
    _documented: [
        "Local functions inlined: 1",
        "Left out of the result: documentation and metadata of functions",
    ],
    _sparse: ["Sparse tensors stored as dense ones: 1"],
}


@pytest.mark.parametrize("change", LEFT_OUT)
def test_what_the_result_will_not_have_is_said(change: Callable[[onnx.ModelProto], None]) -> None:
    model = source()
    change(model)
    assert model_io.load(model).info.notes == LEFT_OUT[change]


def test_a_plain_model_loses_nothing() -> None:
    assert model_io.load(source()).info.notes == []


@pytest.mark.parametrize("tool", [convert_fp32_to_bf16, quantize])
def test_tools_print_it(tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = source()
    _training(model)
    onnx.save(model, tmp_path / "m.onnx")
    options = ["--config", "MX9"] if tool is quantize else []
    assert (
        tool.main(["--input", str(tmp_path / "m.onnx"), "--output", str(tmp_path / "q.onnx"), *options]) == 0
    )
    assert "Left out of the result: training_info\n" in capsys.readouterr().out


def test_the_meaning_of_an_input_is_kept() -> None:
    model = source()
    model.graph.input[0].type.denotation = "IMAGE"
    model.graph.input[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    result, _ = model_io.export(model_io.load(model))
    assert result.graph.input[0].type == model.graph.input[0].type
