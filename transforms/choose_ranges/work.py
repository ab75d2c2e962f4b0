"""How many samples settings can be compared on in the time that quantizing may take.

It follows from the size of the model, never from a clock: the choice is the same on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import zip_longest

import onnx_graphsurgeon as gs

from transforms.calibrate.calibration import Calibration
from transforms.graph import dot_products, walk
from transforms.runtime.compare_runs import MOST_NODES

_PAID = 3e8
"""Numbers that all runs together may make, beyond those that the samples pay for: about two seconds.

What else takes time is counted in the numbers that a run makes meanwhile.
"""

MOST_COUNTED = 100_000_000
"""Numbers of all samples up to which they are counted although no rule needs it: other methods are tried."""

_RUNS = 5  # of the float model for each sample
_FLOAT_RUNS, _FLOAT_PRODUCTS = 4, 3
"""Runs of the float model in the time of one of the quantized model, as numbers and as products take it."""

_PRODUCTS = 128  # of a dot product
_NODE = 200_000  # for a node: copies, plans and sessions of two models
_OPENED = 50_000  # for a node: a copy of a model and its session
_WEIGHT = 2  # for a number of a stored tensor: rounding it, and copies in two sessions
_NODE_RUN = 1800  # for a node at every run
_CLIPPED = 150_000  # for a tensor whose ranges of least error are found, of both halves
_SEARCHED = 5 / 6  # of _PAID: what proposes moves and compares the outputs takes the rest
_LOOKED = 1  # models that could be prepared while layers propose what outliers are moved
_FEWEST = 4
_LEAST = 2  # samples without which settings are not compared
_ENOUGH = 6  # samples that settings are compared on, if others would take the runs of measured biases
_LARGEST = 1 << 28  # bytes of weights: each kind of them is another copy
BIAS_RUNS = 40
"""Runs that measured biases take: for each of eight samples one of the float model, three of the quantized
one, and what else takes time."""


def too_large(graph: gs.Graph) -> bool:
    """Return whether weights are too large for copies in memory, or nodes too many for runs."""
    weights = sum(tensor._values.nbytes for tensor in walk.constants(graph))
    return weights > _LARGEST or has_many_nodes(graph)


def has_many_nodes(graph: gs.Graph) -> bool:
    """Return whether a graph has more than ``MOST_NODES``."""
    return len(graph.nodes) > MOST_NODES


def runs_for(
    graph: gs.Graph,
    calibration: Calibration,
    count: int,
    *,
    clips: bool,
    searched: int = 0,
    variants: int = 0,
    proposed: bool = False,
) -> int:
    """Return how many runs of the quantized model comparing settings may take, 0 if preparing it takes all.

    ``count``: the samples that were calibrated on. ``clips``: whether ranges of least error are found.
    ``searched``: models that were made to find outliers, of two samples at least, and run on two others.
    ``variants``: rewritten graphs, each calibrated and prepared once more. ``proposed``: whether there is one
    that samples proposed: looking at channels takes as long as two passes, and its tensors are measured with
    those of the graph.
    """
    numbers, products = _load(graph, calibration)
    floats = numbers / _FLOAT_RUNS + products / _FLOAT_PRODUCTS
    clipped = _CLIPPED * clips * len(calibration.observed)
    models = 1 + variants + proposed + (searched + _LOOKED if searched else 0)
    prepared = _made(graph, _NODE) * models + (1 + variants) * clipped
    calibrated = (variants + 2 * proposed) * floats
    run = _run(graph, numbers + products, count)
    tried = searched * _FEWEST / 2 * (run + floats / max(count, 1))
    paid = _PAID + _RUNS * floats - prepared - calibrated - tried
    return int(max(paid, 0) / max(run, 1))


def models_to_search(graph: gs.Graph, numbers: float, products: float, count: int, halves: int) -> int:
    """Return how many models there is time for to find outliers, each run on so many samples of a half.

    ``numbers`` and ``products`` are those of one of ``count`` samples, in the same unit.
    """
    float_run = numbers / _FLOAT_RUNS + products / _FLOAT_PRODUCTS
    made = _made(graph, _NODE)
    one = made + halves * (_run(graph, numbers + products, 1) + float_run)
    paid = _SEARCHED * _PAID + _RUNS * count * float_run - _LOOKED * made
    return int(max(paid, 0) / one)


def runs_to_open(graph: gs.Graph, calibration: Calibration, count: int) -> int:
    """Return how many runs take as long as another model of the graph takes to be copied and opened."""
    return _runs_for_nodes(_OPENED, graph, calibration, count)


def runs_to_prepare(graph: gs.Graph, calibration: Calibration, count: int) -> int:
    """Return how many runs take as long as it takes to prepare a model of the graph for comparisons."""
    return _runs_for_nodes(_NODE, graph, calibration, count)


def spare_beside_biases(spare: int) -> int:
    """Return how many of some runs are left with those that measured biases take, if they are enough."""
    return spare - BIAS_RUNS if spare >= BIAS_RUNS else spare


def _runs_for_nodes(each: float, graph: gs.Graph, calibration: Calibration, count: int) -> int:
    run = _run(graph, sum(_load(graph, calibration)), count)
    return int(_made(graph, each) / max(run, 1))


def _made(graph: gs.Graph, each: float) -> float:
    """Return what a model of the graph takes before it runs; ``each``: for a node."""
    numbers = sum(math.prod(tensor.shape) for tensor in walk.constants(graph))
    return each * len(graph.nodes) + _WEIGHT * numbers


def _run(graph: gs.Graph, load: float, count: int) -> float:
    """Return what a run of the quantized model on one of so many samples takes; ``load``: of all of them."""
    return load / max(count, 1) + _NODE_RUN * len(graph.nodes)


def too_few(runs: int, settings: int) -> bool:
    """Return whether runs are too few for a comparison of so many settings."""
    return runs < _LEAST * settings


def samples_for(runs: int, settings: int, most: int) -> int:
    """Return on how many samples settings are compared: two or more, of four or more as many of each half."""
    count = runs // settings
    return min(most, max(count if count < _FEWEST else count // 2 * 2, _LEAST))


def samples_beside_biases(runs: int, opened: int, settings: int, most: int) -> int:
    """Return on how many samples settings are compared if measured biases are to have their runs besides.

    Fewer than ``most`` if one setting takes their runs, for they bring more than what a few samples tell.
    ``opened``: runs that opening their model takes.
    """
    left = runs - opened - BIAS_RUNS
    if not (settings - 1) * most <= left < settings * most:
        return most
    fewer = samples_for(left, settings, most)
    return fewer if fewer >= min(_ENOUGH, most) else most


def _load(graph: gs.Graph, calibration: Calibration) -> tuple[float, float]:
    """Return the numbers that runs on all samples quantize, and products of layers in the same unit."""
    sizes = {name: calibration.numbers(name) for name in calibration.observed}
    return sum(sizes.values()), numbers_for_products(graph, sizes)


def numbers_for_products(graph: gs.Graph, sizes: Mapping[str, float]) -> float:
    """Return how many numbers are quantized in the time that the products of layers take.

    ``sizes``: numbers of tensors by name; layers count that read one of them.
    """
    products = sum(_products(node, sizes) for node in graph.nodes if dot_products.is_dot_product(node))
    return products / _PRODUCTS


def _products(node: gs.Node, sizes: Mapping[str, float]) -> float:
    """Return about how many products a layer with a stored weight makes of a sample."""
    data, weight = node.inputs[:2]
    if not isinstance(weight, gs.Constant) or len(weight.shape) < 2:
        return 0.0
    axis = dot_products.sum_axis(node, 1, len(weight.shape))
    channels = weight.shape[axis] * int(node.attrs.get("group", 1))
    return sizes.get(data.name, 0.0) / max(channels, 1) * math.prod(weight.shape) * _results(node)


def _results(node: gs.Node) -> float:
    """Return for how many of the places of its data a layer has results, as a share."""
    if node.op != "Conv":
        return 1.0
    data, made = (tensor.shape or () for tensor in (node.inputs[0], node.outputs[0]))
    strides = node.attrs.get("strides") or [1] * max(len(data) - 2, 0)
    lengths = zip_longest(strides, data[2:], made[2:])
    return math.prod(
        after / before if isinstance(before, int) and isinstance(after, int) and before else 1 / (stride or 1)
        for stride, before, after in lengths
    )
