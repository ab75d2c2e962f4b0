"""Which nodes of a model a target computes in low precision, and why the others are not among them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator
from dataclasses import dataclass, field

import onnx_graphsurgeon as gs

from transforms import features
from transforms.functions import DOMAIN
from transforms.graph import dot_products, dtypes, walk
from transforms.graph.constant_nodes import is_made_of_constants
from transforms.graph.qdq import BLOCKS, DEQUANTIZE, PAIRS, QUANTIZE
from transforms.graph.rewire import STANDARD_DOMAINS
from transforms.graph.selection import label_of
from transforms.scheme.targets import CONTRIB_INTEGERS, INTEGER_OPERATORS, MOVED, PRODUCTS, Target

_SILENT = frozenset({"Constant", "Cast", "Shape", "Size", "ConstantOfShape", *PAIRS, *BLOCKS})
_SILENT |= {"DynamicQuantizeLinear"}
_INTEGER_PREFIXES = ("QLinear", "QGemm")  # of com.microsoft
_RECTIFIERS = ("Relu", "Clip")
_NO_KERNEL = "no kernel in low precision"
_IN_FLOAT = "its tensors are float"
_LOW = (dtypes.BFLOAT16, dtypes.FLOAT16)
_LOW_OPERATORS = frozenset({*PAIRS, *BLOCKS}) | INTEGER_OPERATORS | CONTRIB_INTEGERS


@dataclass
class Verdicts:
    """Operators of the nodes that run in low precision, and of the others by reason, with the first names."""

    low: Counter[str] = field(default_factory=Counter)
    high: dict[str, list[tuple[str, str]]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many nodes run in low precision."""
        return sum(self.low.values())

    def lines(self) -> Iterator[str]:
        """Yield the verdicts, the most frequent reason first."""
        names = ", ".join(f"{op} {count}" for op, count in self.low.most_common()) or "none"
        yield f"{_nodes(self.count)} in low precision: {names}"
        for reason, nodes in sorted(self.high.items(), key=lambda pair: -len(pair[1])):
            found = Counter(op for op, _ in nodes)
            names = ", ".join(f"{op} {count}" for op, count in found.most_common(6))
            yield f"Not in low precision: {_nodes(len(nodes))}, {reason}: {names} ('{nodes[0][1]}' the first)"


def _nodes(count: int) -> str:
    return f"{count} node{'' if count == 1 else 's'}"


def low_precision(graph: gs.Graph, row: Target) -> Verdicts:
    """Return what becomes of every node that computes with floats; moves and conversions are not counted."""
    found = Verdicts()
    for node in walk.nodes(graph):
        if node.op in _SILENT or node.op in MOVED or node.domain == DOMAIN or is_made_of_constants(node):
            continue
        on_numbers = node.domain in STANDARD_DOMAINS and node.op not in INTEGER_OPERATORS
        if on_numbers and not any(
            dtypes.is_type(t, dtypes.FLOAT) or dtypes.element_type(t) in _LOW for t in node.outputs
        ):
            continue
        reason = _why_not(graph, node, row) if on_numbers else _why_not_in_integers(node, row)
        if reason is None:
            found.low[node.op] += 1
        else:
            found.high.setdefault(reason, []).append((node.op, label_of(node)))
    return found


def has_low_precision(graph: gs.Graph) -> bool:
    """Return whether a model stores or computes any number in fewer bits than float32, on any runtime.

    Float16 inputs and outputs of the model alone are not enough: the float model may have them.
    """
    ends = {id(tensor) for tensor in (*graph.inputs, *graph.outputs)}
    return any(_is_low(node, ends) for node in walk.nodes(graph))


def _is_low(node: gs.Node, ends: Container[int]) -> bool:
    known = node.op in _LOW_OPERATORS or node.op.startswith(_INTEGER_PREFIXES) or node.domain == DOMAIN
    if known or features.reads_stored(node):
        return True
    tensors = (tensor for tensor in (*node.inputs, *node.outputs) if id(tensor) not in ends)
    return any(dtypes.element_type(tensor) in _LOW for tensor in tensors)


def _why_not_in_integers(node: gs.Node, row: Target) -> str | None:
    """Return why an operator on integers, or one that is not ONNX's, does not run in low precision."""
    if node.domain in STANDARD_DOMAINS:
        return None if node.op in row.computes_integers else _NO_KERNEL
    if node.domain not in row.domains:
        return _NO_KERNEL
    qlinear = bool(row.computes_integers) and node.op.startswith(_INTEGER_PREFIXES)
    return None if qlinear or node.op in row.contrib_integers else _NO_KERNEL


def _why_not(graph: gs.Graph, node: gs.Node, row: Target) -> str | None:
    """Return why a node runs in float, None if it does not."""
    if any(dtypes.element_type(t) in _LOW for t in node.outputs):
        if row.bfloat16_kernels and node.op not in row.bfloat16_kernels:
            return _NO_KERNEL
        return None if node.op in row.operators or not row.takes_integers else _NO_KERNEL
    if row.bfloat16_kernels:
        return _IN_FLOAT
    if node.op in _RECTIFIERS and _is_fused(graph, node, row):
        return None
    if node.op not in row.operators and row.takes_integers:
        return _NO_KERNEL
    data = [i for i in range(len(node.inputs)) if _is_data(node, i)]
    if not all(_is_narrow(node.inputs[i]) for i in data):
        return "an input is float"
    if node.op in row.open_ends or not row.takes_integers:
        return None
    return None if _is_narrowed(graph, node) else "its result stays float"


def _is_data(node: gs.Node, index: int) -> bool:
    if dot_products.is_dot_product(node):
        return dot_products.is_operand(node, index)
    tensor = node.inputs[index]
    computed = dtypes.is_type(tensor, dtypes.FLOAT) and not (node.op in ("Clip", "Resize") and index)
    return computed and not tensor.is_empty()


def _is_narrow(tensor: gs.Tensor) -> bool:
    """Return whether a tensor comes from integers, or from a low float type, moved or not."""
    node = walk.producer(tensor)
    while node is not None and node.op in MOVED:
        node = walk.producer(node.inputs[0])
    if node is None:
        return False
    widens = node.op == "Cast" and dtypes.element_type(node.inputs[0]) in _LOW
    return node.op in DEQUANTIZE or widens or node.op in BLOCKS


def _is_narrowed(graph: gs.Graph, node: gs.Node) -> bool:
    """Return whether all that reads a result quantizes it, rectified or moved or not."""
    pending, seen = [node], set[int]()
    while pending:
        made = pending.pop().outputs
        consumers = [consumer for tensor in made for consumer in tensor.outputs]
        if not consumers or any(walk.is_output(tensor, graph) for tensor in made):
            return False
        left = [consumer for consumer in consumers if not _narrows(consumer)]
        if any(consumer.op not in _RECTIFIERS and consumer.op not in MOVED for consumer in left):
            return False
        pending += [consumer for consumer in left if id(consumer) not in seen]
        seen |= set(map(id, left))
    return True


def _narrows(node: gs.Node) -> bool:
    return node.op in QUANTIZE or dtypes.element_type(node.outputs[0]) in _LOW


def _is_fused(graph: gs.Graph, node: gs.Node, row: Target) -> bool:
    """Return whether a Relu or Clip goes on with a layer in low precision, before the next quantization."""
    maker = walk.producer(node.inputs[0])
    layer = maker is not None and (maker.op in PRODUCTS or maker.op == "Add")
    if maker is None or not layer or not _is_narrowed(graph, node):
        return False
    return _why_not(graph, maker, row) is None and walk.is_read_once(node.inputs[0])
