"""Mixtures in standard operators. Oracle: ONNX Runtime on the model as it is written."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray

from tests.helpers import experts
from tests.helpers.experts import Experts
from transforms.experts.mixture import Mixture
from transforms.experts.outputs import mixture_outputs
from transforms.experts.written_out import written_out
from transforms.model import graph_proto
from transforms.write_qmoe import write_qmoe

X = np.random.default_rng(3).standard_normal((16, 64)).astype(np.float32)
FORMS = ("topk first", "softmax first", "divided", "sigmoid")
SHAPES = {"silu": Experts(), "relu, no bias": Experts("relu", has_bias=False), "gated": Experts("swiglu")}
CLOSE = 1e-5  # a thousand roundings at most, of 2^-24 each


def _run(model: onnx.ModelProto, *names: str) -> list[NDArray]:
    return onnxruntime.InferenceSession(model.SerializeToString()).run(list(names) or None, {"x": X})


def _found(model: onnx.ModelProto) -> list[Mixture]:
    return [one.mixture for one in written_out(graph_proto.import_model(model))]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_the_mixture_computes_what_the_nodes_do(shape: Experts, form: str) -> None:
    model = experts.written_out(shape, shape.weights(), form)
    (mixture,) = _found(model)
    logits = str(mixture.routing.logits.name)
    model.graph.output.append(onnx.helper.make_tensor_value_info(logits, 1, ["t", shape.count]))
    wanted, numbers = _run(model)
    made = mixture_outputs(mixture, X.astype(np.float64), numbers.astype(np.float64))
    assert np.linalg.norm(made - wanted) < CLOSE * np.linalg.norm(wanted)


@pytest.mark.parametrize("form", FORMS)
def test_it_is_written_in_integers(form: str) -> None:
    """8 bits leave 35 dB."""
    model = experts.written_out(SHAPES["gated"], SHAPES["gated"].weights(), form)
    graph = graph_proto.import_model(model)
    assert write_qmoe(graph, 8, 32) == 1
    written = graph_proto.export_model(graph)
    assert not {"TopK", "Gather", "ReduceSum"} & {node.op_type for node in written.graph.node}
    (wanted,), (made,) = _run(model), _run(written)
    assert np.square(wanted - made).sum() < 10**-3.5 * np.square(wanted).sum()


def _changed(change: str) -> onnx.ModelProto:
    model = experts.written_out(Experts(), Experts().weights())
    nodes = {node.output[0]: node for node in model.graph.node}
    if change == "another activation":
        nodes["q"].op_type = "Tanh"
    elif change == "a bound":
        nodes["h"].op_type = "Clip"
    elif change == "experts that count for less":
        nodes["w"].input[1] = "z"
    elif change == "the choice is an output":
        model.graph.output.append(onnx.helper.make_tensor_value_info("i", 7, ["t", 2]))
    else:
        nodes["u"].attribute.append(onnx.helper.make_attribute("largest", 0))
    return model


@pytest.mark.parametrize(
    "change",
    [
        "another activation",
        "a bound",
        "experts that count for less",
        "the choice is an output",
        "the smallest logits",
    ],
)
def test_what_no_mixture_computes_stays(change: str) -> None:
    graph = graph_proto.import_model(_changed(change))
    assert written_out(graph) == []
    assert write_qmoe(graph) == 0
