"""A Pad before a Conv, for zeros whose level is not 0."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from transforms.graph import dtypes, walk
from transforms.graph.constants import load
from transforms.graph.lazy_values import constant
from transforms.graph.rewire import Insertions
from transforms.graph.selection import label_of

LEAST_OPSET = 13
"""First opset in which the widths of a Pad are an input, and quantization takes tensors of any rank."""

_LOWEST = -128  # the level of zero


class Padding:
    """Pads before the layers of a graph, quantized like all its nodes; layers that pad alike share one."""

    def __init__(self, graph: gs.Graph, names: walk.Names, insertions: Insertions) -> None:
        """Start without any; nodes go into ``insertions``."""
        self._graph, self._names, self._insertions = graph, names, insertions
        self._made: dict[tuple[int, tuple[int, ...]], gs.Variable] = {}

    def add(self, layer: gs.Node, quantizer: gs.Node) -> None:
        """Let a Conv read its input padded and rounded like ``quantizer``; the Conv itself no longer pads."""
        source, pads = layer.inputs[0], tuple(layer.attrs["pads"])
        key = id(source), pads
        if key not in self._made:
            self._made[key] = self._padded(source, pads, quantizer)
        layer.inputs[0] = self._made[key]
        layer.attrs["pads"] = [0] * len(pads)

    def _padded(self, source: gs.Variable, pads: tuple[int, ...], quantizer: gs.Node) -> gs.Variable:
        """Return the result of a Pad, followed by a rounding that changes nothing."""
        back, derive = source.inputs[0], self._names.derive
        scale, half = back.inputs[1], len(pads) // 2
        widths = np.array([0, 0, *pads[:half], 0, 0, *pads[half:]], np.int64)  # none for batch and channels
        least = np.asarray(np.float32(_LOWEST) * load(scale).reshape(()), np.float32)
        stored = [constant(derive(source.name, end), x) for end, x in (("pads", widths), ("least", least))]
        wide, padded = (gs.Variable(derive(source.name, end), dtypes.FLOAT) for end in ("wide", "padded"))
        levels = gs.Variable(derive(source.name, "codes"), np.int8)
        label = label_of(back)
        nodes = [
            gs.Node("Pad", derive(label, "pad"), {}, [source, *stored], [wide]),
            _like(quantizer, derive(label, "quantize"), wide, levels),
            _like(back, derive(label, "padded"), levels, padded),
        ]
        self._insertions.add(self._graph, back, nodes)
        return padded


def _like(node: gs.Node, name: str, source: gs.Tensor, target: gs.Tensor) -> gs.Node:
    return gs.Node(node.op, name, dict(node.attrs), [source, *node.inputs[1:]], [target])
