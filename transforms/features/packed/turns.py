"""Turns in which ONNX Runtime decodes the packed weights of a large model, so that less is in memory at once.

The runtime folds constants in passes over the graph, and keeps all that a pass makes until it is over: of a
packed weight that is several times the weight. In a pass it folds what follows from constants. A number that
becomes one only in the third pass therefore holds back all that reads it until then: packed inputs, expanded
to a size of 1, which changes nothing.

The runtime does not fold DequantizeLinear, to leave integer kernels their pattern, unless one operator and
QuantizeLinear follow and nobody else reads on the way. Here somebody does, for the shape; that is known, and
folded away, in a pass that has been at DequantizeLinear already. Where passes are made otherwise, the numbers
are the same.
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
"""Bytes of decoded weights from which they take turns."""

_LAST = 6  # the runtime makes ten passes, and needs some for itself
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
    """Give calls in a graph that decode weights their turns, in place, if these are large and have none."""
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
    taken |= {one.name for inner in each_graph(graph) for one in (*inner.input, *inner.initializer)}
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
    """Return the turn of each weight, given their elements: the large ones come first.

    A turn has so many that it takes as much memory as any other, beside what was decoded before.
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
    """Return the names of tensors that wait for their turn by the names under which they are read."""
    own = _own_ops(model)
    return {
        later: name
        for node in model.graph.node
        if node.domain == DOMAIN and node.op_type in own - {TURNS} and len(node.input) == len(node.output) + 1
        for later, name in zip(node.output, node.input, strict=False)
    }


def drop_turns(model: onnx.ModelProto) -> None:
    """Undo :func:`take_turns` in a model whose functions are those made here, in place."""
    own, names = _own_ops(model), stored_names(model)
    if not own:
        return
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    for ops in (own - {TURNS}, own & {TURNS}):
        read = read_names(model.graph)
        gone = [
            node
            for node in model.graph.node
            if node.domain == DOMAIN and node.op_type in ops and read.isdisjoint(node.output)
        ]
        for node in gone:
            model.graph.node.remove(node)


def _own_ops(model: onnx.ModelProto) -> set[str]:
    """Return the names of the functions that are as :func:`make_turn_op` makes them."""
    named = [one for one in model.functions if one.domain == DOMAIN and is_turn_op(one.name)]
    return {one.name for one in named if one == make_turn_op(one.name, _opset(one))}


def is_turn_op(op: str) -> bool:
    """Return whether a name is of a function that :func:`make_turn_op` makes."""
    count = op.removeprefix(_WAIT)
    return op == TURNS or (op.startswith(_WAIT) and count in {"2", "3", "4", "5", "6", "7"})


def make_turn_op(op: str, opset: int) -> onnx.FunctionProto:
    """Return the function that gives a 1 for each turn, or the one that holds back so many inputs."""
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
    """Return a name that nobody has, and take it."""
    found, number = name, 1
    while found in taken:
        found, number = f"{name}_{number}", number + 1
    taken.add(found)
    return found
