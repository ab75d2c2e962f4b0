"""Make ONNX Runtime decode the packed weights of a large model in turns, to need less memory at once.

The runtime folds constants in passes over the graph and keeps all results of a pass until it ends: for
packed weights that is several times their size. A pass folds nodes whose inputs are constants. A number that
becomes constant only in the third pass therefore delays all its readers until then: packed inputs are
expanded to that size, 1, which leaves them unchanged.

To preserve the pattern of integer kernels, the runtime does not fold DequantizeLinear unless one operator
and a QuantizeLinear follow without other readers. Here a Shape reads it, too, and is folded in a pass that
has already visited DequantizeLinear. If passes work otherwise, the numbers are the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx
import onnx.parser

from transforms.functions import DOMAIN
from transforms.graph.proto_graphs import each_graph, read_names

TURNS = "Turns"
_WAIT = "Wait_"
LARGE = 1 << 26
"""Bytes of decoded weights from which they are decoded in turns."""

_LAST = 6  # the runtime makes ten passes and needs some of them itself
_FOLDED, _DECODED = 23, 4  # bytes in memory for each element in its turn, and after it

_ONE_TURN = """
step{k} = Constant <value = float {{{k}}}> ()
real{k} = DequantizeLinear (nought, step{k})
same{k} = Neg (real{k})
line{k} = Reshape (same{k}, turn{before})
read{k} = Shape (line{k})
code{k} = QuantizeLinear (same{k}, step{k}, point)
whole{k} = Cast <to = 7> (code{k})
turn{k} = Add (whole{k}, read{k})
"""


def take_turns(graph: onnx.GraphProto, calls: Sequence[onnx.NodeProto]) -> None:
    """Delay calls in a graph that decode weights, in place, if these are large and not yet delayed."""
    sizes = [
        math.prod(attribute.ints)
        for node in calls
        for attribute in node.attribute
        if attribute.name == "shape"
    ]
    has_turns = any(node.domain == DOMAIN and node.op_type == TURNS for node in graph.node)
    if has_turns or len(sizes) != len(calls) or _DECODED * sum(sizes) < LARGE:
        return
    taken = {name for inner in each_graph(graph) for node in inner.node for name in node.output}
    taken |= {value.name for inner in each_graph(graph) for value in (*inner.input, *inner.initializer)}
    turns = [_fresh(f"turn{number}", taken) for number in range(1, _LAST + 1)]
    waits = []
    for call, turn in zip(calls, turns_of(sizes), strict=True):
        if turn:
            later = [_fresh(f"{name}_in_turn", taken) for name in call.input]
            inputs = [*call.input, turns[turn - 1]]
            name = f"{call.name}_turn" if call.name else ""
            waits.append(onnx.helper.make_node(f"{_WAIT}{len(later)}", inputs, later, name, domain=DOMAIN))
            call.input[:] = later
    if waits:
        nodes = [onnx.helper.make_node(TURNS, [], turns, domain=DOMAIN), *waits, *graph.node]
        del graph.node[:]
        graph.node.extend(nodes)


def turns_of(sizes: Sequence[int]) -> list[int]:
    """Return the turn of each weight, given element counts, largest first.

    Each turn takes about the same memory, on top of the weights decoded before.
    """
    share = 1 - (1 - _DECODED / _FOLDED) ** (_LAST + 1)
    most = _DECODED * sum(sizes) / share
    turns, turn, before, now = [0] * len(sizes), 0, 0, 0
    for place in sorted(range(len(sizes)), key=lambda place: -sizes[place]):
        size = sizes[place]
        if now and turn < _LAST and _DECODED * before + _FOLDED * (now + size) > most:
            turn, before, now = turn + 1, before + now, 0
        turns[place], now = turn, now + size
    return turns


def stored_names(model: onnx.ModelProto) -> dict[str, str]:
    """Return the names of packed tensors by the names of their delayed copies."""
    own = _own_ops(model)
    return {
        later: name
        for node in model.graph.node
        if node.domain == DOMAIN and node.op_type in own - {TURNS} and len(node.input) == len(node.output) + 1
        for later, name in zip(node.output, node.input, strict=False)
    }


def drop_turns(model: onnx.ModelProto) -> None:
    """Undo :func:`take_turns` in place, for functions identical to those made here."""
    turn_ops, names = _own_ops(model), stored_names(model)
    if not turn_ops:
        return
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    for ops in (turn_ops - {TURNS}, turn_ops & {TURNS}):
        read = read_names(model.graph)
        gone = [
            node
            for node in model.graph.node
            if node.domain == DOMAIN and node.op_type in ops and read.isdisjoint(node.output)
        ]
        for node in gone:
            model.graph.node.remove(node)


def _own_ops(model: onnx.ModelProto) -> set[str]:
    """Return the names of functions identical to those of :func:`make_turn_op`."""
    named = [one for one in model.functions if one.domain == DOMAIN and is_turn_op(one.name)]
    return {one.name for one in named if one == make_turn_op(one.name, _opset(one))}


def is_turn_op(op: str) -> bool:
    """Return whether :func:`make_turn_op` makes a function of this name."""
    count = op.removeprefix(_WAIT)
    return op == TURNS or (op.startswith(_WAIT) and count in {"2", "3", "4", "5", "6", "7"})


def make_turn_op(op: str, opset: int) -> onnx.FunctionProto:
    """Return the function that outputs a 1 in each turn, or the one that delays a number of inputs."""
    if op == TURNS:
        numbers = range(1, _LAST + 1)
        inputs, outputs = "", [f"turn{k}" for k in numbers]
        body = """nought = Constant <value = int8[1] {0}> ()
point = Constant <value = int8 {0}> ()
turn0 = Constant <value_ints = [1]> ()
""" + "".join(_ONE_TURN.format(k=k, before=k - 1) for k in numbers)
    else:
        numbers = range(int(op.removeprefix(_WAIT)))
        inputs = ", ".join([*(f"x{k}" for k in numbers), "turn"])
        outputs = [f"y{k}" for k in numbers]
        body = "".join(f"y{k} = Expand (x{k}, turn)\n" for k in numbers)
    head = f'<domain: "{DOMAIN}", opset_import: ["": {opset}]> {op} ({inputs})'
    return onnx.parser.parse_function(f"{head} => ({', '.join(outputs)}) {{ {body} }}")


def _opset(function: onnx.FunctionProto) -> int:
    return max((one.version for one in function.opset_import if one.domain == ""), default=0)


def _fresh(name: str, taken: set[str]) -> str:
    """Return an unused name, and reserve it."""
    found, number = name, 1
    while found in taken:
        found, number = f"{name}_{number}", number + 1
    taken.add(found)
    return found
