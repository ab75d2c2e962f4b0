"""The nodes of a quantized model beside those of the float model that it was made of."""

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
"""A node of the float model, and what makes the same in the quantized one."""

_ROUNDINGS = QUANTIZED_BY | {
    *("QuantizeLinear", "DequantizeLinear", "ExtendedQuantizeLinear", "ExtendedDequantizeLinear"),
    "DynamicQuantizeLinear",
    *("Cast", BFP, MX),
}
_WRITTEN_AS = frozenset({("Add", "Sum"), ("Gather", "Mul")})
"""By :func:`transforms.runtime_workarounds.sum_before_layernorm`, of rows with scales by
:func:`transforms.quantize_tables.quantize_tables`."""

_SUFFIXES = ("_raw", "_bf16", "_fp16", "_quantized")
"""Under which conversions keep the output of a layer where a rounding takes its name."""


class PairedModels:
    """Both models, changed so that each has a tensor for what the other computes before it is rounded.

    ``base`` and ``other``: the float model and the quantized one, with layers of the same names that compute
    differently: they read what is rounded. ``floats``: by id of a tensor of the quantized model, that of the
    float model which it stands for. ``unpaired``: names of nodes of the quantized model that compute
    but have no counterpart; what they change is told of the layers that read them.
    """

    def __init__(self, float_graph: gs.Graph, quantized_graph: gs.Graph) -> None:
        """Take the float model in the form that was quantized, and the quantized one; both are changed."""
        self._float, self._quantized = float_graph, quantized_graph
        opened = features_of(quantized_graph)
        roundings = {key for feature in opened for key in feature.write_float(quantized_graph)}
        pairs = _pairs(float_graph, quantized_graph)
        paired = roundings | {id(node) for _, node in pairs}
        self.unpaired = [label_of(n) for n in quantized_graph.nodes if id(n) not in paired and _computes(n)]
        pairs = _without_shifts(quantized_graph, pairs)
        pairs += self._of_outputs({id(node) for _, node in pairs})
        tensors = [(one, one) for one in _inputs(float_graph, quantized_graph)]
        raw = {two.name: (_named(float_graph, one.name), two) for one, two in tensors}
        for first, second in pairs:
            raw |= {b.name: (a, b) for a, b in zip(first.outputs, second.outputs, strict=True) if b.name}
        for node in filter(is_unchanging, quantized_graph.nodes):
            if node.inputs[0].name in raw:
                raw[node.outputs[0].name] = raw[node.inputs[0].name][0], node.outputs[0]
        self.floats = {id(two): one for one, two in raw.values()}
        layers: dict[str, Pair] = {}
        for first, second in pairs:
            if self._differs(first, second):
                layers.setdefault(_unique(label_of(first), layers), (first, second))
        names = {key: one for key, (one, _) in raw.items()}, {key: two for key, (_, two) in raw.items()}
        nodes = [{name: [pair[i]] for name, pair in layers.items()} for i in range(2)]
        self.base = Mixed(float_graph, names[0], nodes[0], Record())
        self.other = Mixed(quantized_graph, names[1], nodes[1], Record())

    def _of_outputs(self, paired: set[int]) -> list[Pair]:
        """Put an Identity before each output that a rounding makes, in both models, and return the pairs."""
        found = []
        made = {tensor.name: tensor for tensor in self._float.outputs}
        names = walk.Names(self._float), walk.Names(self._quantized)
        for tensor in self._quantized.outputs:
            node, end = walk.producer(tensor), made.get(tensor.name)
            maker = None if end is None else walk.producer(end)
            if node is None or id(node) in paired or end is None or maker is None:
                continue
            maker.name = label_of(maker)  # which would change with its output
            inner = gs.Variable(names[0].derive(end.name, "inner"), end.dtype, end.shape)
            walk.replace_output(maker, end, inner)
            walk.redirect(end, inner)
            first = gs.Node("Identity", f"{OUTPUT}{end.name}", {}, [inner], [end])
            self._float.nodes.append(first)
            copy = gs.Variable(names[1].derive(tensor.name, "copy"), tensor.dtype, tensor.shape)
            second = gs.Node("Identity", f"{OUTPUT}{tensor.name}", {}, [tensor], [copy])
            self._quantized.nodes.append(second)
            found.append((first, second))
        return found

    def _differs(self, first: gs.Node, second: gs.Node) -> bool:
        """Return whether a node computes with other numbers than its counterpart, and can be switched."""
        if any(any(walk.bodies(node)) for node in (first, second)):
            return False
        if not _are_floats(first.outputs):
            return False
        return len(first.inputs) != len(second.inputs) or not all(
            map(self._is_same, first.inputs, second.inputs)
        )

    def _is_same(self, one: gs.Tensor, two: gs.Tensor) -> bool:
        if one.is_empty() or two.is_empty():
            return bool(one.is_empty() and two.is_empty())
        if isinstance(one, gs.Constant) and isinstance(two, gs.Constant):
            a, b = load(one), load(two)
            return a.dtype == b.dtype and np.array_equal(a, b)
        return self.floats.get(id(two)) is one


def _inputs(float_graph: gs.Graph, quantized_graph: gs.Graph) -> Iterator[gs.Tensor]:
    known = {tensor.name for tensor in float_graph.inputs}
    return (tensor for tensor in quantized_graph.inputs if tensor.name in known)


def _named(graph: gs.Graph, name: str) -> gs.Tensor:
    return next(tensor for tensor in graph.inputs if tensor.name == name)


def _pairs(float_graph: gs.Graph, quantized_graph: gs.Graph) -> list[Pair]:
    """Return nodes by the name of what they make, then by their own, then by names of conversions."""
    by_output = {tensor.name: node for node in float_graph.nodes for tensor in node.outputs[:1]}
    by_name = {node.name: node for node in float_graph.nodes if node.name}
    found: dict[int, gs.Node] = {}
    taken: set[int] = set()
    nodes = [node for node in quantized_graph.nodes if node.op not in _ROUNDINGS and node.outputs]

    def _take(node: gs.Node, counterpart: gs.Node | None) -> None:
        if counterpart is None or id(node) in found or id(counterpart) in taken:
            return
        if len(node.outputs) == len(counterpart.outputs) and _is_alike(node, counterpart):
            found[id(node)] = counterpart
            taken.add(id(counterpart))

    for node in nodes:
        _take(node, by_output.get(node.outputs[0].name))
    for node in nodes:
        _take(node, by_name.get(node.name))
    for node in nodes:
        for name in _earlier_names(node.outputs[0].name):
            _take(node, by_output.get(name))
    return [(found[id(node)], node) for node in nodes if id(node) in found]


def _is_alike(node: gs.Node, counterpart: gs.Node) -> bool:
    """Return whether a node may stand for another: tuning adds biases by an Add of its own, and some are
    written as another operator.
    """
    if _are_floats(counterpart.outputs) and not _are_floats(node.outputs):
        return False  # a lookup of integers, which are dequantized after it
    feature = features.of(counterpart)
    written_as = _WRITTEN_AS if feature is None else feature.written_as
    is_same = node.op == counterpart.op or (counterpart.op, node.op) in written_as
    if is_same or node.op == "MatMulNBits":
        return True
    return node.op == "Add" and dot_products.is_dot_product(counterpart)


def _earlier_names(name: str) -> Iterator[str]:
    while suffix := next((one for one in _SUFFIXES if name.endswith(one)), ""):
        name = name.removesuffix(suffix)
        yield name


def _without_shifts(graph: gs.Graph, pairs: list[Pair]) -> list[Pair]:
    """Let shifted tensors be there unshifted, too, as what stands for those of the float model."""
    shifts, names = shifts_within(graph), walk.Names(graph)
    found = []
    for first, second in pairs:
        tensor = second.outputs[0]
        shift = shifts.get(tensor.name)
        if shift is not None and len(second.outputs) == 1:
            value = gs.Constant(names.derive(tensor.name, "shift"), np.array(shift, np.float32))
            whole, less = (
                dtypes.variable(names.derive(tensor.name, s), dtypes.FLOAT, tensor) for s in _SHIFTED
            )
            walk.redirect(tensor, less)
            back = gs.Node("Add", names.derive(second.name, "unshifted"), {}, [tensor, value], [whole])
            again = gs.Node("Sub", names.derive(second.name, "shifted"), {}, [whole, value], [less])
            place = next(i for i, node in enumerate(graph.nodes) if node is second)
            graph.nodes[place + 1 : place + 1] = [back, again]
            second = back
        found.append((first, second))
    return found


_SHIFTED = ("unshifted", "shifted")


def _are_floats(tensors: Iterable[gs.Tensor]) -> bool:
    kinds = [dtypes.element_type(tensor) for tensor in tensors]
    return all(not t.is_empty() for t in tensors) and all(kind in (None, dtypes.FLOAT) for kind in kinds)


def _computes(node: gs.Node) -> bool:
    if node.op in _ROUNDINGS or is_unchanging(node):
        return False
    return any(not walk.is_given(tensor) for tensor in node.inputs) and not is_made_of_constants(node)


def _unique(name: str, known: dict[str, Pair]) -> str:
    number, found = 1, name
    while found in known:
        number += 1
        found = f"{name} ({number})"
    return found
