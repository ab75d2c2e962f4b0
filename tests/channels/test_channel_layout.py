"""Oracle: ONNX Runtime on a tensor whose numbers are those of its channels, which every tensor shows then."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest

from tests.helpers import plans
from transforms import model_io
from transforms.channels.channel_layout import places_after, rows
from transforms.model import graph_proto

HEAD = "(float[2,5,12] x) => (float[{}] y) {{ {} }}"
CONSTANTS: plans.Weights = {
    "heads": np.int64([0, 0, 3, 4]),
    "triples": np.int64([0, 0, 3, 1, 4]),
    "flat": np.int64([2, 5, 12]),
    "long": np.int64([2, 60]),
    "rows": np.int64([10, 12]),
    "one": np.int64(1),
    "second": np.int64([2]),
    "one_axis": np.int64([1]),
}
SPLIT = "h = Reshape(x, heads) v = Transpose<perm = [0, 2, 1, 3]>(h) "
BACK = "b = Transpose<perm = [0, 2, 1, 3]>(v) "
FUSED = "h = Reshape(x, triples) p, q, v = Split<axis = 2, num_outputs = 3>(h) "

FOLLOWED = [
    ("2,5,12", SPLIT + "y = Reshape(h, flat)", None),  # two readers of h
    ("2,5,12", SPLIT + BACK + "y = Reshape(b, flat)", np.arange(12)),
    ("10,12", "h = Reshape(x, heads) y = Reshape(h, rows)", np.arange(12)),
    ("2,60", "h = Reshape(x, heads) y = Reshape(h, long)", None),
    ("2,5,12", SPLIT + "y = Reshape(v, flat)", None),
    ("2,1,5,1,4", FUSED + "t = Squeeze(v, second) y = Unsqueeze(t, one_axis)", np.arange(8, 12)),
    ("2,5,4", "h = Reshape(x, heads) y = Gather<axis = 2>(h, one)", np.arange(4, 8)),
    ("2,5,3", "h = Reshape(x, heads) y = Gather<axis = 3>(h, one)", np.arange(1, 12, 4)),
    ("5,12", "y = Gather<axis = 0>(x, one)", None),
    ("2,5,4,3", "h = Reshape(x, heads) y = Transpose<perm = [0, 1, 3, 2]>(h)", None),
    ("12,5,2", "y = Transpose(x)", None),
]


@pytest.mark.parametrize(("shape", "text", "expected"), FOLLOWED)
def test_channels_are_where_the_runtime_shows_them(
    shape: str, text: str, expected: np.ndarray | None
) -> None:
    graph = model_io.load(plans.model(HEAD.format(shape, text), CONSTANTS))
    channels = np.broadcast_to(np.arange(12, dtype=np.float32), (2, 5, 12))
    waiting, found = [(graph.inputs[0], np.arange(12))], {"x": np.arange(12)}
    while waiting:
        made = places_after(*waiting.pop())
        found |= {tensor.name: layout for tensor, layout in made}
        waiting += made
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
        ("t = Transpose<perm = [0, 1, 3, 2]>(v) c = MatMul(v, t)", False),  # over channels, twice
    ],
)
def test_products_keep_channels_that_they_do_not_sum(text: str, kept: bool) -> None:
    head = "(float[2,5,12] x, float[2,3,5,5] s) => (float[2,3,N,M] c) { "
    graph = plans.loose_graph(head + SPLIT + text + " }", CONSTANTS)
    place, layout = graph.inputs[0], np.arange(12)
    for _ in range(4 if "t =" in text else 3):
        made = places_after(place, layout)
        if not made:
            break
        ((place, layout),) = made
    assert (place.name == "c") == kept
    if kept:
        assert layout.size == 12


def test_channels_that_go_to_two_readers_are_not_followed() -> None:
    text = HEAD.format("2,5,12", "h = Reshape(x, heads) k = Transpose(h) y = Relu(h)")
    graph = plans.loose_graph(text, CONSTANTS)
    ((tensor, layout),) = places_after(graph.inputs[0], np.arange(12))
    assert places_after(tensor, layout) == []
