"""Oracle: ONNX Runtime's DequantizeLinear."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs
import pytest

from tests.helpers import tunable
from transforms.finetune.row_sums import LayerInput, layer_input
from transforms.graph import walk
from transforms.layers.match_layers import match_layers
from transforms.run.kept_arrays import ActivationStore
from transforms.run.segmented_model import SegmentedRun

CONV = tunable.conv_net()
DATA = tunable.samples(CONV, 3)


def _inputs(preset: str) -> tuple[gs.Graph, list[gs.Tensor]]:
    float_graph, quantized = tunable.pair(CONV, preset, DATA)
    return quantized, [layer.source for layer in match_layers(float_graph, quantized)[0]]


@pytest.mark.parametrize("preset", ["A8W8", "XINT8", "U8S8", "A16W8", "BF16", "MX6"])
def test_what_a_layer_reads_follows_from_what_is_stored(preset: str) -> None:
    """To the last bit, in the model's own steps; integers are stored as integers."""
    graph, sources = _inputs(preset)
    for source in sources:
        stored = layer_input(source)
        with ActivationStore() as store:
            stepped = SegmentedRun(graph, DATA, [stored.name, source.name], store)
            kept = [one[stored.name] for one in stepped.advance([stored.name])]
            read = [one[source.name] for one in stepped.advance([source.name])]
        for one, other in zip(kept, read, strict=True):
            np.testing.assert_array_equal(stored.read(one), other)
        assert (kept[0].dtype.kind in "iu") == (preset in ("A8W8", "XINT8", "U8S8", "A16W8"))
        assert (stored.name == source.name) != (kept[0].dtype.kind in "iu")


def test_the_zero_point_is_read_as_zero() -> None:
    _, sources = _inputs("U8S8")
    zeros = [layer_input(source).zero_point for source in sources]
    assert any(zeros)  # x is negative, too
    for zero in zeros:
        one = LayerInput("x", np.float32(0.25), zero)
        assert one.read(np.array([zero, 255], np.uint8)).tolist() == [0, (255 - zero) / 4]


@pytest.mark.parametrize("what", ["scale of each channel", "computed scale", "no zero point", "constant"])
def test_other_inputs_are_taken_as_they_are(what: str) -> None:
    _, sources = _inputs("A8W8")
    node = walk.producer(sources[1])
    assert node is not None and node.op == "DequantizeLinear"
    if what == "scale of each channel":
        node.inputs[1] = gs.Constant("s", np.ones(8, np.float32))
    elif what == "computed scale":
        node.inputs[1] = gs.Variable("s", np.float32, ())
    elif what == "no zero point":
        del node.inputs[2]
    else:
        node.inputs[0] = gs.Constant("q", np.ones((1, 8, 8, 8), np.int8))
    assert layer_input(sources[1]) == LayerInput(sources[1].name)
