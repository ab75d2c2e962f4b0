"""Oracle: the model's own results before and after, by ONNX Runtime and by comparison of raised models."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnx_graphsurgeon as gs
import pytest

from tests.helpers import conversion, opset_forms
from transforms import model_io
from transforms.convert_opset import convert_opset
from transforms.lower_opset import lower_opset
from transforms.model import graph_proto


def _load(text: str, opset: int) -> gs.Graph:
    return model_io.load(
        onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]> main {text}')
    )


EQUAL = [
    ("(float[2,6] x) => (float[2,1] y) <int64[1] a = {1}> { y = ReduceMean(x, a) }", 18),
    ("(float[2,6] x) => (float[1,1] y) { y = ReduceMax(x) }", 20),
    ("(float[2,6] x) => (float[2,3] y, float[2,3] z) { y, z = Split <axis = 1, num_outputs = 2> (x) }", 18),
    ("(float[2,6] x) => (float[2,6] y) { t = Cast <to = 10, saturate = 1> (x) y = Cast <to = 1> (t) }", 21),
    ("(float[2,6] x) => (float[3,4] y) <int64[2] s = {3,4}> { y = Reshape <allowzero = 0> (x, s) }", 19),
    ("(float[2,6] x) => (float[2,6] y) <float s = {0.5}, int8 o = {3}> { q = QuantizeLinear(x, s, o)"
     " y = DequantizeLinear(q, s, o) }", 21),
    ("(float[1,2,4,4] x) => (float[1,2,2,2] y) { y = AveragePool <kernel_shape = [3,3]> (x) }", 19),
]  # fmt: skip


@pytest.mark.parametrize(("text", "opset"), EQUAL)
def test_nodes_of_equal_meaning_are_lowered(text: str, opset: int) -> None:
    graph = _load(text, opset)
    before = graph_proto.export_model(graph)
    assert lower_opset(graph, 13) == 1
    after = graph_proto.export_model(graph)
    onnx.checker.check_model(after, full_check=True)
    assert ([(o.domain, o.version) for o in after.opset_import], after.ir_version) == ([("", 13)], 7)
    feeds = _feeds(before)
    found, expected = conversion.run(after, feeds), conversion.run(before, feeds)
    for name in expected:  # kernels of other opsets may add in another order
        np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=1e-6)
    assert lower_opset(graph, 13) == 0


def _feeds(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.input}
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


REFUSED = [
    ("(float[2,6] x) => (float[2,6] y) { y = Gelu(x) }", 20, 17, "Gelu 'y': it exists from opset 20 on"),
    ("(float[2,6] x, int64[1] a) => (float[2,1] y) { y = ReduceMean(x, a) }",
     18, 17,     "ReduceMean 'y': its axes are computed"),
    ("(float[2,6] x) => (float[2,6] y) <int64[0] a = {}> { y = ReduceMean<noop_with_empty_axes=1>(x, a) }",
     18, 17, "ReduceMean 'y': it reduces no axis"),
    ("(float[2,5] x) => (float[2,3] y, float[2,2] z) { y, z = Split <axis = 1, num_outputs = 2> (x) }",
     18, 17, "Split 'y': its parts may differ"),
    ("(float[2,6] x) => (float[3,4] y) <int64[2] s = {3,4}> { y = Reshape <allowzero = 1> (x, s) }",
     19, 13, "Reshape 'y': its attribute allowzero = 1 is newer"),
    ("(float[2,6] x) => (int16[2,6] q) <float s = {0.5}, int16 o = {3}> { q = QuantizeLinear(x, s, o) }",
     21, 20, "QuantizeLinear 'q': it does not take int16 in opset 20"),
    ("(float[2,6] x) => (float[2,10] y) <int64[4] p = {0,2,0,2}> { y = Pad <mode = \"wrap\"> (x, p) }",
     19, 18, "Pad 'y': its attribute mode = 'wrap' needs opset 19"),
    ("(float[2,6] x) => (float[2,6] y) { y = Relu(x) }", 19, 12, "13 is the least"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "opset", "version", "reason"), REFUSED)
def test_others_are_refused_by_operator_node_and_opset(
    text: str, opset: int, version: int, reason: str
) -> None:
    graph = _load(text, opset)
    before = graph_proto.export_model(graph)
    with pytest.raises(model_io.ModelError, match=f"lowered from opset {opset} to {version}: {reason}"):
        lower_opset(graph, version)
    assert graph_proto.export_model(graph) == before


@pytest.mark.heavy
@pytest.mark.parametrize("opset", [13, pytest.param(18, marks=pytest.mark.heavy)])
def test_every_form_that_was_raised_can_be_lowered_or_is_refused(
    opset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model raised to 22 and lowered again computes the same, compared on the way down.

    The way up is compared for the same forms in tests/opset/test_raises.py.
    """
    monkeypatch.setattr("transforms.runtime.compare_runs.compare_runs", lambda *given, change: None)
    lowered = 0
    for _, model in opset_forms.forms(opset):
        graph = model_io.load(model)
        try:
            convert_opset(graph, 22)
        except model_io.ModelError:
            continue
        try:
            lowered += lower_opset(graph, opset)
        except model_io.ModelError as error:
            assert f"lowered from opset 22 to {opset}: " in str(error)
            assert "differs" not in str(error) and "does not run" not in str(error)
            continue
        onnx.checker.check_model(graph_proto.export_model(graph), full_check=True)
    assert lowered > 9
