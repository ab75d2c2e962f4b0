"""Which layers of a region are faster in float with the conversions at their borders.

A tensor between a layer in float and one in integers is converted once for all of its consumers. The time of
this per number is measured here; a profile tells the count of numbers.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Hashable, Mapping

import numpy as np
import onnx_graphsurgeon as gs

from transforms.graph.qdq import DEQUANTIZE_LINEAR, QUANTIZE_LINEAR
from transforms.run.turns import Timer, Timing
from transforms.runtime.session import RunOptions

_NUMBERS, _SECONDS = 1 << 17, 0.05
"""Numbers that are converted for the measurement, as many as a large layer outputs, and processor seconds."""

_FLOAT, _INTEGERS = "float", "integers"
_NOTHING = 1e-12  # seconds


def seconds_of_a_number(timer: Timer, run: RunOptions) -> float:
    """Return the time to convert one number from float to an integer and back."""
    data = gs.Variable("x", np.float32, [_NUMBERS])
    grid = [gs.Constant("scale", np.array(0.1, "f")), gs.Constant("zero_point", np.array(0, "u1"))]
    low = gs.Variable("low", np.uint8, [_NUMBERS])
    result = gs.Variable("y", np.float32, [_NUMBERS])
    nodes = [
        gs.Node(QUANTIZE_LINEAR, "quantize", inputs=[data, *grid], outputs=[low]),
        gs.Node(DEQUANTIZE_LINEAR, "dequantize", inputs=[low, *grid], outputs=[result]),
    ]
    graph = gs.Graph(nodes, inputs=[data], outputs=[result], opset=13)
    (seconds,) = timer([graph], [{"x": np.ones(_NUMBERS, np.float32)}], run, _SECONDS, None)
    return Timing.of(seconds).median / _NUMBERS


def worth_float(
    region: Collection[int],
    lost: Mapping[int, float],
    borders: Mapping[int, float],
    readers: Mapping[int, Collection[int]],
) -> set[int]:
    """Return the layers to put in float so that the region, with its borders, takes the least time.

    ``lost``: the seconds by which each layer is slower in integers; ``borders``: the seconds to convert its
    output, once for all ``readers``. The answer is a minimum cut between float and integers.
    """
    network = _Network()
    for layer in region:
        start, end = (_FLOAT, layer) if lost[layer] > 0 else (layer, _INTEGERS)
        network.add(start, end, abs(lost[layer]))
    for maker, consumers in readers.items():
        members = {layer if layer in region else _INTEGERS for layer in (maker, *consumers)}
        if members - {_INTEGERS}:
            some, every = ("some", maker), ("every", maker)
            network.add(some, every, borders[maker])
            for member in members:
                network.add(member, some, math.inf)
                network.add(every, member, math.inf)
    return {layer for layer in network.least_cut() if isinstance(layer, int)}


class _Network:
    """Residual capacities between nodes (Edmonds and Karp, J. ACM 19 (1972), 248)."""

    def __init__(self) -> None:
        self._left: dict[Hashable, dict[Hashable, float]] = {_FLOAT: {}, _INTEGERS: {}}

    def add(self, start: Hashable, end: Hashable, capacity: float) -> None:
        """Add capacity from ``start`` to ``end``."""
        for source, target, more in ((start, end, capacity), (end, start, 0.0)):
            into = self._left.setdefault(source, {})
            into[target] = into.get(target, 0.0) + more

    def least_cut(self) -> set[Hashable]:
        """Return the nodes on the side of float."""
        while _INTEGERS in (came := self._reached()):
            way: list[tuple[Hashable, Hashable]] = [(came[_INTEGERS], _INTEGERS)]
            while way[-1][0] != _FLOAT:
                way.append((came[way[-1][0]], way[-1][0]))
            flow = min(self._left[start][end] for start, end in way)
            for start, end in way:
                self._left[start][end] -= flow
                self._left[end][start] += flow
        return set(came)

    def _reached(self) -> dict[Hashable, Hashable]:
        """Return the nodes that can be reached from float, each with the one before it on a shortest way."""
        came: dict[Hashable, Hashable] = {_FLOAT: _FLOAT}
        waiting = deque[Hashable]([_FLOAT])
        while waiting:
            node = waiting.popleft()
            for other, left in self._left[node].items():
                if left > _NOTHING and other not in came:
                    came[other] = node
                    waiting.append(other)
        return came
