"""Oracle: ONNX Runtime on a tensor whose numbers are those of its channels, which every tensor shows then."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs
import onnxruntime as ort
import pytest

from tests.helpers import plans
from transforms import model_io
from transforms.channels.channel_layout import Layout, layout_of, moved, rows
from transforms.graph import walk
from transforms.model import graph_proto

HEAD = "(float[2,5,12] x) => (float[{}] y) {{ {} }}"
CONSTANTS: plans.Weights = {
    "heads": np.int64([0, 0, 3, 4]),
    "flat": np.int64([2, 5, 12]),
    "long": np.int64([2, 60]),
    "rows": np.int64([10, 12]),
}
SPLIT = "h = Reshape(x, heads) v = Transpose<perm = [0, 2, 1, 3]>(h) "
BACK = "b = Transpose<perm = [0, 2, 1, 3]>(v) "

FOLLOWED = [
    ("2,5,12", SPLIT + BACK + "y = Reshape(b, flat)", np.arange(12)),
    ("10,12", "h = Reshape(x, heads) y = Reshape(h, rows)", np.arange(12)),
    ("2,60", "h = Reshape(x, heads) y = Reshape(h, long)", None),
    ("2,5,12", SPLIT + "y = Reshape(v, flat)", None),
    ("2,5,4,3", "h = Reshape(x, heads) y = Transpose<perm = [0, 1, 3, 2]>(h)", None),
    ("12,5,2", "y = Transpose(x)", None),
    ("2,5,12", "y = Relu(x)", None),
]


def followed(graph: gs.Graph) -> dict[str, Layout]:
    """Return where the channels of the input lie in tensors made of it, by name."""
    tensor = graph.inputs[0]
    found = {tensor.name: layout_of(tensor, 12)}
    while uses := walk.uses(tensor):
        layout = moved(*uses[0], found[tensor.name])
        if layout is None:
            break
        tensor = uses[0][0].outputs[0]
        found[tensor.name] = layout
    return found


@pytest.mark.parametrize(("shape", "text", "expected"), FOLLOWED)
def test_channels_are_where_the_runtime_shows_them(
    shape: str, text: str, expected: np.ndarray | None
) -> None:
    graph = model_io.load(plans.model(HEAD.format(shape, text), CONSTANTS))
    channels = np.broadcast_to(np.arange(12, dtype=np.float32), (2, 5, 12))
    found = followed(graph)
    graph.outputs += [t for name, t in graph.tensors().items() if name in found and name not in ("x", "y")]
    session = ort.InferenceSession(graph_proto.export_model(graph).SerializeToString())
    names = [tensor.name for tensor in graph.outputs]
    shown = dict(zip(names, session.run(names, {"x": channels}), strict=True))
    for name, layout in found.items():
        if name != "x":
            np.testing.assert_array_equal(np.broadcast_to(layout, shown[name].shape), shown[name])
    last = rows(found["y"]) if "y" in found else None
    assert expected is None if last is None else np.array_equal(last, expected)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("c = MatMul(s, v)", True),  # sums over places
        ("t = Transpose<perm = [0, 1, 3, 2]>(v) c = MatMul(t, s)", True),
        ("t = Transpose<perm = [0, 1, 3, 2]>(v) c = MatMul(t, k)", True),
        ("c = MatMul(v, k)", False),  # over channels
    ],
)
def test_products_keep_channels_that_they_do_not_sum(text: str, kept: bool) -> None:
    head = "(float[2,5,12] x, float[2,3,5,5] s, float[2,3,N,M] k) => (float[2,3,N,M] c) { "
    found = followed(plans.loose_graph(head + SPLIT + text + " }", CONSTANTS))
    assert ("c" in found) == kept
    if kept:
        assert found["c"].size == 12
