"""Layers are equalized where scales are powers of two.

Oracles: the float model on unseen samples, and the recorded scheme, which makes the same model again.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

from tests.helpers.judged_networks import network, samples
from tests.helpers.spread import spread
from transforms import model_io
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.conversion.prepare import prepare_for
from transforms.model import graph_proto
from transforms.pipelines.in_memory import IN_MEMORY
from transforms.pipelines.options import Options
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.pipelines.steps import run
from transforms.pipelines.work import Work
from transforms.scheme import preset


def uneven(spread: float, second: int = 3) -> onnx.ModelProto:
    """Return a network with channels between layers scaled: a quantized tensor keeps few bits of most.

    Those of the layer before the ``second``, which reads them.
    """
    model = onnx.ModelProto.FromString(network(0, 0.0, 1.0).SerializeToString())
    factors = np.exp2(np.random.default_rng(5).normal(0, spread, 16)).astype(np.float32)
    scale(model, f"w{second - 1}", factors.reshape(-1, 1, 1, 1))
    scale(model, f"b{second - 1}", factors)
    scale(model, f"w{second}", 1 / factors.reshape((1, -1, 1, 1) if second == 3 else (-1, 1, 1, 1)))
    return model


def scale(model: onnx.ModelProto, name: str, factors: NDArray[np.float32]) -> None:
    """Multiply a stored weight."""
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == name)
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * factors, name))


@pytest.mark.parametrize("count", (0, 1, 8))
def test_powers_of_two_are_equalized_by_rule(count: int) -> None:
    """Without samples, with one, and if the outputs gain by it."""
    graph = model_io.load(uneven(3.0))
    data = CalibrationData(samples(max(1, count), 1), decides=count > 0)
    done = quantize_graph(graph, preset("XINT8").with_(move_outliers=False), data)
    assert done.changes["pairs of layers equalized"] > 0
    assert done.scheme is not None
    assert done.scheme.equalize_layers is True


def test_layers_stay_as_they_are_where_outputs_lose() -> None:
    """Channels that differ little, beside biases that would grow: the same model as with the key false."""
    scheme, feeds = preset("XINT8").with_(move_outliers=False), CalibrationData(samples(8, 1))
    plain, asked = (model_io.load(uneven(1.0)) for _ in range(2))
    quantize_graph(plain, scheme.with_(equalize_layers=False), feeds)
    done = quantize_graph(asked, scheme, feeds)
    (tried,) = (one for one in done.decisions.tried if one.move == "equalized layers")
    assert not tried.kept
    assert tried.gain.decibels < 0
    made, other = (graph_proto.export_model(one) for one in (asked, plain))
    assert made.graph == other.graph


@pytest.mark.parametrize(
    ("config", "changes"),
    spread(
        ("A8W8", "A16W8", "U8S8", "U16S8", "W4A8", "XINT8"),
        ({}, {"move_outliers": False}, {"equalize_layers": "auto", "per_channel": False}),
        of=3,
    ),
)
def test_the_float_model_takes_the_same_form_again(config: str, changes: dict[str, bool | str]) -> None:
    """What tuning and reports compare with: weights of the recorded scheme, those that were quantized.

    A row of weights stands out: 16 bits balance it.
    """
    model, feeds = uneven(3.0, second=2), samples(8, 1)
    scale(model, "w3", np.where(np.arange(16) == 3, 300, 1).astype(np.float32).reshape(1, -1, 1, 1))
    graph, again = model_io.load(model), model_io.load(model)
    scheme = preset(config).with_(**changes)
    done = run(Work(graph, scheme, CalibrationData(feeds), options=Options(keeps_float=True)), IN_MEMORY)
    assert done.base.graph is not None
    assert done.scheme is not None
    prepare_for(again, done.scheme)
    kept, made = (graph_proto.export_model(one) for one in (done.base.graph, again))
    assert kept.graph.initializer == made.graph.initializer
    assert kept.graph.node == made.graph.node
