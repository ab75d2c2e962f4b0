"""Outputs that are caches or states, no result of the model, and the inputs that take them next."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import onnx_graphsurgeon as gs

from ops.legal_names import refuse_unknown
from transforms.graph import walk
from transforms.graph.embeddings import logits_of

_NAMES = re.compile(
    r"(?:^|[^a-z])(past|present|cache|caches|states?|hidden|memory|mems?|kv|h[0n]|c[0n]|state\w*)(?:[^a-z]|$)",
    re.IGNORECASE,
)
_DIRECTIONS = re.compile(
    r"(?<![a-z])(past_key_values|present_key_values|in|out|input|output|old|new|prev|next|past|present)(?![a-z])"
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
    """Return whether what is made fits an input: known sizes are equal, except for one that grows."""
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


def belong_together(fed: str, back: str) -> bool:
    """Whether names of an input and an output differ in their direction alone: ``h``, ``h_out``."""
    one, other = fed.lower(), back.lower()
    if one.startswith(other) or other.startswith(one):
        return True
    return _stem(one) == _stem(other)


def _stem(name: str) -> str:
    return _DIRECTIONS.sub("", name.lower()).strip("_./:")


def state_pairs(graph: gs.Graph, given: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the output that each input of states is fed with at the next step.

    ``given`` are all pairs, if any, otherwise those that :func:`found_pairs` returns. Raises ValueError for
    an unknown name, for a model without states, and for one all of whose inputs are.
    """
    inputs, outputs = ({str(one.name): one for one in ends} for ends in (graph.inputs, graph.outputs))
    for fed, back in (given or {}).items():
        refuse_unknown(fed, inputs, "input")
        refuse_unknown(back, outputs, "output")
    pairs = dict(given or found_pairs(graph))
    if not pairs or len(pairs) == len(inputs):
        why = "all inputs would be states" if pairs else "no output of the model is known to be a state"
        raise ValueError(f"{why}: name them, --state INPUT=OUTPUT")
    return pairs


def found_pairs(graph: gs.Graph) -> dict[str, str]:
    """Return the pairs of input and output that names and shapes tell; none of a model without states.

    They are the outputs with the name of an input except for its direction, and those that
    :func:`state_outputs` finds, each with the input of its type and shape that
    has a name like its own, or is the only one.
    """
    inputs, outputs = ({str(one.name): one for one in ends} for ends in (graph.inputs, graph.outputs))
    stems = {_stem(name) for name in inputs} - {""}
    states = {name for name in outputs if _stem(name) in stems}.union(state_outputs(graph))
    return _found(inputs, {name: one for name, one in outputs.items() if name in states})


def first_state(fed: Sequence[object], back: Sequence[object]) -> list[int]:
    """Return the shape of a state before the first step: 0 along what grows, 1 for another free size."""
    return [
        one if isinstance(one, int) else int(not (one and other and one != other))
        for one, other in zip(fed, back, strict=True)
    ]


def _found(inputs: Mapping[str, gs.Tensor], states: Mapping[str, gs.Tensor]) -> dict[str, str]:
    """Return pairs of one type and shape: by names first, then where only one input is left for a state."""
    pairs: dict[str, str] = {}
    for is_alone in (False, True):
        for back, state in states.items():
            if back in pairs.values():
                continue
            fits = [
                name
                for name, one in inputs.items()
                if name not in pairs and one.dtype == state.dtype and may_be_fed(state.shape, one.shape)
            ]
            named = sorted((name for name in fits if belong_together(name, back)), key=len, reverse=True)
            if named or (is_alone and len(fits) == 1):
                pairs[(named or fits)[0]] = back
    return pairs
