"""Outputs that are caches or states: fed back at the next step, they are no result of the model."""

from __future__ import annotations

import re
from collections.abc import Sequence

import onnx_graphsurgeon as gs

from transforms.graph import walk
from transforms.graph.logits import logits_of

_NAMES = re.compile(
    r"(?:^|[^a-z])(past|present|cache|caches|states?|hidden|memory|mems?|kv|h[0n]|c[0n]|state\w*)(?:[^a-z]|$)",
    re.IGNORECASE,
)
_RECURRENT = frozenset({"LSTM", "GRU", "RNN"})
_MOVES = frozenset(
    {"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Slice", "Concat", "Gather"}
    | {"If", "Cast"}
)


def state_outputs(graph: gs.Graph) -> list[str]:
    """Return the names of the outputs that are states, none where no other output would be left.

    An output is one if it has the rank of an input and either of them a name of states, or if it is moved
    together from the last states of recurrent layers alone. Logits of tokens are none.
    """
    logits = logits_of(graph)
    found = [one.name for one in graph.outputs if one.name not in logits and _is_state(one, graph)]
    return found if len(found) < len(graph.outputs) else []


def _is_state(tensor: gs.Tensor, graph: gs.Graph) -> bool:
    alike = [one for one in graph.inputs if may_be_fed(tensor.shape, one.shape) and one.dtype == tensor.dtype]
    if any(_has_name(tensor.name) or _has_name(one.name) for one in alike):
        return True
    return bool(alike) and _is_of_recurrent(tensor)


def _has_name(name: str) -> bool:
    return _NAMES.search(name.replace("_", " ").replace(".", " ")) is not None


def may_be_fed(made: Sequence[object] | None, read: Sequence[object] | None) -> bool:
    """Return whether what is made fits an input: sizes that both know are equal, but for one that grows."""
    if made is None or read is None or len(made) != len(read) or len(made) < 2:
        return False
    pairs = zip(made, read, strict=True)
    return sum(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs) <= 1


def _is_of_recurrent(tensor: gs.Tensor) -> bool:
    waiting, found = [tensor], False
    while waiting:
        one = waiting.pop()
        node = walk.producer(one)
        if node is None:
            if not walk.is_given(one):
                return False
            continue
        if node.op in _RECURRENT:
            if one is node.outputs[0]:
                return False
            found = True
        elif node.op in _MOVES:
            waiting += node.inputs[: None if node.op == "Concat" else 1]
        else:
            return False
    return found
