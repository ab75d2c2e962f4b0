"""The budget of runs: computed from the size of the model, not from a clock.

Choices are therefore the same on every machine. The unit of time is that of rounding one number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import onnx_graphsurgeon as gs

from transforms.calibrate.calibration import Calibration
from transforms.graph import dot_products, walk
from transforms.graph.embeddings import logits_of
from transforms.judge import constants
from transforms.runtime.compare_runs import MOST_NODES


def too_large(graph: gs.Graph) -> bool:
    """Return whether a model has too large weights for copies in memory, or too many nodes for runs."""
    weights = sum(tensor._values.nbytes for tensor in walk.constants(graph))
    return weights > constants.MOST_WEIGHTS or has_many_nodes(graph)


def has_many_nodes(graph: gs.Graph) -> bool:
    """Return whether a graph has more than ``MOST_NODES``."""
    return len(graph.nodes) > MOST_NODES


class Budget:
    """The runs of a quantized model that are left, of the ``whole`` budget.

    ``opened``: the cost of opening another model, in runs.
    """

    def __init__(self, runs: int, opened: int = 0) -> None:
        """Start with all runs."""
        self.runs = self.whole = runs
        self.opened = opened

    @classmethod
    def of(cls, graph: gs.Graph, statistics: Calibration, effort: str = "normal") -> Budget:
        """Return the budget for a model and its samples; ``effort``: one of ``constants.EFFORTS``."""
        sizes = {name: statistics.numbers(name) for name in statistics.observed}
        load = sum(sizes.values()) + _products(graph, sizes)
        run = load / statistics.samples + constants.NODE_RUN * len(graph.nodes)
        weights = sum(math.prod(tensor.shape) for tensor in walk.constants(graph))
        opened = constants.NODE_OPENED * len(graph.nodes) + constants.WEIGHT * weights
        each = int(opened / max(run, 1))
        runs = constants.FLOAT_RUNS / (1 if logits_of(graph) else constants.FLOAT)
        paid = constants.EFFORTS[effort] * (constants.PAID + runs * load)
        return cls(int(paid / max(run, 1)) - each, each)

    def samples(self, most: int) -> int:
        """Return the number of samples that judge candidates: ``most``, or fewer, as many of each fold."""
        return max(constants.FEWEST, min(most, self.runs // constants.CANDIDATES // 2 * 2))

    def allows(self, runs: int, models: int = 0) -> bool:
        """Return whether so many runs, and models to open, are left; subtract them if so."""
        needed = runs + models * self.opened
        if needed > self.runs:
            return False
        self.runs -= needed
        return True


def _products(graph: gs.Graph, sizes: Mapping[str, float]) -> float:
    """Return the time of the products of all layers on all samples, in the time of rounding one number."""
    layers = (node for node in graph.nodes if dot_products.is_dot_product(node))
    return sum(_products_of(node, sizes) for node in layers) / constants.PRODUCTS


def _products_of(node: gs.Node, sizes: Mapping[str, float]) -> float:
    """Return the number of multiplications of a layer with a stored weight; 0 for other nodes."""
    weight = node.inputs[1]
    if not isinstance(weight, gs.Constant) or len(weight.shape) < 2:
        return 0.0
    outputs = sizes.get(str(node.outputs[0].name), 0.0)
    axis = dot_products.channel_axis(node, 1, len(weight.shape))
    channels = weight.shape[axis] if axis is not None else 1
    per_output = math.prod(weight.shape) / max(channels, 1)
    if outputs:
        return outputs * per_output
    # the output was not measured, as before a Relu: it is taken to have as many elements as the input
    return sizes.get(str(node.inputs[0].name), 0.0) * per_output
