"""Oracle: ONNX Runtime's own kernels of the operators, on models that it saved or that are written here.

Both sides are float32 sums of a few dozen numbers near 1, in which another order, or another approximation of
erf and tanh, changes units in the last place: 1e-5 of the largest number is some 80 of them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from tests.helpers import fused_models
from transforms import model_io
from transforms.conversion.standard_form import FUSED_BY_RUNTIME, standardize
from transforms.graph.selection import Selection, select
from transforms.model import graph_proto
from transforms.split_fused import FUSED, split_fused

HEAD = '<ir_version: 8, opset_import: ["": {}, "com.microsoft": 1, "own": 1]> main '
CONV = (
    "(float[1,3,5,5] x) => (float[1,4,N,M] y) <float[4,3,3,3] w, float[4] b, float[1,4,5,5] z, int64 i = {0}>"
)
PRODUCT = "(float[2,4,6] x) => (float[2,N,M] y) <float[5,6] v, float[6] b>"
SQUARE = "(float[2,6,6] x) => (float[2,6,6] y)"
GEMM = "(float[4,6] x) => (float[4,N] y) <float[5,6] w, float[5] b>"
NORM = "(float[4,6] x, float[4,6] s) => (float[4,6] y, float[A,B] t) <float[6] g, float[6] h, float[6] b>"
WRITTEN = {
    "relu": (CONV, 'y = ms.FusedConv <activation="Relu", pads=[1,1,1,1], strides=[2,1]> (x, w, b)'),
    "clip": (CONV, 'y = ms.FusedConv <activation="Clip", activation_params=[-0.25, 0.5]> (x, w)'),
    "slope": (CONV, 'y = ms.FusedConv <activation="LeakyRelu", activation_params=[0.1]> (x, w, b)'),
    "gate": (CONV, 'y = ms.FusedConv <activation="HardSigmoid", activation_params=[0.3, 0.4]> (x, w)'),
    "sum": (CONV, 'y = ms.FusedConv <activation="Relu", pads=[1,1,1,1]> (x, w, b, z)'),
    "gemm": (GEMM, 'y = ms.FusedGemm <activation="LeakyRelu", activation_alpha=0.2, transB=1> (x, w, b)'),
    "gemm without sum": (GEMM, 'y = ms.FusedGemm <activation="Relu", alpha=0.5, transB=1> (x, w)'),
    "product": (PRODUCT, "y = ms.FusedMatMul <alpha=0.125, transB=1> (x, v)"),
    "turned": (SQUARE, "y = ms.FusedMatMul <alpha=2.0, transA=1, transB=1> (x, x)"),
    "gelu": (PRODUCT, "y = ms.Gelu(x)"),
    "bias": (PRODUCT, "y = ms.BiasGelu(x, b)"),
    "fast": (PRODUCT, "y = ms.FastGelu(x, b)"),
    "plain fast": (PRODUCT, "y = ms.FastGelu(x)"),
    "quick": (PRODUCT, "y = ms.QuickGelu <alpha=1.5> (x)"),
    "norm": (PRODUCT, "y = ms.SkipLayerNormalization <epsilon=0.01> (x, x, b)"),
    "sum of a norm": (NORM, "y, m, d, t = ms.SkipLayerNormalization (x, s, g, h, b)"),
    "sum of a plain norm": (NORM, "y, m, d, t = ms.SkipLayerNormalization (x, s, g)"),
    "body": (CONV, """c = Shape(x) d = Gather(c, i) e = Equal(d, d) y = If (e) <
        then_branch = t () => (float[1,4,N,M] p) { p = ms.FusedConv <activation="Relu"> (x, w) },
        else_branch = f () => (float[1,4,N,M] q) { q = Conv(x, w) }>"""),
}  # fmt: skip
BRANCHES = """c = Shape(x) d = Gather(c, i) e = Equal(d, d) y = If (e) <
    then_branch = t () => (float[1,4,N,M] p) { p = ms.FusedConv <activation="Relu"> (x, w) },
    else_branch = f () => (float[1,4,N,M] p) { p = ms.FusedConv <activation="Tanh"> (x, w) }>"""
STAYS = {
    "moved batch": (PRODUCT, "y = ms.FusedMatMul <transBatchA=1> (x, x)"),
    "unknown rank": (PRODUCT, "a = own.Odd(x) y = ms.FusedMatMul <transA=1> (a, a)"),
    "statistics": (NORM, "y, t = ms.SkipLayerNormalization (x, s, g)"),
    "missing parameter": (CONV, 'y = ms.FusedConv <activation="LeakyRelu"> (x, w)'),
    "parameter too many": (CONV, 'y = ms.FusedConv <activation="Relu", activation_params=[0.1]> (x, w)'),
    "activation that ONNX lacks": (GEMM, 'y = ms.FusedGemm <activation="ScaledTanh", transB=1> (x, w)'),
    "other activation": (CONV, 'y = ms.FusedConv <activation="Odd"> (x, w)'),
}


def _model(ends: str, body: str, opset: int) -> onnx.ModelProto:
    """Return a model whose weights, declared without values, have random ones."""
    body = body.replace("ms.", "com.microsoft.")
    model = onnx.parser.parse_model(f"{HEAD.format(opset)} {ends} {{ {body} }}")
    rng, graph = np.random.default_rng(0), model.graph
    known = {tensor.name for tensor in graph.initializer}
    for value in [value for value in graph.value_info if value.name not in known]:
        shape = [size.dim_value for size in value.type.tensor_type.shape.dim]
        values = rng.standard_normal(shape).astype(np.float32)
        graph.initializer.append(onnx.numpy_helper.from_array(values, value.name))
        graph.value_info.remove(value)
    return model


def _feeds(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.input}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize("opset", (13, 20))
@pytest.mark.parametrize("name", WRITTEN)
def test_parts_compute_the_same(name: str, opset: int) -> None:
    model = _model(*WRITTEN[name], opset)
    graph = model_io.load(model)
    assert split_fused(graph) == 1
    after = graph_proto.export_model(graph)
    assert not fused_models.runtime_operators(after)
    fused_models.check_same(model, after, _feeds(model))
    assert split_fused(graph) == 0


STATISTICS = {
    "root": (13, "y, t = SimplifiedLayerNormalization (x, g)"),
    "late root": (23, "y, t = SimplifiedLayerNormalization <epsilon=0.01> (x, g)"),
    "unread root": (23, "y, u = SimplifiedLayerNormalization (x, g) t = ReduceMean <keepdims=1> (y)"),
    "root of a part": (17, "y, t = SimplifiedLayerNormalization <axis=1> (x, g)"),
    "mean": (13, "y, t = LayerNormalization (x, g, h)"),
    "deviation": (13, "y, m, t = LayerNormalization <epsilon=0.01> (x, g)"),
    "both": (16, "y, m, d = LayerNormalization (x, g, h) t = Mul(m, d)"),
}


@pytest.mark.parametrize("name", STATISTICS)
def test_statistics_of_norms_that_onnx_does_not_know(name: str) -> None:
    """They lie in ONNX's own domain, where onnx.checker refuses them: no node may stay."""
    opset, body = STATISTICS[name]
    model = _model(NORM, body, opset)
    graph = model_io.load(model)
    assert split_fused(graph, only_unknown=True) == 1
    after = graph_proto.export_model(graph)
    fused_models.check_same(model, after, _feeds(model))


@pytest.mark.parametrize("name", STAYS)
def test_what_has_no_parts_stays(name: str) -> None:
    model = _model(*STAYS[name], 17)
    graph = model_io.load(model)
    before = graph_proto.export_model(graph)
    assert split_fused(graph) == 0
    assert graph_proto.export_model(graph) == before


def test_excluded_nodes_stay() -> None:
    model = _model(*WRITTEN["relu"], 17)
    model.graph.node[0].name = "first"
    graph = model_io.load(model)
    assert split_fused(graph, exclude=select(graph, names=["first"])) == 0
    assert split_fused(graph) == 1


def test_branches_may_use_one_name() -> None:
    model = _model(CONV, BRANCHES, 17)
    graph = model_io.load(model)
    assert split_fused(graph) == 2
    fused_models.check_same(model, graph_proto.export_model(graph), _feeds(model))


SAVED = (
    """(float[1,3,8,8] x) => (float[N,M] y) <float[4,3,3,3] w, float[4] b, float[8,16] u, float[16] c,
        float[16,5] v,
        int64[2] shape = {32, 8}, float root = {1.4142135}, float one = {1}, float half = {0.5}>""",
    """a = Conv <pads=[1,1,1,1]> (x, w, b) r = Relu(a) s = Reshape(r, shape) m = MatMul(s, u) n = Add(m, c)
        d = Div(n, root) e = Erf(d) f = Add(e, one) g = Mul(n, f) h = Mul(g, half)
        t = Transpose <perm=[1, 0]> (h) k = MatMul(t, h) y = MatMul(k, v)""",
)


def test_a_model_that_the_optimizer_saved_is_taken_apart(tmp_path: Path) -> None:
    """Whatever it fuses on this machine; formats apply to each product again."""
    source = _model(*SAVED, 17)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(tmp_path / "saved.onnx")
    ort.InferenceSession(source.SerializeToString(), options, ["CPUExecutionProvider"])
    saved = onnx.load(tmp_path / "saved.onnx")
    assert {"FusedConv", "FusedMatMul"} <= fused_models.runtime_operators(saved)
    graph = model_io.load(saved)
    notes = standardize(graph, Selection()).notes
    after = graph_proto.export_model(graph)
    assert notes and notes[0].startswith("Operators fused by ONNX Runtime, split into ONNX's own: ")
    assert not fused_models.runtime_operators(after)
    fused_models.check_same(source, after, _feeds(source))


def test_preparing_knows_the_operators_without_importing_what_takes_them_apart() -> None:
    assert {op for _, op in FUSED} == FUSED_BY_RUNTIME
