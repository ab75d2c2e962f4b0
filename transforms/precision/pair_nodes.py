"""Pair the nodes of a quantized model with those of its float model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import onnx_graphsurgeon as gs

from ops.formats import BFP, MX
from transforms import features
from transforms.conversion.record import Record
from transforms.conversion.rows import features_of
from transforms.full_range.recorded_shifts import shifts_within
from transforms.graph import dot_products, dtypes, walk
from transforms.graph.constant_nodes import is_made_of_constants
from transforms.graph.constants import load
from transforms.graph.selection import label_of
from transforms.plan.quant_spec import QUANTIZED_BY
from transforms.precision.mixed import Mixed
from transforms.precision.readings import OUTPUT
from transforms.runtime_workarounds import is_unchanging

Pair = tuple[gs.Node, gs.Node]
"""A node of the float model, and the node of the quantized model that computes the same."""

_ROUNDINGS = QUANTIZED_BY | {
    *("QuantizeLinear", "DequantizeLinear", "ExtendedQuantizeLinear", "ExtendedDequantizeLinear"),
    "DynamicQuantizeLinear",
    *("Cast", BFP, MX),
}
_WRITTEN_AS = frozenset({("Add", "Sum"), ("Gather", "Mul")})
"""Operators of a float node and of its counterpart: of
:func:`transforms.runtime_workarounds.sum_before_layernorm`, and of
:func:`transforms.quantize_tables.quantize_tables`, which multiplies gathered rows by their scales."""

_SUFFIXES = ("_raw", "_bf16", "_fp16", "_quantized")
"""Suffixes that conversions append to the output of a layer when a rounding takes over its name."""


class PairedModels:
    """A float model and its quantized form, edited so that each unrounded tensor has a counterpart.

    ``base``, ``other``: the float and the quantized model, with layers of the same names whose inputs differ:
    those of ``other`` are rounded. ``floats``: the tensor of the float model by the id of its counterpart in
    the quantized model. ``unpaired``: names of computing nodes of the quantized model without a counterpart;
    their error is attributed to the layers that read them.
    """

    def __init__(self, float_graph: gs.Graph, quantized_graph: gs.Graph) -> None:
        """Pair the float model, in the form that was quantized, with the quantized one; edits both."""
        self._float, self._quantized = float_graph, quantized_graph
        opened = features_of(quantized_graph)
        roundings = {key for feature in opened for key in feature.write_float(quantized_graph)}
        pairs = _pairs(float_graph, quantized_graph)
        paired = roundings | {id(node) for _, node in pairs}
        self.unpaired = [label_of(n) for n in quantized_graph.nodes if id(n) not in paired and _computes(n)]
        pairs = _without_shifts(quantized_graph, pairs)
        pairs += self._of_outputs({id(node) for _, node in pairs})
        shared = _inputs(float_graph, quantized_graph)
        raw = {tensor.name: (_named(float_graph, tensor.name), tensor) for tensor in shared}
        for first, second in pairs:
            raw |= {b.name: (a, b) for a, b in zip(first.outputs, second.outputs, strict=True) if b.name}
        # what is moved or renamed, not computed, stands for the same float tensor
        for node in filter(is_unchanging, quantized_graph.nodes):
            if node.inputs[0].name in raw:
                raw[node.outputs[0].name] = raw[node.inputs[0].name][0], node.outputs[0]
        self.floats = {id(quantized): unrounded for unrounded, quantized in raw.values()}
        layers: dict[str, Pair] = {}
        for first, second in pairs:
            if self._differs(first, second):
                layers.setdefault(_unique(label_of(first), layers), (first, second))
        tensors = [{name: pair[i] for name, pair in raw.items()} for i in range(2)]
        nodes = [{name: [pair[i]] for name, pair in layers.items()} for i in range(2)]
        self.base = Mixed(float_graph, tensors[0], nodes[0], Record())
        self.other = Mixed(quantized_graph, tensors[1], nodes[1], Record())

    def _of_outputs(self, paired: set[int]) -> list[Pair]:
        """Insert an Identity at each rounded output, in both models; return the pairs of Identity nodes."""
        pairs = []
        float_outputs = {tensor.name: tensor for tensor in self._float.outputs}
        names = walk.Names(self._float), walk.Names(self._quantized)
        for tensor in self._quantized.outputs:
            producer, end = walk.producer(tensor), float_outputs.get(tensor.name)
            source = None if end is None else walk.producer(end)
            if producer is None or id(producer) in paired or end is None or source is None:
                continue
            source.name = label_of(source)  # which would change with its output
            inner = gs.Variable(names[0].derive(end.name, "inner"), end.dtype, end.shape)
            walk.replace_output(source, end, inner)
            walk.redirect(end, inner)
            first = gs.Node("Identity", f"{OUTPUT}{end.name}", {}, [inner], [end])
            self._float.nodes.append(first)
            copy = gs.Variable(names[1].derive(tensor.name, "copy"), tensor.dtype, tensor.shape)
            second = gs.Node("Identity", f"{OUTPUT}{tensor.name}", {}, [tensor], [copy])
            self._quantized.nodes.append(second)
            pairs.append((first, second))
        return pairs

    def _differs(self, first: gs.Node, second: gs.Node) -> bool:
        """Return whether the inputs of a pair differ and its node can be switched."""
        if any(any(walk.bodies(node)) for node in (first, second)):
            return False
        if not _are_floats(first.outputs):
            return False
        return len(first.inputs) != len(second.inputs) or not all(
            map(self._is_same, first.inputs, second.inputs)
        )

    def _is_same(self, float_tensor: gs.Tensor, tensor: gs.Tensor) -> bool:
        if float_tensor.is_empty() or tensor.is_empty():
            return bool(float_tensor.is_empty() and tensor.is_empty())
        if isinstance(float_tensor, gs.Constant) and isinstance(tensor, gs.Constant):
            a, b = load(float_tensor), load(tensor)
            return a.dtype == b.dtype and np.array_equal(a, b)
        return self.floats.get(id(tensor)) is float_tensor


def _inputs(float_graph: gs.Graph, quantized_graph: gs.Graph) -> Iterator[gs.Tensor]:
    float_names = {tensor.name for tensor in float_graph.inputs}
    return (tensor for tensor in quantized_graph.inputs if tensor.name in float_names)


def _named(graph: gs.Graph, name: str) -> gs.Tensor:
    return next(tensor for tensor in graph.inputs if tensor.name == name)


def _pairs(float_graph: gs.Graph, quantized_graph: gs.Graph) -> list[Pair]:
    """Pair nodes by the name of their first output, by their own name, and by the output without suffixes."""
    by_output = {tensor.name: node for node in float_graph.nodes for tensor in node.outputs[:1]}
    by_name = {node.name: node for node in float_graph.nodes if node.name}
    counterparts: dict[int, gs.Node] = {}
    taken: set[int] = set()
    nodes = [node for node in quantized_graph.nodes if node.op not in _ROUNDINGS and node.outputs]

    def _take(node: gs.Node, counterpart: gs.Node | None) -> None:
        if counterpart is None or id(node) in counterparts or id(counterpart) in taken:
            return
        if len(node.outputs) == len(counterpart.outputs) and _is_alike(node, counterpart):
            counterparts[id(node)] = counterpart
            taken.add(id(counterpart))

    for node in nodes:
        _take(node, by_output.get(node.outputs[0].name))
    for node in nodes:
        _take(node, by_name.get(node.name))
    for node in nodes:
        for name in _earlier_names(node.outputs[0].name):
            _take(node, by_output.get(name))
    return [(counterparts[id(node)], node) for node in nodes if id(node) in counterparts]


def _is_alike(node: gs.Node, counterpart: gs.Node) -> bool:
    """Return whether a node may be the counterpart of a float node.

    It has the same operator, one that a conversion writes instead, or is the Add by which tuning adds a bias.
    """
    if _are_floats(counterpart.outputs) and not _are_floats(node.outputs):
        return False  # a Gather of integers that are dequantized after it
    feature = features.of(counterpart)
    written_as = _WRITTEN_AS if feature is None else feature.written_as
    is_same = node.op == counterpart.op or (counterpart.op, node.op) in written_as
    if is_same or node.op == "MatMulNBits":
        return True
    return node.op == "Add" and dot_products.is_dot_product(counterpart)


def _earlier_names(name: str) -> Iterator[str]:
    while suffix := next((candidate for candidate in _SUFFIXES if name.endswith(candidate)), ""):
        name = name.removesuffix(suffix)
        yield name


def _without_shifts(graph: gs.Graph, pairs: list[Pair]) -> list[Pair]:
    """Undo and redo the recorded shift of each shifted output; pair its float node with the undoing Add."""
    shifts, names = shifts_within(graph), walk.Names(graph)
    unshifted_pairs = []
    for first, second in pairs:
        tensor = second.outputs[0]
        shift = shifts.get(tensor.name)
        if shift is not None and len(second.outputs) == 1:
            value = gs.Constant(names.derive(tensor.name, "shift"), np.array(shift, np.float32))
            original, shifted = (
                dtypes.variable(names.derive(tensor.name, s), dtypes.FLOAT, tensor) for s in _SHIFTED
            )
            walk.redirect(tensor, shifted)
            add = gs.Node("Add", names.derive(second.name, "unshifted"), {}, [tensor, value], [original])
            subtract = gs.Node("Sub", names.derive(second.name, "shifted"), {}, [original, value], [shifted])
            position = next(i for i, node in enumerate(graph.nodes) if node is second)
            graph.nodes[position + 1 : position + 1] = [add, subtract]
            second = add
        unshifted_pairs.append((first, second))
    return unshifted_pairs


_SHIFTED = ("unshifted", "shifted")


def _are_floats(tensors: Iterable[gs.Tensor]) -> bool:
    kinds = [dtypes.element_type(tensor) for tensor in tensors]
    return all(not t.is_empty() for t in tensors) and all(kind in (None, dtypes.FLOAT) for kind in kinds)


def _computes(node: gs.Node) -> bool:
    if node.op in _ROUNDINGS or is_unchanging(node):
        return False
    return any(not walk.is_given(tensor) for tensor in node.inputs) and not is_made_of_constants(node)


def _unique(name: str, used: dict[str, Pair]) -> str:
    number, candidate = 1, name
    while candidate in used:
        number += 1
        candidate = f"{name} ({number})"
    return candidate
