"""Oracle: the model's own results; 1e-5 relative is what the folding of BatchNorm may change."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnx_graphsurgeon as gs
import pytest

from tests.benchmarks.chain_models import chain
from tests.helpers import build, conversion, corpus
from transforms import model_io
from transforms.model import graph_proto
from transforms.optimize import optimize
from transforms.run.run_model import open_model
from transforms.runtime.session import RunOptions


@pytest.mark.parametrize("name", sorted(corpus.MODELS.keys() - {"half island", "half input", "half output"}))
def test_results_stay(name: str) -> None:
    model = corpus.build(name)
    feeds = corpus.feeds(model)
    expected = conversion.run(model, feeds)
    graph = model_io.load(model)
    optimize(graph)
    assert optimize(graph) == 0, "nothing is left for a second run"
    found = conversion.run(graph_proto.export_model(graph), feeds)
    assert found.keys() == expected.keys()
    for output in expected:
        if not isinstance(expected[output], list) and expected[output].dtype.kind == "f":
            assert np.allclose(found[output], expected[output], rtol=1e-5, atol=1e-6)


def test_constants_and_batch_normalization_are_folded() -> None:
    graph = model_io.load(corpus.build("convolution"))
    assert optimize(graph) == 1
    assert [node.op for node in graph.nodes] == ["Conv", "Relu"]
    graph = model_io.load(
        corpus.parse(
            "(float[2] x) => (float[2] y) <float[2] a = {1, 2}, float[2] b = {3, 4}>"
            "{ c = Add(a, b) y = Mul(x, c) }"
        )
    )
    assert optimize(graph) == 1
    assert graph.nodes[0].inputs[1].values.tolist() == [4, 6]


def test_large_weights_are_not_copied() -> None:
    graph = model_io.load(build.dense(256, layers=2))
    before = {t.name: t.values for t in graph.tensors().values() if t.name.startswith("weight")}
    optimize(graph)
    after = graph.tensors()
    assert all(after[name].values is values for name, values in before.items())


def test_nodes_stay_if_there_is_nothing_to_optimize() -> None:
    """Oracle: the objects themselves; the model is that of a graph made anew, byte for byte."""
    graph = model_io.load(chain("shared", 30))
    nodes, expected = list(graph.nodes), graph_proto.export_model(model_io.load(chain("shared", 30)))
    assert optimize(graph) == 0
    assert all(node is before for node, before in zip(graph.nodes, nodes, strict=True))
    assert graph_proto.export_model(graph) == expected


def test_an_operator_of_another_library_is_refused_and_the_graph_kept() -> None:
    graph = model_io.load(
        corpus.parse(
            "(float[2] x) => (float[2] y) { a = Tanh(x) y = org.example.Odd(a) }",
            domains=', "org.example": 1',
        )
    )
    before = graph_proto.export_model(graph)
    with pytest.raises(model_io.ModelError, match=r"ONNX Runtime cannot load the model.*Odd"):
        optimize(graph)
    assert graph_proto.export_model(graph) == before


def test_operators_of_the_extensions_do_not_keep_a_model_as_it_is() -> None:
    """Tokenizers and decoders of images are in the library that our operators are registered with."""
    graph = model_io.load(
        corpus.parse(
            """(string[2] s, float[2] x) => (int64[2] n, float[2] y) <float[2] c = {1, 2}> {
                n = ai.onnx.contrib.StringLength(s) d = Neg(c) y = Add(x, d) }""",
            domains=', "ai.onnx.contrib": 1',
        )
    )
    optimize(graph)
    assert sorted(node.op for node in graph.nodes) == ["Add", "StringLength"]


def test_rounded_weights_are_not_folded() -> None:
    graph = model_io.load(
        corpus.parse(
            """(string[2] s, float[2] x) => (int64[2] n, float[2] y) <float[2] c = {1, 2}> {
                n = ai.onnx.contrib.StringLength(s) d = ai.onnx.contrib.BFPQuantizeDequantize(c) y = Add(x, d)
            }""",
            domains=', "ai.onnx.contrib": 1',
        )
    )
    with pytest.raises(model_io.ModelError, match="cannot load"):
        optimize(graph)
    assert [node.op for node in graph.nodes] == ["StringLength", "BFPQuantizeDequantize", "Add"]


def test_half_arithmetic_is_refused() -> None:
    graph = model_io.load(build.dense(4, dtype=np.float16))
    with pytest.raises(model_io.ModelError, match="widened"):
        optimize(graph)


def test_a_group_normalization_is_not_taken_to_pieces() -> None:
    """Its mean of squares less the square of its mean, is no variance if rounded: -88 for -2."""
    text = """<ir_version: 11, opset_import: ["": 21]> main (float[1,2,2] x) => (float[1,2,2] y)
        <float[2] s = {1, 1}, float[2] b = {0, 0}> { y = GroupNormalization <num_groups = 2> (x, s, b) }"""
    graph = model_io.load(onnx.parser.parse_model(text))
    with pytest.raises(model_io.ModelError, match=r"GroupNormalization 'y' to pieces$"):
        optimize(graph)
    assert [node.op for node in graph.nodes] == ["GroupNormalization"]


def test_words_and_interface_survive() -> None:
    model = build.dense(8)
    model.graph.node[0].doc_string = "product"
    graph = model_io.load(model)
    optimize(graph)
    result = graph_proto.export_model(graph)
    assert result.graph.node[0].doc_string == "product"
    assert (result.graph.input, result.graph.output) == (model.graph.input, model.graph.output)
    assert [(o.domain, o.version) for o in result.opset_import] == [("", 17)]


def test_a_later_fusion_of_the_runtime_finds_names_that_are_free() -> None:
    """Oracle: ONNX Runtime without optimizations. One MatMul is fused offline, the other where it is run."""
    random = np.random.default_rng(0)
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 17]>
        g (float[2,3,4] x, float[1,2,3,4] z) => (float[2,3,4] y, float[1,2,3,4] s)
        { a = MatMul(x, v) y = Add(a, b) s = MatMul(z, w) }""")
    for name, shape in (("v", (4, 4)), ("w", (4, 4)), ("b", (4,))):
        values = random.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    graph = model_io.load(model)
    optimize(graph)
    assert any(node.op == "Gemm" for node in graph.nodes)
    product = next(node for node in graph.nodes if node.op == "MatMul")
    output, raw = product.outputs[0], gs.Variable("raw", np.float32, [1, 2, 3, 4])
    product.outputs[0] = raw
    bias = gs.Constant("late_bias", np.ones(4, np.float32))
    graph.nodes.append(gs.Node("Add", "late", inputs=[raw, bias], outputs=[output]))
    feed = {
        n: random.standard_normal(s).astype(np.float32) for n, s in (("x", (2, 3, 4)), ("z", (1, 2, 3, 4)))
    }
    found, wanted = (
        open_model(graph, RunOptions(optimize=optimized)).run(feed) for optimized in (True, False)
    )
    for name in wanted:
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-5, atol=1e-6)  # sums of 4 products
