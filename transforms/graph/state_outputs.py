"""Find states of a model: outputs that are fed back at the next step, and their inputs.

Callers need different certainty. In a sequence, an input that samples lack must be a state, and its output
is searched for; one that they have is not a state unless the user says so. An output that is not judged has
to be a cache according to both the nodes of the model and the names (:func:`cache_outputs`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx_graphsurgeon as gs

from ops.legal_names import refuse_unknown
from transforms.files.spelling import as_option, spelled
from transforms.graph import walk
from transforms.graph.some_names import some_names

if TYPE_CHECKING:
    from transforms.graph.paired_names import Likeness

_NAMES = re.compile(
    r"(?:^|[^a-z])(past|present|cache|caches|states?|hidden|memory|mems?|kv|h[0n]|c[0n]|state\w*)(?:[^a-z]|$)",
    re.IGNORECASE,
)
_SAY = "name them, {states:INPUT=OUTPUT}"


@dataclass(frozen=True)
class _Pair:
    """An input and a fitting output; ``is_carried``: the output follows from the input, according to nodes.

    ``alike``: dimensions with the same number in both, or free in both. ``grows``: one dimension is a larger
    number in the output.
    """

    fed: str
    back: str
    likeness: Likeness
    is_carried: bool
    alike: int
    grows: bool

    @property
    def is_clear(self) -> bool:
        """Whether names or nodes show that they are one state."""
        from transforms.graph.paired_names import Likeness

        return self.is_carried or self.likeness >= Likeness.STEP

    @property
    def rank(self) -> tuple[bool, int, int]:
        """Sort key: the most certain pair has the largest."""
        return self.is_carried, self.likeness, self.alike


def found_pairs(graph: gs.Graph) -> dict[str, str]:
    """Return, by input of a state, the output that feeds it, where names or nodes show this.

    Both have one type, and one shape except for a dimension that grows.
    """
    return _clear(_fitting(graph))


def cache_outputs(graph: gs.Graph, results: Collection[str]) -> list[str]:
    """Return the outputs that hold only values that also enter the results, with their errors.

    They are fed back as states, and the results are computed from their values.
    """
    backs = set(found_pairs(graph).values()).difference(results) if results else set()
    if not backs:
        return []
    from transforms.graph.carried_states import makers

    read = set().union(*(walk.ancestors(output) for output in graph.outputs if output.name in results))
    return [
        str(output.name)
        for output in graph.outputs
        if output.name in backs and all(any(id(x) in read for x in node.outputs) for node in makers(output))
    ]


def state_pairs(
    graph: gs.Graph, named: Mapping[str, str] | None = None, held: Collection[str] | None = None
) -> dict[str, str]:
    """Return, by input of a state, the output that feeds it at the next step of a sequence.

    ``named``: pairs given by the user, which are completed. ``held``: inputs that the samples have, which
    are not states unless they are named; None if unknown. An input that samples lack is a state: its output
    may be the only one of its type and shape that depends on it.

    Raises ValueError for an unknown name, an input without a known output, a model without states, and one
    whose inputs would all be states.
    """
    named = named or {}
    inputs, outputs = ([str(candidate.name) for candidate in ends] for ends in (graph.inputs, graph.outputs))
    for fed, back in named.items():
        refuse_unknown(fed, inputs, "input")
        refuse_unknown(back, outputs, "output")
    able = [
        candidate
        for candidate in _fitting(graph)
        if candidate.fed not in named and candidate.back not in named.values() and not candidate.grows
    ]
    pairs = _added(named, able, held or (), graph, is_known=held is not None)
    if held is not None:
        for name in inputs:
            if name not in held and name not in pairs:
                raise ValueError(_why_unpaired(name, able, pairs))
    elif len(pairs) == len(inputs) == len(named) + 1:
        pairs = dict(named)  # the samples must have something, and this input is the only one left
    if not pairs:
        raise ValueError(_why_none(able, held or ()))
    if len(pairs) == len(inputs):
        raise ValueError(f"all inputs would be states: {spelled(_SAY)}")
    return pairs


def first_state(fed: Sequence[object], back: Sequence[object]) -> list[int]:
    """Return the shape of a state before the first step: 0 along the growing axis, 1 for other free sizes."""
    return [
        one if isinstance(one, int) else int(not (one and other and one != other))
        for one, other in zip(fed, back, strict=True)
    ]


def _pair(fed: gs.Tensor, back: gs.Tensor, carried: Collection[int]) -> _Pair | None:
    """Return the pair of two tensors if they fit: known sizes are equal, except for one that grows."""
    before, after = fed.shape, back.shape
    if fed.dtype != back.dtype or after is None or before is None or len(after) != len(before):
        return None
    sizes = [(a, b) for a, b in zip(after, before, strict=True) if isinstance(a, int) and isinstance(b, int)]
    grown = [a > b for a, b in sizes if a != b]
    if grown not in ([], [True]):
        return None
    free = sum(not isinstance(a, int) and not isinstance(b, int) for a, b in zip(after, before, strict=True))
    from transforms.graph.paired_names import likeness

    names = str(fed.name), str(back.name)
    alike = free + len(sizes) - len(grown)
    return _Pair(*names, likeness(*names), id(fed) in carried, alike, bool(grown))


def _fitting(graph: gs.Graph) -> list[_Pair]:
    """Return all pairs of an input and an output that fit, the most certain first."""
    from transforms.graph.carried_states import carried_inputs

    pairs: list[_Pair] = []
    for back in graph.outputs:
        carried = {id(tensor) for tensor in carried_inputs(back)}
        pairs += [pair for fed in graph.inputs if (pair := _pair(fed, back, carried)) is not None]
    return sorted(pairs, key=lambda pair: pair.rank, reverse=True)


def _clear(pairs: Sequence[_Pair], named: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return named pairs and those that are clear, except where two are equally certain."""
    chosen = dict(named or {})
    clear = [pair for pair in pairs if pair.is_clear]
    for pair in clear:
        if pair.fed in chosen or pair.back in chosen.values():
            continue
        rivals = (
            other
            for other in clear
            if (other.fed == pair.fed) != (other.back == pair.back) and other.rank == pair.rank
        )
        if not any(other.fed not in chosen and other.back not in chosen.values() for other in rivals):
            chosen[pair.fed] = pair.back
    return chosen


def _added(
    named: Mapping[str, str],
    able: Sequence[_Pair],
    held: Collection[str],
    graph: gs.Graph,
    *,
    is_known: bool,
) -> dict[str, str]:
    """Return named pairs, clear ones, and those that are the only one left for their ends.

    An output that clearly belongs to an input that samples have, as ``audio_out`` to ``audio_in``, is a
    signal. If it is unknown what the samples have, the name of the remaining one must be that of a state.
    """
    free = [pair for pair in able if pair.fed not in held]
    pairs = _clear(free, named)
    signals = set(_clear([pair for pair in able if pair.fed in held], pairs).values())
    while True:
        taken = signals.union(pairs.values())
        rest = [pair for pair in free if pair.fed not in pairs and pair.back not in taken]
        alone = next((pair for pair in rest if _is_alone(pair, rest, graph, is_known=is_known)), None)
        if alone is None:
            return pairs
        pairs[alone.fed] = alone.back


def _is_alone(pair: _Pair, rest: Sequence[_Pair], graph: gs.Graph, *, is_known: bool) -> bool:
    """Return whether a pair is the only one left for its ends.

    Neither end is in another pair of at least the same likeness, and names or nodes show that they belong
    together."""
    rivals = [rival for rival in rest if (rival.fed == pair.fed) != (rival.back == pair.back)]
    if any(rival.likeness >= pair.likeness for rival in rivals):
        return False
    if not is_known and not any(_NAMES.search(_spaced(name)) for name in (pair.fed, pair.back)):
        return False
    (back,) = (tensor for tensor in graph.outputs if tensor.name == pair.back)
    (fed,) = (tensor for tensor in graph.inputs if tensor.name == pair.fed)
    return bool(pair.likeness) or id(fed) in walk.ancestors(back)


def _spaced(name: str) -> str:
    return name.replace("_", " ").replace(".", " ")


def _why_unpaired(name: str, able: Sequence[_Pair], pairs: Mapping[str, str]) -> str:
    fits = [pair.back for pair in able if pair.fed == name and pair.back not in pairs.values()]
    why = f"{some_names(fits)} may be" if fits else "none left has its type and shape"
    return (
        f"the samples have no array for input '{name}', and no output is known to be its state "
        f"({why}): {as_option('states', f'{name}=OUTPUT')}"
    )


def _why_none(able: Sequence[_Pair], held: Collection[str]) -> str:
    both = [pair for pair in able if pair.fed in held and pair.is_clear]
    if not both:
        return f"no output of the model is known to be a state: {spelled(_SAY)}"
    fed, back = both[0].fed, both[0].back
    return (
        "no state is left to feed back: the samples hold arrays for all inputs; "
        f"if '{fed}' is a state, leave its arrays out, or name it: {as_option('states', f'{fed}={back}')}"
    )
