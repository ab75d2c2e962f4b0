"""Large weights wherever a model can hold them, and rarely used parts of ONNX, through the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.helpers import build, conversion, corpus
from tests.helpers.rounded import bf16
from transforms.functions.attach_functions import TWINS
from transforms.model.detached_weights import LARGE

SIZE = LARGE // 4
WEIGHT = np.random.default_rng(1).standard_normal(SIZE).astype(np.float32)
X = np.random.default_rng(2).standard_normal(SIZE).astype(np.float32)
PLACES = ("initializer of a branch", "constant of a branch", "captured by both", "captured by one")


def branching(place: str, size: int) -> onnx.ModelProto:
    """y = x * w where c is true, else x + w or -x; the weight stands in the place given."""
    model = corpus.parse(f"""(float[{size}] x, bool c) => (float[{size}] y) {{
        y = If (c) <then_branch = t () => (float[{size}] p) {{ p = Neg(x) }},
                    else_branch = e () => (float[{size}] p) {{ p = Neg(x) }}> }}""")
    then, other = (attribute.g for attribute in model.graph.node[0].attribute)
    tensor = numpy_helper.from_array(WEIGHT[:size], "w")
    then.node[0].CopyFrom(helper.make_node("Mul", ["x", "w"], ["p"]))
    if place == "constant of a branch":
        then.node.insert(0, helper.make_node("Constant", [], ["w"], value=tensor))
    else:
        (then if place == "initializer of a branch" else model.graph).initializer.append(tensor)
    if place == "captured by both":
        other.node[0].CopyFrom(helper.make_node("Add", ["x", "w"], ["p"]))
    onnx.checker.check_model(model, full_check=True)
    return model


@pytest.mark.parametrize("form", ("with_cast", "bf16", "customqdq"))
@pytest.mark.parametrize("size", (3, SIZE))
@pytest.mark.parametrize("place", PLACES)
def test_weights_that_branches_use(place: str, size: int, form: str, tmp_path: Path) -> None:
    model = conversion.convert(branching(place, size), tmp_path, "--format", form)
    graphs = [model.graph, *(a.g for node in model.graph.node for a in node.attribute if a.HasField("g"))]
    stored = [tensor for graph in graphs for tensor in graph.initializer if list(tensor.dims) == [size]]
    assert [tensor.data_type for tensor in stored] == [TensorProto.BFLOAT16], "once, in half the bytes"
    x, w = bf16(X[:size]), bf16(WEIGHT[:size])
    run = conversion.run_wrapped if form == "bf16" else conversion.run
    for condition in (True, False):
        expected = x * w if condition else (x + w if place == "captured by both" else -x)
        found = run(model, {"x": X[:size], "c": np.array(condition)})["y"]
        assert np.array_equal(found, bf16(expected))


@pytest.mark.parametrize("form", conversion.FORMATS)
def test_local_functions(form: str, tmp_path: Path) -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 18, "local": 1]>
        main (float[2] x) => (float[2] y) { a = local.twice(x) y = local.twice(a) }
        <domain: "local", opset_import: ["": 18]> twice (p) => (q) { q = Add(p, p) }""")
    result = conversion.convert(model, tmp_path, "--format", form)
    assert not {function.name for function in result.functions} - set(TWINS)
    run = conversion.run_wrapped if form == "bf16" else conversion.run
    x = np.array([0.3333333, 2], np.float32)
    assert np.array_equal(run(result, {"x": x})["y"], 4 * bf16(x))


@pytest.mark.parametrize("form", ("with_cast", "bf16", "customqdq"))
@pytest.mark.parametrize("kind", ("initializer", "constant"))
def test_sparse_weights(kind: str, form: str, tmp_path: Path) -> None:
    model = corpus.parse("(float[4] x) => (float[4] y) <float[4] w = {0, 0, 0, 0}> { y = Mul(x, w) }")
    del model.graph.initializer[:]
    values = numpy_helper.from_array(np.array([0.3333333, 3], np.float32), "w")
    sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(np.array([1, 3])), [4])
    if kind == "initializer":
        model.graph.sparse_initializer.append(sparse)
    else:
        model.graph.node.insert(0, helper.make_node("Constant", [], ["w"], sparse_value=sparse))
    result = conversion.convert(model, tmp_path, "--format", form)
    run = conversion.run_wrapped if form == "bf16" else conversion.run
    found = run(result, {"x": np.ones(4, np.float32)})["y"]
    assert np.array_equal(found, bf16(np.array([0, 0.3333333, 0, 3], np.float32)))


@pytest.mark.parametrize("form", conversion.FORMATS)
def test_words_about_the_model_survive(form: str, tmp_path: Path) -> None:
    model = build.dense(8, layers=2)
    model.domain, model.model_version, model.doc_string = "org.example", 7, "model"
    model.graph.doc_string, model.graph.node[0].doc_string = "graph", "node"
    model.metadata_props.add(key="author", value="me")
    result = conversion.convert(model, tmp_path, "--format", form)
    assert (result.domain, result.model_version, result.doc_string) == ("org.example", 7, "model")
    assert result.graph.doc_string == "graph"
    assert [n.doc_string for n in result.graph.node if n.name == "matmul0"] == ["node"]
    entries = {entry.key: entry.value for entry in result.metadata_props}
    assert entries["author"] == "me"
    assert entries["onnx_narrow.tool"] == "convert_fp32_to_bf16"


@pytest.mark.parametrize("form", conversion.FORMATS)
def test_nodes_without_names_and_nodes_of_one_name(form: str, tmp_path: Path) -> None:
    for names in (("", "", ""), ("n", "n", "n")):
        nodes = [helper.make_node("Sin", ["xab"[i]], ["aby"[i]], names[i]) for i in range(3)]
        ends = [build.value(name, [2]) for name in "xy"]
        model = build.model(nodes, ends[:1], ends[1:])
        result = conversion.convert(model, tmp_path, "--format", form)
        assert [node.op_type for node in result.graph.node].count("Sin") == 3
