"""Which outputs of a model are states or caches that an input takes at the next step."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import onnx_graphsurgeon as gs

from ops.legal_names import refuse_unknown
from transforms.graph.state_outputs import may_be_fed, state_outputs

_DIRECTIONS = re.compile(
    r"(?<![a-z])(past_key_values|present_key_values|in|out|input|output|old|new|prev|next|past|present)(?![a-z])"
)


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

    They are the outputs with the name of an input but for its direction, and those that
    :func:`transforms.graph.state_outputs.state_outputs` finds, each with the input of its type and shape that
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
