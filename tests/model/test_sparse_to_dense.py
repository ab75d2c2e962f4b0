"""Oracle: the values themselves, and onnx's specification of SparseTensorProto."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.helpers import conversion, corpus
from tests.helpers.conversion import round_trip
from transforms.model import graph_proto
from transforms.model.read_model import ModelError

SMALL = np.array([0.5, -2], np.float32)


@pytest.mark.parametrize("indices", ([0, 3], [[0, 0], [1, 1]]))
@pytest.mark.parametrize("raw", (True, False))
def test_sparse_initializers_become_dense(indices: list, raw: bool) -> None:
    model = corpus.parse("(float[2,2] x) => (float[2,2] y) <float[2,2] w = {0, 0, 0, 0}> { y = Add(x, w) }")
    del model.graph.initializer[:]
    values = numpy_helper.from_array(SMALL, "w") if raw else helper.make_tensor("w", 1, [2], SMALL)
    sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(np.array(indices)), [2, 2])
    model.graph.sparse_initializer.append(sparse)
    result = round_trip(model)
    assert conversion.run(result, {"x": np.ones((2, 2), np.float32)})["y"].tolist() == [[1.5, 1], [1, -1]]


@pytest.mark.parametrize(
    ("indices", "message"),
    (
        ([0, 4], r"has index 4, legal are 0 \.\.\. 3"),
        ([-1, 2], r"has index -1, legal are 0 \.\.\. 3"),
        ([2**40, 2], r"has index 1099511627776, legal are 0 \.\.\. 3"),
        ([[0, 1], [0, 2]], r"has index 2 along axis 1, legal are 0 \.\.\. 1"),
        ([[-1, 1], [0, 1]], r"has index -1 along axis 0, legal are 0 \.\.\. 1"),
        ([1, 1], "has index 1 after 1, they have to ascend"),
        ([[1, 0], [0, 1]], r"has index \[0, 1\] after \[1, 0\], they have to ascend"),
        ([0], r"has 2 values and indices of shape \[1\]"),
        ([[0, 0, 0], [0, 0, 1]], r"has 2 values and indices of shape \[2, 3\]"),
    ),
)
def test_sparse_indices_that_are_none(indices: list, message: str) -> None:
    """Oracle: onnx's specification of SparseTensorProto. NumPy would count negative ones from the end."""
    model = corpus.parse("(float[2,2] x) => (float[2,2] y) <float[2,2] s = {0, 0, 0, 0}> { y = Add(x, s) }")
    del model.graph.initializer[:]
    values = numpy_helper.from_array(np.float32([5, 7]), "s")
    sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(np.array(indices)), [2, 2])
    model.graph.sparse_initializer.append(sparse)
    with pytest.raises(ModelError, match=f"sparse initializer 's'.* {message}") as caught:
        graph_proto.import_model(model)
    assert "\n" not in str(caught.value)


def test_sparse_constants_become_dense() -> None:
    """In a graph, in a body and in a local function. Oracle: the values themselves."""
    texts = (
        "{ c = Constant() y = Add(x, c) }",
        """{ y = If (b) <then_branch = t () => (float[4] o) { c = Constant() o = Add(x, c) },
                         else_branch = e () => (float[4] p) { d = Constant() p = Add(x, d) }> }""",
        """{ y = local.plus(x) } <domain: "local", opset_import: ["": 18]> plus (p) => (q) {
            c = Constant() q = Add(p, c) }""",
    )
    indices = numpy_helper.from_array(np.array([1, 3]))
    sparse = helper.make_sparse_tensor(numpy_helper.from_array(np.float32([5, 7])), indices, [4])
    for text in texts:
        head = '<ir_version: 8, opset_import: ["": 18, "local": 1]> g (float[4] x, bool b) => (float[4] y)'
        model = onnx.parser.parse_model(f"{head} {text}")
        bodies = [a.g.node for n in model.graph.node for a in n.attribute if a.HasField("g")]
        for nodes in (model.graph.node, *bodies, *(function.node for function in model.functions)):
            for node in (one for one in nodes if one.op_type == "Constant"):
                node.attribute.append(helper.make_attribute("sparse_value", sparse))
        result = round_trip(model)
        assert "sparse" not in onnx.printer.to_text(result)
        feed = {"x": np.ones(4, np.float32), "b": np.array(True)}
        assert conversion.run(result, feed)["y"].tolist() == [1, 6, 1, 8]
