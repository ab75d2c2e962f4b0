"""A machine with given times, on which quantized chains of Gemms (:mod:`tests.helpers.origins`) are timed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import onnx_graphsurgeon as gs

from transforms.graph import walk
from transforms.run.profile import Kernel


@dataclass
class Clock:
    """Seconds of layers in integers and in float, by number in the chain; others take 1 and 2.

    ``border``: of each conversion between layers. ``told``: what profiles say instead for layers in float.
    """

    integers: Mapping[int, float] = field(default_factory=dict)
    floats: Mapping[int, float] = field(default_factory=dict)
    told: Mapping[int, float] = field(default_factory=dict)
    border: float = 0.1
    jitter: Sequence[float] = (1.0,)
    timed: int = 0

    def profiled(self, openers: Sequence[partial[Any]], *_: object) -> list[list[Kernel]]:
        """Stand in for :func:`transforms.run.profile.profiled`."""
        return [list(self._kernels(opener.args[0])) for opener in openers]

    def _kernels(self, graph: gs.Graph) -> Iterator[Kernel]:
        for number, node in enumerate(_gemms(graph)):
            yield Kernel("Transpose", "Transpose_token_1", 0.0)
            seconds = self._seconds(number, node, {**self.floats, **self.told})
            yield Kernel("Gemm", f"{node.name}/fused", seconds)

    def timer(self, graphs: Sequence[gs.Graph], *_: object) -> list[list[float]]:
        """Stand in for :class:`transforms.run.turns.Turns`; of the first model times vary."""
        self.timed += 1
        first, *others = map(self._total, graphs)
        return [[first * one for one in self.jitter] * 8, *([one] * 8 * len(self.jitter) for one in others)]

    def _total(self, graph: gs.Graph) -> float:
        gemms = list(_gemms(graph))
        kinds = [False, *map(_is_quantized, gemms), False]
        borders = sum(one != other for one, other in pairwise(kinds))
        layers = (self._seconds(number, node, self.floats) for number, node in enumerate(gemms))
        return sum(layers) + self.border * borders

    def _seconds(self, number: int, node: gs.Node, floats: Mapping[int, float]) -> float:
        return self.integers.get(number, 1.0) if _is_quantized(node) else floats.get(number, 2.0)


def _gemms(graph: gs.Graph) -> list[gs.Node]:
    return [node for node in graph.nodes if node.op == "Gemm"]


def _is_quantized(node: gs.Node) -> bool:
    maker = walk.producer(node.inputs[1])
    return maker is not None and maker.op == "DequantizeLinear"
