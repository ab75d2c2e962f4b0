"""Channels between convolutions brought to like ranges, also across SiLU and HardSwish."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np
import onnx_graphsurgeon as gs

from transforms.graph import dtypes, walk
from transforms.graph.channel_spans import Span, SpanFinder
from transforms.graph.rewire import Insertions
from transforms.graph.scaled_layer import Exponents, ScaledLayer
from transforms.graph.selection import Exclusion, resolve
from transforms.scheme.outlier_move import OutlierMove

log = logging.getLogger(__name__)

_ALPHA, _BETA = 1 / 6, 0.5  # of the HardSigmoid in a HardSwish


def scale_channels(graph: gs.Graph, moves: Mapping[str, OutlierMove], *, exclude: Exclusion = None) -> int:
    """Divide channels of tensors between convolutions by powers of two; return how many tensors.

    ``moves``, by the name of a tensor of the outermost graph that convolutions (or, after a Flatten, a
    product) alone read, gives the exponent of each channel, 0 for those that it does not name. The
    convolution that makes the tensor takes the factors in, and the layers that read it take them back: bit
    for bit the same model, as long as nothing becomes subnormal or infinite. In between lies what commutes
    with a positive factor (:class:`transforms.graph.channel_scaling.PairFinder`), or one gate: a new Mul
    gives the Sigmoid of x Sigmoid(x), or the HardSigmoid that a HardSwish is made of, the numbers as they
    were. All tensors that change get new names.

    Does nothing to other tensors, to moves with channels that get products of their own, and across nodes in
    ``exclude``. Raises ValueError for a channel that a tensor does not have.
    """
    spans = {str(span.read.name): span for span in SpanFinder(graph, resolve(exclude, graph)).spans(graph)}
    scaler = _Scaler(graph)
    count = 0
    for name, move in moves.items():
        span = spans.get(name)
        if span is None or move.own or move.rotated:
            log.debug("'%s': no channels that lie between convolutions", name)
            continue
        scaler.scale(span, _exponents(span, move))
        count += 1
    scaler.insertions.place(graph)
    return count


def _exponents(span: Span, move: OutlierMove) -> Exponents:
    if move.channels > span.channels:
        name = span.read.name
        raise ValueError(
            f"channel {move.channels - 1} of '{name}' is out of range: it has {span.channels} channels"
        )
    found = np.zeros(span.channels, np.int64)
    found[list(move.exponents)] = list(move.exponents.values())
    return found


class _Scaler:
    def __init__(self, graph: gs.Graph) -> None:
        self._graph, self._names = graph, walk.Names(graph)
        self.insertions = Insertions()

    def scale(self, span: Span, exponents: Exponents) -> None:
        """Scale the channels of one tensor."""
        first = ScaledLayer(span.first)
        first.out_shift += exponents
        first.apply()
        for companion in span.companions:
            companion.apply(exponents)
        for reader in span.readers:
            layer = ScaledLayer(reader)
            layer.in_shift += np.repeat(exponents, len(layer.in_shift) // span.channels)
            layer.apply()
        if span.gate is not None:
            self._restore(span, span.gate, exponents)
        for tensor in span.tensors:
            tensor.name = self._names.derive(tensor.name, "moved")

    def _restore(self, span: Span, gate: gs.Node, exponents: Exponents) -> None:
        """Give a gate the numbers as they were."""
        scaled = gate.inputs[0]
        places = len(span.first.inputs[1].shape) - 2
        factors = np.ldexp(np.float32(1), exponents).reshape(-1, *(1,) * places)
        restored = dtypes.variable(self._names.derive(scaled.name, "restored"), dtypes.FLOAT, scaled)
        constant = gs.Constant(self._names.derive(scaled.name, "restore"), factors)
        name = self._names.derive(restored.name, "mul")
        multiply = gs.Node("Mul", name, inputs=[scaled, constant], outputs=[restored])
        if gate.op == "HardSwish":
            self._open(gate, scaled)
        gate.inputs[0] = restored
        self.insertions.add(self._graph, walk.producer(scaled), [multiply])

    def _open(self, gate: gs.Node, scaled: gs.Tensor) -> None:
        """Write a HardSwish as the product of a tensor and its HardSigmoid."""
        made = gate.outputs[0]
        factor = dtypes.variable(self._names.derive(made.name, "factor"), dtypes.FLOAT, made)
        gate.op, gate.attrs, gate.outputs = "HardSigmoid", {"alpha": _ALPHA, "beta": _BETA}, [factor]
        name = self._names.derive(gate.name or made.name, "product")
        product = gs.Node("Mul", name, inputs=[scaled, factor], outputs=[made])
        self.insertions.add(self._graph, gate, [product])
