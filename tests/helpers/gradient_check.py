"""Checks gradients that a graph computes against central differences of the same model in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from transforms.gradients.backward import Gradients, add_gradients
from transforms.model import graph_proto
from transforms.run.run_model import open_model
from transforms.runtime.session import OpenModel, RunOptions

STEP = 2.0**-4
EPS = 2.0**-23
ROUNDINGS = 16  # in units in the last place, of an output of a few float32 operations

Feed = dict[str, NDArray]
OPTIONS = RunOptions(threads=1)


def with_gradients(graph: gs.Graph, wanted: Sequence[str]) -> tuple[OpenModel, Gradients]:
    """Add the gradients of all float outputs, whose seeds are called ``seed_``, and open the model."""
    outputs = {t.name: f"seed_{t.name}" for t in graph.outputs if t.dtype == np.float32}
    before = set(graph.tensors())
    found = add_gradients(graph, outputs, wanted)
    tensors = {t.name: t for node in graph.nodes for t in node.outputs} | {t.name: t for t in graph.inputs}
    for name in dict.fromkeys(found.names.values()):
        assert tensors[name].dtype == np.float32
        if all(tensors[name] is not other for other in graph.outputs):
            graph.outputs.append(tensors[name])
    assert before <= set(graph.tensors())
    model = graph_proto.export_model(graph)
    return open_model(graph_proto.import_model(model), OPTIONS), found


def seeds(model: OpenModel, outputs: Mapping[str, NDArray], random: np.random.Generator) -> Feed:
    """Return a random seed for each output that has one."""
    wanted = {one.name for one in model.inputs}
    return {
        f"seed_{name}": random.standard_normal(array.shape).astype(np.float32)
        for name, array in outputs.items()
        if f"seed_{name}" in wanted
    }


def check(model: onnx.ModelProto, feed: Feed, wanted: Sequence[str]) -> Gradients:
    """Assert that the gradient of each wanted input is that of central differences, element by element.

    The differences are extrapolated from two steps, h and h / 2; what is left of their error is less than a
    tenth of how far they differ (the next order, h^4, is smaller by h^2 and a factor), plus the rounding of
    the outputs over h.
    """
    plain = open_model(graph_proto.import_model(model), OPTIONS)
    outputs = plain.run(feed)
    graph = graph_proto.import_model(model)
    opened, found = with_gradients(graph, wanted)
    assert not found.unknown
    chosen = seeds(opened, outputs, np.random.default_rng(3))
    results = opened.run({**feed, **chosen})
    for name, array in outputs.items():
        np.testing.assert_array_equal(results[name], array)

    def _loss(changed: Feed) -> tuple[float, float]:
        made = plain.run(changed)
        terms = [
            chosen[f"seed_{name}"].astype(np.float64) * made[name]
            for name in made
            if f"seed_{name}" in chosen
        ]
        return sum(float(t.sum()) for t in terms), sum(float(np.abs(t).sum()) for t in terms)

    for name in wanted:
        gradient = results[found.names[name]] if name in found.names else np.zeros_like(feed[name])
        assert gradient.shape == feed[name].shape
        for place in np.ndindex(feed[name].shape):
            expected, tolerance = _difference(_loss, feed, name, place)
            assert abs(gradient[place] - expected) <= tolerance, (name, place, gradient[place], expected)
    return found


def _difference(
    loss: Callable[[Feed], tuple[float, float]], feed: Feed, name: str, place: tuple[int, ...]
) -> tuple[float, float]:
    """Return the derivative along one element of an input, and how far it may be off."""
    coarse, fine = (_central(loss, feed, name, place, step) for step in (STEP, STEP / 2))
    size = loss(feed)[1]
    expected = (4 * fine - coarse) / 3
    rounding = ROUNDINGS * EPS * size / STEP
    return expected, 0.1 * abs(fine - coarse) + rounding + ROUNDINGS * EPS * abs(expected)


def _central(
    loss: Callable[[Feed], tuple[float, float]], feed: Feed, name: str, place: tuple[int, ...], step: float
) -> float:
    values = []
    for sign in (1, -1):
        moved = feed[name].copy()
        moved[place] += np.float32(sign * step)
        values.append(loss({**feed, name: moved})[0])
    return (values[0] - values[1]) / (2 * step)
