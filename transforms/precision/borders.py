"""Which layers of a region are faster in float with the conversions at their borders.

Between a layer in float and one in integers numbers are converted, once for all that read them. The time of
that for one number is measured here; how many numbers there are, a profile says.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import onnx_graphsurgeon as gs

from transforms.graph.qdq import DEQUANTIZE_LINEAR, QUANTIZE_LINEAR
from transforms.run.turns import Timer, Timing
from transforms.runtime.session import RunOptions

_NUMBERS, _SECONDS = 1 << 17, 0.05
"""Numbers that are converted to measure one, as many as a large layer makes, and seconds of the processor."""


def seconds_of_a_number(timer: Timer, run: RunOptions) -> float:
    """Return how long it takes to make an integer of a float number, and a float of that."""
    data = gs.Variable("x", np.float32, [_NUMBERS])
    grid = [gs.Constant("scale", np.array(0.1, "f")), gs.Constant("zero_point", np.array(0, "u1"))]
    low = gs.Variable("low", np.uint8, [_NUMBERS])
    made = gs.Variable("y", np.float32, [_NUMBERS])
    nodes = [
        gs.Node(QUANTIZE_LINEAR, "quantize", inputs=[data, *grid], outputs=[low]),
        gs.Node(DEQUANTIZE_LINEAR, "dequantize", inputs=[low, *grid], outputs=[made]),
    ]
    graph = gs.Graph(nodes, inputs=[data], outputs=[made], opset=13)
    (seconds,) = timer([graph], [{"x": np.ones(_NUMBERS, np.float32)}], run, _SECONDS)
    return Timing.of(seconds).median / _NUMBERS


def worth_float(
    region: Collection[int],
    lost: Mapping[int, float],
    borders: Mapping[int, float],
    readers: Mapping[int, Collection[int]],
) -> set[int]:
    """Return the layers of a region that take least time in float, with their borders.

    ``lost``: seconds that each layer takes longer in integers; ``borders``: those in which what it makes is
    converted; ``readers``: of what it makes. From the whole region on, the layer whose change saves most goes
    back, or to float again, as long as one saves time: conversions are paid once, so a layer that loses
    nothing may stay between two that do.
    """
    kept = set(region)
    makers: dict[int, list[int]] = {}
    for maker, others in readers.items():
        for reader in others:
            makers.setdefault(reader, []).append(maker)

    def _converted(layer: int) -> float:
        is_float = layer in kept
        return borders[layer] if any((one in kept) != is_float for one in readers[layer]) else 0.0

    def _around(layer: int) -> float:
        return sum(_converted(one) for one in {layer, *makers.get(layer, ())})

    def _saved(layer: int) -> float:
        """Return what a change of a layer saves."""
        before = _around(layer)
        kept.symmetric_difference_update({layer})
        after = _around(layer)
        kept.symmetric_difference_update({layer})
        return before - after + (-lost[layer] if layer in kept else lost[layer])

    while True:
        best = max(region, key=_saved)
        if _saved(best) <= 0:
            return kept
        kept.symmetric_difference_update({best})
