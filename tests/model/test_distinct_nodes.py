"""Of nodes that are alike one is asked about. Oracle: the runtime's answer for the whole model."""

from __future__ import annotations

import onnx
import pytest

from tests.benchmarks.chain_models import chain
from transforms import model_io
from transforms.model.distinct_nodes import distinct_nodes
from transforms.pipelines.convert_bf16 import Bf16Options, convert_bf16
from transforms.runtime import session


def _inferred(form: str, nodes: int) -> onnx.ModelProto:
    return onnx.shape_inference.infer_shapes(chain(form, nodes))


@pytest.mark.parametrize("form", ("shared", "residual"))
def test_one_of_each_kind_is_left(form: str) -> None:
    model = distinct_nodes(_inferred(form, 240))
    assert model is not None
    kinds = {"shared": ["Conv", "Tanh", "Mul"], "residual": ["MatMul", "Add", "Tanh", "Add"]}[form]
    assert [node.op_type for node in model.graph.node] == kinds
    onnx.checker.check_model(model, full_check=True)


def test_tensors_of_unknown_types_do_not_stand_alone() -> None:
    assert distinct_nodes(chain("shared", 12)) is None


@pytest.mark.parametrize("form", ("with_cast", "bf16"))  # of which the CPU provider runs the first alone
def test_answer_is_that_for_the_whole_model(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = model_io.load(chain("shared", 30))
    convert_bf16(graph, Bf16Options(format=form))
    exported = model_io.export(graph)
    whole = session.why_not_on_cpu(*exported)
    monkeypatch.setattr(session, "_MANY_NODES", 3)
    assert session.why_not_on_cpu(*exported) == whole
    assert (whole is None) == (form == "with_cast")
