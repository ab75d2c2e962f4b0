"""Oracle: the model's own results before and after."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from tests.helpers import build, conversion, corpus
from tests.helpers.spread import spread
from transforms import model_io
from transforms.conversion.standard_form import CAST_TO_BFLOAT16
from transforms.convert_opset import convert_opset
from transforms.graph import walk
from transforms.graph.selection import select
from transforms.model import graph_proto


@pytest.mark.parametrize("opset", (7, 9, 11, 12))
@pytest.mark.parametrize("name", ("layers", "convolution", "clip", "loop", "lstm"))
def test_old_models_compute_the_same(name: str, opset: int) -> None:
    try:
        model = corpus.build(name, opset=opset)
        expected = conversion.run(model, corpus.feeds(model))
    except Exception as error:
        pytest.skip(f"no such model at opset {opset}: {str(error)[:60]}")
    graph = model_io.load(model)
    assert convert_opset(graph, CAST_TO_BFLOAT16) == 1
    assert graph.opset == CAST_TO_BFLOAT16
    converted = graph_proto.export_model(graph)
    assert [(o.domain, o.version) for o in converted.opset_import] == [("", 13)]
    assert conversion.same(conversion.run(converted, corpus.feeds(model)), expected)
    assert convert_opset(graph, CAST_TO_BFLOAT16) == 0


@pytest.mark.parametrize("version", (13, 17))
def test_does_nothing_at_or_above_the_version(version: int) -> None:
    graph = model_io.load(corpus.build("layers", opset=17))
    before = graph_proto.export_model(graph)
    assert convert_opset(graph, version) == 0
    assert graph_proto.export_model(graph) == before


def test_large_weights_names_and_words_survive() -> None:
    model = build.dense(256, opset=11)
    model.graph.node[0].doc_string = "product"
    model.metadata_props.add(key="k", value="v")
    graph = model_io.load(model)
    (weight,) = [t.values for t in graph.tensors().values() if t.name == "weight0"]
    assert convert_opset(graph, 13) == 1
    assert graph.tensors()["weight0"].values is weight, "never copied"
    converted = graph_proto.export_model(graph)
    assert [(n.name, n.doc_string) for n in converted.graph.node] == [("matmul0", "product"), ("relu0", "")]
    assert converted.metadata_props[0].value == "v"
    x = np.ones((2, 256), np.float32)
    assert conversion.same(conversion.run(converted, {"x": x}), conversion.run(model, {"x": x}))


def test_operators_without_a_way_are_named() -> None:
    text = """(float[1,2,3] x) => (float[1,2,3] y) <float[6] s = {1, 1, 1, 1, 1, 1}> {
        y = BatchNormalization <spatial = 0> (x, s, s, s, s) }"""
    graph = model_io.load(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 7]> main {text}'))
    with pytest.raises(model_io.ModelError, match=r"cannot be raised from opset 7 to 13: .*spatial"):
        convert_opset(graph, 13)
    assert (graph.opset, [node.op for node in graph.nodes]) == (7, ["BatchNormalization"])


def test_a_model_of_other_domains_alone_gets_the_import() -> None:
    node = helper.make_node("Binarizer", ["x"], ["y"], "binarizer", domain="ai.onnx.ml", threshold=0.5)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in "xy"]
    graph = helper.make_graph([node], "graph", ends[:1], ends[1:])
    imports = [helper.make_opsetid("ai.onnx.ml", 1)]
    loaded = model_io.load(helper.make_model(graph, opset_imports=imports, ir_version=8))
    assert convert_opset(loaded, 13) == 1
    assert convert_opset(loaded, 13) == 0
    converted = graph_proto.export_model(loaded)
    onnx.checker.check_model(converted, full_check=True)
    assert {o.domain: o.version for o in converted.opset_import} == {"": 13, "ai.onnx.ml": 1}


def _parse(text: str, opset: int) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> main {text}')


def _raise(model: onnx.ModelProto, version: int = 13) -> onnx.ModelProto:
    graph = model_io.load(model)
    assert convert_opset(graph, version) == 1
    raised = graph_proto.export_model(graph)
    onnx.checker.check_model(raised, full_check=True)
    return raised


@pytest.mark.parametrize(("op", "shape", "axis", "opset"), spread(("Softmax", "LogSoftmax", "Hardmax"), [
    ("N,3,4", 1, 13), ("N,3,4", 2, 13), ("N,M,4", 1, 13), ("N,M,4", 2, 13), ("N,M,K", 2, 13),
    ("2,3,4", 0, 13),
    ("N,M,4", 0, 14), ("2,3,K", 1, 14), ("N,M,K", 1, 14), ("2,M,4", -2, 13), ("N,3,4", -3, 14),
], of=3))  # fmt: skip
def test_flattened_axes_of_any_size(op: str, shape: str, axis: int, opset: int) -> None:
    """Sizes that are free are 0 as well: Reshape since opset 14 can be told to make them."""
    text = f"(float[{shape}] x) => (float[{shape}] y) {{ y = {op} <axis = {axis}> (x) }}"
    model = _parse(text, 11)
    raised = _raise(model)
    assert [imported.version for imported in raised.opset_import] == [opset]
    random = np.random.default_rng(3)
    sizes = [[int(part)] if part.isdigit() else [0, 1, 5] for part in shape.split(",")]
    for size in product(*sizes):
        feeds = {"x": random.standard_normal(size).astype(np.float32)}
        assert conversion.same(conversion.run(raised, feeds), conversion.run(model, feeds)), size


def test_an_opset_that_may_not_be_passed() -> None:
    model = _parse("(float[N,M,4] x) => (float[N,M,4] y) { y = Softmax <axis = 0> (x) }", 12)
    words = "from opset 12 to 13: Softmax 'y': it has no equivalent before opset 14$"
    with pytest.raises(model_io.ModelError, match=words):
        convert_opset(model_io.load(model), 13, newest=13)
    graph = model_io.load(model)
    assert convert_opset(graph, 13, newest=14) == 1 and graph.opset == 14


def test_flattened_axes_of_unknown_rank() -> None:
    """Another opset 14: nobody knows which of the sizes may be 0."""
    text = """(float[2,3,4] x, int64[R] s) => (float[A,B] y) { r = Reshape(x, s) p = Softmax(r)
        h = Hardmax <axis = 1> (p) y = Flatten(h) }"""
    model = _parse(text, 9)
    raised = _raise(model)
    for shape in ([2, 3, 4], [6, 4], [2, 3, 2, 2]):
        feeds = {"x": np.random.default_rng(1).random((2, 3, 4), np.float32), "s": np.array(shape)}
        assert conversion.same(conversion.run(raised, feeds), conversion.run(model, feeds))


@pytest.mark.parametrize(("opset", "kind"), [(7, "float"), (10, "bool")])
def test_the_mask_of_a_dropout_stays_what_it_was(opset: int, kind: str) -> None:
    """All zeros, where later definitions give ones."""
    model = _parse(f"(float[N,2] x) => (float[N,2] y, {kind}[N,2] m) {{ y, m = Dropout(x) }}", opset)
    for shape in ((3, 2), (0, 2)):
        feeds = {"x": np.ones(shape, np.float32)}
        assert conversion.same(conversion.run(_raise(model), feeds), conversion.run(model, feeds))


def test_nodes_without_an_equal_are_named() -> None:
    scan = """(float[1,3,2] x, float[1,2] s) => (float[1,2] r, float[1,3,2] y) {
        r, y = Scan <num_scan_inputs = 1, body = b (float[2] p, float[2] q) => (float[2] t, float[2] o) {
            t = Add(p, q) o = Tanh(t) }> (, s, x) }"""
    with pytest.raises(
        model_io.ModelError, match=r"from opset 8 to 13: Scan 'r': a Scan of opset 8 has other inputs"
    ):
        convert_opset(model_io.load(_parse(scan, 8)), 13)
    norm = """(float[2,%s,3] x) => (float[2,%s,3] y) <float[2] s = {1, 2}, float[2] b = {3, 4}> {
        y = GroupNormalization <num_groups = 2> (x, s, b) }"""
    reason = "GroupNormalization 'y': its scale and bias are per group, from opset 21 on per channel$"
    with pytest.raises(model_io.ModelError, match=reason):
        convert_opset(model_io.load(_parse(norm % (4, 4), 18)), 21)
    same = _parse(norm % (2, 2), 18)
    feeds = {"x": np.random.default_rng(1).random((2, 2, 3), np.float32)}
    assert conversion.same(conversion.run(_raise(same, 22), feeds), conversion.run(same, feeds))


def test_nothing_of_a_body_hides_what_is_around_it() -> None:
    """The converter numbers what it makes anew in each body: two tensors of one name are no model."""
    text = """(float[1,4] x) => (float[A] y) <bool c = {1}> { q = Squeeze <axes = [0]> (x)
        y = If (c) <then_branch = t () => (float[A] p) { p = Squeeze <axes = [0]> (x) },
                    else_branch = e () => (float[A] n) { r = Unsqueeze <axes = [0]> (q) n = Squeeze(r) }> }"""
    model = _parse(text, 11)
    graph = model_io.load(_raise(model))
    names = [tensor.name for node in walk.nodes(graph) for tensor in node.outputs]
    assert len(names) == len(set(names))
    feeds = {"x": np.arange(4, dtype=np.float32).reshape(1, 4)}
    assert conversion.same(conversion.run(_raise(model), feeds), conversion.run(model, feeds))


def test_excluded_nodes_are_found_again() -> None:
    text = """(float[2,3,4] x) => (float[2,3,4] y, float[A,B,C,D] z)
        <float[4] s = {1, 1, 1.5, 0.5}, int64[4] d = {1, 2, 3, 4}> {
        a = Softmax(x) y = Tanh(a) b = Reshape(a, d) z = Resize <mode = "nearest"> (b, s) }"""
    graph = model_io.load(_parse(text, 10))
    exclude = select(graph, op_types=["Softmax", "Resize"])
    convert_opset(graph, 13)
    found = exclude.resolve_in(graph)
    outside = {node.op for node in graph.nodes if node not in found}
    assert outside == {"Tanh", "Reshape"}
    assert sum(node.op == "Reshape" for node in graph.nodes if node not in found) == 1


@pytest.mark.parametrize("form", ("with_cast", "bf16", "customqdq"))
def test_numbers_that_a_raise_turns_into_inputs_are_constants(form: str, tmp_path: Path) -> None:
    """Oracle: the float model. Clip of a size is arithmetic on shapes: 301 is no bfloat16 number."""
    model = corpus.parse(
        """(float[N] x) => (float[M] y) { s = Shape(x) f = Cast <to = 1> (s) c = Clip <max = 1000.0> (f)
        i = Cast <to = 7> (c) a = Tanh(x) y = Reshape(a, i) }""",
        opset=10,
    )
    feeds = {"x": np.ones(301, np.float32)}
    converted = conversion.convert(model, tmp_path, "--format", form, "--no-optimize")
    run = conversion.run_wrapped if form == "bf16" else conversion.run
    assert run(converted, feeds)["y"].shape == (301,)


@pytest.mark.parametrize("kind", ("float", "float16", "double"))
@pytest.mark.parametrize(
    "node",
    (
        "Clip <max = 0.7, min = -0.3> (x)",
        "Clip <max = 0.7> (x)",
        "Clip (x)",
        "Pad <pads = [1, 2]> (x)",
        "Pad <pads = [1, 2], value = 0.3> (x)",
        *(f'Pad <pads = [1, 2], mode = "{mode}", value = 0.3> (x)' for mode in ("reflect", "edge")),
    ),
)
def test_numbers_that_become_inputs_have_the_type_of_the_data(node: str, kind: str) -> None:
    model = corpus.parse(f"({kind}[5] x) => ({kind}[N] y) {{ y = {node} }}", opset=9)
    feed = {"x": np.linspace(-2, 2, 5).astype({"float": "f4", "float16": "f2", "double": "f8"}[kind])}
    try:
        expected = conversion.run(model, feed)
    except Exception as error:
        pytest.skip(f"no kernel: {str(error)[:60]}")
    graph = model_io.load(model)
    convert_opset(graph, CAST_TO_BFLOAT16)
    converted = graph_proto.export_model(graph)
    onnx.checker.check_model(converted, full_check=True)
    assert conversion.same(conversion.run(converted, feed), expected)


def test_default_axes_of_a_normalisation_are_written() -> None:
    """Oracle: the full checker, which asks for them from opset 13 on, and ONNX Runtime at both opsets."""
    text = "(float[2,3,4,4] x) => (float[2,3,4,4] y) { y = MeanVarianceNormalization(x) }"
    model = corpus.parse(text, opset=9)
    graph = model_io.load(model)
    assert convert_opset(graph, 13) == 1
    raised = graph_proto.export_model(graph)
    onnx.checker.check_model(raised, full_check=True)
    feed = {"x": np.random.default_rng(0).standard_normal((2, 3, 4, 4)).astype(np.float32)}
    before, after = (ort.InferenceSession(m.SerializeToString()).run(None, feed)[0] for m in (model, raised))
    assert np.array_equal(before, after)


def test_operators_that_onnx_does_not_know_are_named() -> None:
    text = '<ir_version: 9, opset_import: ["": 17]> main (float[2,3] x) => (float[2,3] y) { y = Odd(x) }'
    model = onnx.parser.parse_model(text)
    model.graph.node[0].name = "it"
    reason = r"raised from opset 17 to 22: Odd 'it': opset 17 has no such operator$"
    with pytest.raises(model_io.ModelError, match=reason):
        convert_opset(model_io.load(model), 22)
