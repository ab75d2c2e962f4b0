"""Layers that let an output regress are put back, and the rest kept.

Oracles: regressions that are written down; a model with an output that the roundings of its trunk leave
exact.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tests.helpers.output_error import OutputError
from transforms import model_io
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.conversion.float_reference import float_reference
from transforms.finetune.finetune_model import finetune_model
from transforms.finetune.put_back import keep_halves
from transforms.finetune.tuned import TunedModel
from transforms.judge.constants import MOST_MODELS
from transforms.layers.match_layers import match_layers
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.scheme import Scheme

SCHEME = Scheme("int16", "int4", exclude_nodes=("lucky",), fit_weights=False)
random = np.random.default_rng(0)
DRAWN = random.standard_normal(8).astype(np.float32)


def samples(count: int) -> list[dict[str, NDArray[np.float32]]]:
    """Return inputs whose channels have much in common: roundings of weights can make up for each other."""
    own, common = (random.standard_normal((count, 1, sides, 4, 4)) for sides in (6, 1))
    return [{"x": one.astype(np.float32)} for one in 0.2 * own + common]


FEEDS, UNSEEN = samples(80), samples(80)


def model(lucky: NDArray[np.float32]) -> onnx.ModelProto:
    """Return a model of a trunk, a head, and a second head with given weights [1, 8] that stay float."""
    weights = {"trunk": (8, 6), "head": (4, 8)}
    drawn = np.random.default_rng(1)
    arrays = {
        f"{name}_w": drawn.standard_normal((*size, 1, 1)).astype(np.float32) for name, size in weights.items()
    }
    arrays["lucky_w"] = lucky.reshape(1, 8, 1, 1).astype(np.float32)
    nodes = [
        helper.make_node("Conv", [source, f"{name}_w"], [name], name=name)
        for name, source in (("trunk", "x"), ("head", "trunk"), ("lucky", "trunk"))
    ]
    sides = {"x": [1, 6, 4, 4], "head": [1, 4, 4, 4], "lucky": [1, 1, 4, 4]}
    values = {n: helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in sides.items()}
    stored = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "heads", [values["x"]], [values["head"], values["lucky"]], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def quantized(proto: onnx.ModelProto) -> tuple[gs.Graph, gs.Graph]:
    """Return the float model as it was quantized, and the quantized one."""
    graph = model_io.load(proto)
    quantize_graph(graph, SCHEME, CalibrationData(FEEDS))
    return float_reference(lambda: model_io.load(proto), graph, SCHEME), graph


def lucky_model() -> onnx.ModelProto:
    """Return the model whose second head reads a direction in which the trunk is not rounded at all."""
    trunk = match_layers(*quantized(model(DRAWN)))[0][0]
    stored = trunk.layer.pack(trunk.weight.values()).reshape(8, 6)
    rounding = stored - trunk.float_weight.reshape(8, 6)
    return model(np.linalg.svd(rounding.T)[2][-1].astype(np.float32))


def gains(before: TunedModel, given: gs.Graph, reference: gs.Graph) -> NDArray[np.float64]:
    """Return what each output gains on unseen samples, in dB."""
    errors = OutputError(reference, UNSEEN)
    totals = [errors.each(graph).errors.sum(0) for graph in (given, before.graph)]
    return np.asarray(10 * np.log10(totals[0] / totals[1]))


def test_a_trunk_that_an_output_regresses_by_is_put_back_and_a_head_kept() -> None:
    reference, graph = quantized(lucky_model())
    done = finetune_model(reference, graph, FEEDS)
    assert done.attempt is not None and done.blocked == "lucky"
    assert [done.walk.layers[number].name for number in done.put_back] == ["trunk"]
    head, lucky = gains(done, graph, reference)
    assert head > 0.2 and lucky == 0


def test_nothing_is_put_back_unless_an_output_regresses() -> None:
    reference, graph = quantized(model(DRAWN))
    done = finetune_model(reference, graph, FEEDS)
    assert done.attempt == "weights, biases and scales" and not done.put_back and done.blocked is None


def test_single_layers_are_found() -> None:
    """Of 64 layers one lets an output regress: halving finds it within the trials that there are."""
    tried = []

    def gain(layers: frozenset[int]) -> float | None:
        tried.append(layers)
        return None if 40 in layers else float(len(layers))

    kept = keep_halves(range(64), gain)
    assert kept == frozenset(range(64)) - {40}
    assert len(tried) <= MOST_MODELS


def test_no_more_models_are_tried_than_there_is_time_for() -> None:
    tried = []
    assert not keep_halves(range(64), lambda layers: tried.append(layers))
    assert len(tried) == MOST_MODELS


def test_layers_without_a_gain_are_not_kept() -> None:
    assert not keep_halves(range(8), lambda some: -1.0)


def test_a_single_layer_is_not_tried_again() -> None:
    assert not keep_halves([3], lambda some: 1.0)
