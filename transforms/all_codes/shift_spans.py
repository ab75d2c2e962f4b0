"""Ranges without zero in their middle on all codes of int8, without a zero point.

A span of a quantized model (:mod:`transforms.all_codes.spans`) holds numbers x from low to high. Rounded
instead is x' = x - c in steps of (high - low) / 255, with c a whole number of steps that puts the range onto
all codes: the numbers that a zero point gives. The bias of the Conv or Gemm in front takes the shift, and
those of layers that read x' add c times the sum of their weights; elsewhere a Sub and an Add can do it, in
float, between operators and their quantization.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from ops.formats import FORMATS
from ops.integers import range_scale
from transforms.all_codes.integer_layers import IntegerLayer, integer_layer
from transforms.all_codes.move_zero import layer_that_reads, move_zero, top_of_rectifier
from transforms.all_codes.pad_codes import LEAST_OPSET, Padding
from transforms.all_codes.recorded_shifts import record_shifts, recorded_shifts
from transforms.all_codes.spans import Span, spans
from transforms.graph import dot_products, dtypes, walk
from transforms.graph.constants import Constants
from transforms.graph.lazy_values import constant
from transforms.graph.rewire import Insertions, detach

_INT8 = FORMATS["int8"]
_FREE, _PAID = 0.95, 0.8
"""Shares of the present step that the new one may have: without nodes, and with an Add or Sub."""

_ROOM = 0.2
"""Exponent of the ratio of steps by which a range is widened: 8 / 7 if steps get half as large."""

_BOUNDED = frozenset({"Softmax", "Clip", "Tanh", "Softsign"})
"""Operators whose results new data do not exceed."""

_GATES = frozenset({"Sigmoid", "HardSigmoid"})
"""Operators that make factors from 0 to 1, whose finer steps are not worth an Add and a Sub."""


@dataclass(frozen=True)
class ShiftedSpan:
    """By how much tensors of these names of the float model are shifted, and their new step."""

    names: Sequence[str]
    shift: float
    step: float


def shift_spans(
    graph: gs.Graph,
    ranges: Mapping[str, tuple[float, float]],
    *,
    padded: bool = False,
    added: bool = False,
) -> list[ShiftedSpan]:
    """Let spans of an int8 model use all codes, in place, if their steps get clearly finer.

    ``ranges``: with a zero point, by the names of the tensors that come in. Biases at all ends take the
    shifts. With ``padded`` a Conv that pads gets a Pad, and a mean a Sub. With ``added`` an Add and a Sub
    stand where no bias takes the shift; none stands before a dot product, which would compute in float.
    Tensors that are shifted already stay, and what an input, an output or a gate is.
    """
    padded = padded and graph.opset >= LEAST_OPSET
    return _Shifter(graph, ranges, padded=padded, added=added).shift()


_MEANS = frozenset({"GlobalAveragePool", "ReduceMean"})
"""Operators whose results are small, so that a Sub after them costs little, and count much before a layer."""


@dataclass(frozen=True)
class _Entry:
    """A float tensor that comes into a span, and the layer whose bias can take its shift."""

    tensor: gs.Tensor
    layer: IntegerLayer | None = None
    rectifier: gs.Node | None = None


def _is_mean(entry: _Entry) -> bool:
    """Return whether a mean comes into a span, of an AveragePool one over all positions."""
    maker, shape = walk.producer(entry.tensor), entry.tensor.shape or ()
    if maker is not None and maker.op == "AveragePool":
        return len(shape) > 2 and all(size == 1 for size in shape[2:])
    return maker is not None and maker.op in _MEANS


class _Shifter:
    """The spans of one graph on their way to other codes."""

    def __init__(
        self, graph: gs.Graph, ranges: Mapping[str, tuple[float, float]], *, padded: bool, added: bool
    ) -> None:
        self._graph, self._ranges, self._padded, self._added = graph, ranges, padded, added
        self._names, self._constants, self._outputs = walk.Names(graph), Constants(graph), walk.outputs(graph)
        self._insertions = Insertions()
        self._padding = Padding(graph, self._names, self._insertions)

    def shift(self) -> list[ShiftedSpan]:
        """Shift what can be shifted."""
        known = recorded_shifts(self._graph)
        waiting = [span for span in spans(self._graph) if not known.keys() & {*span.quantized}]
        found = [shifted for span in waiting if (shifted := self._take(span)) is not None]
        self._insertions.place(self._graph)
        self._graph.nodes = [node for node in self._graph.nodes if node.outputs]  # the others were detached
        record_shifts(self._graph, {name: one.shift for one in found for name in one.names})
        return found

    def _take(self, span: Span) -> ShiftedSpan | None:
        """Shift a span; None, with nothing changed, if that is not possible or gains too little."""
        grid = self._grid(span)
        if grid is None:
            return None
        scale, code = grid
        entries = [self._entry(span, tensor, code, scale) for tensor in span.entries]
        found = [(node, layer_that_reads(node, span.scale, padded=self._padded)) for node, _ in span.readers]
        readers = [layer for _, layer in found if layer is not None]
        left = [use for use, (_, layer) in zip(span.readers, found, strict=True) if layer is None]
        is_mean = self._padded and not left and all(one.layer or _is_mean(one) for one in entries)
        is_paid = bool(left) or any(entry.layer is None for entry in entries)
        if (is_paid and not (self._added or is_mean)) or scale > (_PAID if is_paid else _FREE) * span.scale:
            return None
        if any(dot_products.is_dot_product(node) for node, _ in left):
            return None
        makers = [entry.layer for entry in entries if entry.layer is not None]
        names = [*span.quantized, *(str(layer.node.outputs[0].name) for layer in makers)]
        if not move_zero(makers, readers, span.scale, scale, code):
            return None
        self._write(span, entries, readers, left, scale, code)
        return ShiftedSpan(names, -code * scale, scale)

    def _grid(self, span: Span) -> tuple[float, int] | None:
        """Return the step with a zero point and the code of zero; None for what stays."""
        found = [self._ranges[str(one.name)] for one in span.entries if one.name in self._ranges]
        makers = [maker.op for tensor in span.entries if (maker := walk.producer(tensor)) is not None]
        if len(found) < len(span.entries) or len(makers) < len(span.entries) or _GATES & {*makers}:
            return None
        low, high = min(0.0, *(one[0] for one in found)), max(0.0, *(one[1] for one in found))
        if not {"Relu", "Clip"} >= {*makers}:
            low = min(low, -high / 254)  # the lowest code for zero says that a Relu is gone
        step = (high - low) / 255
        if step and not {*makers} <= _BOUNDED:
            room = max(1.0, (span.scale / step) ** _ROOM)
            low, high = low * room, high * room
        scale, code = range_scale(low, high, _INT8, symmetric=False)
        return float(scale), int(code)

    def _entry(self, span: Span, tensor: gs.Tensor, code: int, scale: float) -> _Entry:
        """Return what makes a tensor of a span whose zero has a code; saturation may replace a Relu."""
        maker = walk.producer(tensor)
        top = None if maker is None else top_of_rectifier(maker, self._constants)
        if maker is None or not self._is_rounded(span, tensor):
            return _Entry(tensor)
        if top is None:
            return _Entry(tensor, integer_layer(maker))
        before = walk.producer(maker.inputs[0])
        fits = code == _INT8.lowest and scale * 255 <= top * (1 + 1e-6)
        if before is None or not fits or len(maker.inputs[0].outputs) != 1:
            return _Entry(tensor)
        layer = None if id(maker.inputs[0]) in self._outputs else integer_layer(before)
        return _Entry(tensor, layer, None if layer is None else maker)

    def _is_rounded(self, span: Span, tensor: gs.Tensor) -> bool:
        """Return whether the roundings of a span alone read a tensor, none on another grid."""
        own = {id(node) for node in span.rounding}
        return id(tensor) not in self._outputs and all(id(node) in own for node in tensor.outputs)

    def _write(
        self,
        span: Span,
        entries: Sequence[_Entry],
        readers: Sequence[IntegerLayer],
        left: Sequence[tuple[gs.Node, int]],
        scale: float,
        code: int,
    ) -> None:
        """Give the nodes of a span their new step, and add those that biases do not make superfluous."""
        old = span.rounding[0].inputs[1]
        shape = np.shape(old.values)
        stored = constant(self._names.derive(old.name, "all_codes"), np.full(shape, scale, np.float32))
        for node in span.rounding:
            node.inputs[1] = stored
        for entry in entries:
            if entry.rectifier is not None:
                walk.redirect(entry.rectifier.outputs[0], entry.rectifier.inputs[0])
                detach(entry.rectifier)
            elif entry.layer is None:
                self._subtract(span, entry.tensor, -code * scale)
        self._add_back(left, -code * scale)
        for reader in readers:
            if any(reader.node.attrs.get("pads", ())):
                self._padding.add(reader.node, span.rounding[0], code)

    def _subtract(self, span: Span, tensor: gs.Tensor, shift: float) -> None:
        """Let the span round what a Sub makes of a float tensor."""
        name = self._names.derive(tensor.name, "shifted")
        shifted = dtypes.variable(name, dtypes.FLOAT, tensor)
        middle = constant(self._names.derive(tensor.name, "shift"), np.asarray(shift, np.float32))
        for node in span.rounding:
            if node.inputs[0] is tensor:
                node.inputs[0] = shifted
        node = gs.Node("Sub", self._names.derive(tensor.name, "shift_codes"), {}, [tensor, middle], [shifted])
        self._insertions.add(self._graph, walk.producer(tensor), [node])

    def _add_back(self, left: Sequence[tuple[gs.Node, int]], shift: float) -> None:
        """Let nodes read what an Add makes of the tensors of a span, one for each tensor."""
        made: dict[int, gs.Tensor] = {}
        for reader, index in left:
            tensor = reader.inputs[index]
            if id(tensor) not in made:
                back = dtypes.variable(self._names.derive(tensor.name, "back"), dtypes.FLOAT, tensor)
                middle = constant(self._names.derive(tensor.name, "shift"), np.asarray(shift, np.float32))
                label = self._names.derive(tensor.name, "shift_back")
                node = gs.Node("Add", label, {}, [tensor, middle], [back])
                self._insertions.add(self._graph, walk.producer(tensor), [node])
                made[id(tensor)] = back
            reader.inputs[index] = made[id(tensor)]
