"""Gradients of real models, prepared as for quantization, with respect to what their dot products read.

Oracle: central differences in ONNX Runtime along the gradient itself, of a sample of the tensors, for random
seeds: a step is added to the tensor, and the outputs have to change by its length times the gradient's.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs
import pytest

from tests.helpers import real_models
from tests.helpers.gradient_check import EPS, OPTIONS, Feed, with_gradients
from transforms import model_io
from transforms.convert_opset import convert_opset
from transforms.graph import walk
from transforms.graph.dot_products import is_dot_product, is_operand
from transforms.pipelines.quantize_graph import prepare_for
from transforms.run.run_model import open_model
from transforms.runtime.session import OpenModel
from transforms.scheme import preset

STEP = 1e-5  # of the size of all outputs: few functions turn a corner within it
TOLERANCE = 5 * EPS / (2 * STEP)  # rounding of the outputs, in which 5 EPS of their size stay, over two steps
SAMPLE = 6

QUICK = ("resnet8_cifar10", "vittrack")
HEAVY = (
    "superres_zoo",
    "mobilenet_v1_025",
    "minilm_l6_op13",
    "magika_v3_3",
    "ppocrv3_det_en",
    "yolox_nano_ext",
)


def _load(name: str) -> gs.Graph:
    graph = model_io.load(real_models.MODELS / name / "model.onnx")
    prepare_for(graph, preset("BF16"))
    convert_opset(graph, 16)
    return graph


def _operands(graph: gs.Graph) -> list[str]:
    """Return the computed tensors that dot products multiply."""
    made = {id(tensor) for node in graph.nodes for tensor in node.outputs}
    products = (node for node in graph.nodes if is_dot_product(node))
    read = (t for node in products for i, t in enumerate(node.inputs) if is_operand(node, i))
    return list(dict.fromkeys(tensor.name for tensor in read if id(tensor) in made))


def _movable(graph: gs.Graph, names: list[str]) -> OpenModel:
    """Open the model with an input ``move_i`` that is added to the i-th tensor."""
    tensors, free = graph.tensors(), walk.Names(graph)
    for i, name in enumerate(names):
        tensor = tensors[name]
        moved = gs.Variable(free.derive(name, "moved"), np.float32, tensor.shape)
        graph.inputs.append(gs.Variable(f"move_{i}", np.float32, tensor.shape))
        walk.redirect(tensor, moved)
        place = next(k for k, node in enumerate(graph.nodes) if node is tensor.inputs[0])
        adding = gs.Node("Add", free.derive(name, "move"), {}, [tensor, graph.inputs[-1]], [moved])
        graph.nodes.insert(place + 1, adding)
    return open_model(graph, OPTIONS)


def _first_feed(name: str) -> Feed:
    data = real_models.task(name)
    feed: Feed = {**data.feeds[0], **(data.init or {})}
    return {key: array[:1] for key, array in feed.items()}


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(one, marks=pytest.mark.heavy) for one in HEAVY)])
def test_all_operands_of_dot_products_have_gradients_that_equal_differences(name: str) -> None:
    if name not in real_models.NAMES:
        pytest.skip(f"no model {name}")
    graph, feed = _load(name), _first_feed(name)
    operands = _operands(graph)
    chosen = [operands[int(i)] for i in np.unique(np.linspace(0, len(operands) - 1, SAMPLE).round())]
    moved = _movable(_load(name), chosen)
    plain = open_model(_load(name), OPTIONS).run(feed)
    model, found = with_gradients(graph, operands)
    assert found.names.keys() == set(operands)
    random = np.random.default_rng(0)
    seeds = {f"seed_{key}": random.standard_normal(y.shape).astype(np.float32) for key, y in plain.items()}
    results = model.run({**feed, **seeds})
    gradients = [results[found.names[one]] for one in chosen]
    still = {f"move_{i}": np.zeros_like(gradient) for i, gradient in enumerate(gradients)}
    size = sum(float(np.abs(seeds[f"seed_{key}"] * y).sum()) for key, y in plain.items())
    for i, gradient in enumerate(gradients):
        slope = float(np.linalg.norm(gradient.astype(np.float64)))
        length = STEP * size / slope
        losses = []
        for sign in (1, -1):
            move = (sign * length / slope * gradient.astype(np.float64)).astype(np.float32)
            made = moved.run({**feed, **still, f"move_{i}": move})
            losses.append(
                sum(float((seeds[f"seed_{key}"].astype(np.float64) * made[key]).sum()) for key in plain)
            )
        assert abs((losses[0] - losses[1]) / (2 * length) / slope - 1) <= TOLERANCE, chosen[i]
