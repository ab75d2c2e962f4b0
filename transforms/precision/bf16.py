"""The smallest set of nodes that has to stay float for a BF16 model to be as faithful as asked for.

The search goes through one session in which every part can be switched between BF16 and float. What it finds
is judged by the model that the conversion would write.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from glob import escape

import onnx_graphsurgeon as gs

from ops.array_types import Feed
from transforms.conversion.convert_bf16 import Bf16Options
from transforms.graph import walk
from transforms.graph.selection import label_of
from transforms.precision.bf16_error import Bf16Error, Progress, SwitchedRounding
from transforms.runtime.session import RunOptions
from transforms.search.group_search import add_in_groups
from transforms.search.target import Target, TargetError

Kept = Set[int]

_RANKED_ON, _SEARCHED_ON = 4, 8
"""Samples at most, evenly taken, for ranks and for the search; the result is judged on all of them."""


@dataclass(frozen=True)
class KeptFloat:
    """Patterns of nodes to exclude, in the order of the model, and the SQNR in dB without and with them."""

    patterns: tuple[str, ...]
    before: float
    after: float


def keep_float(
    graph: gs.Graph,
    options: Bf16Options,
    feeds: Sequence[Feed],
    least: float,
    *,
    run: RunOptions | None = None,
    progress: Progress | None = None,
) -> KeptFloat:
    """Return the nodes to keep in float, beside those excluded anyway, for an SQNR of ``least`` dB.

    ``graph`` is the model as loaded, constants lifted, and is not changed. The SQNR is that of the model
    which the conversion then makes, against this one on the feeds: of all float outputs as one vector. Nodes
    are given by patterns that match their names alone, as ``exclude_node`` takes them, those without a name
    by what they make. Nodes that the conversion fuses are kept together, or by the last of them where that
    does as well. Raises TargetError where even the model with every node excluded does not reach the target,
    ValueError as a conversion does and where the runtime refuses the model.
    """
    target = Target("sqnr", least)
    error = Bf16Error(graph, options, feeds, run, progress)
    before = error.keeping(())
    if target.holds(before):
        return KeptFloat((), before, before)
    best = error.keeping(("*",))
    if not target.holds(best):
        raise TargetError(
            f"no choice of nodes kept in float32 meets the target of {target.bound}: "
            f"{target.text(before)} with none kept, {target.text(best)} with all"
        )
    search = _Search(error, target)
    patterns = search.confirm(search.choose())
    return KeptFloat(patterns, before, error.keeping(patterns))


class _Search:
    """A target, and the model with switches for its parts.

    Nodes with bodies stay float only where nothing else is enough, for they bring along all that is in them.
    """

    def __init__(self, error: Bf16Error, target: Target) -> None:
        self._error, self._target = error, target
        self._switched, self._fixed = SwitchedRounding(error, error.options), list[str]()
        if not target.holds(self._switched.keeping(self._everything)):
            outer = (node for node in walk.nodes(error.graph) if any(walk.bodies(node)))
            self._fixed = list(dict.fromkeys(escape(label_of(node)) for node in outer))
        if self._fixed:
            self._switched = SwitchedRounding(error, error.options.excluding(self._fixed))

    @property
    def _everything(self) -> frozenset[int]:
        return frozenset(range(len(self._switched.parts)))

    def _patterns(self, parts: Iterable[int], by_ends: Container[int] = ()) -> list[str]:
        """Return patterns of all nodes of parts, of some their ends; of every node for the number after the
        last.
        """
        found = list[str]()
        for part in parts:
            if part == len(self._switched.parts):
                return ["*"]
            group = self._switched.parts[part]
            found += map(escape, (part in by_ends and group.ends) or group.names)
        return found

    def choose(self) -> Kept:
        """Return the parts to keep, as few as are found on some samples.

        Parts are given up in the order of their error alone, then again in that beside the parts found:
        errors depend on what else is kept. All are kept where the model with switches does not reach the
        target, for the written one may do so.
        """
        everything = self._everything
        if not self._target.holds(self._searched(everything)):
            return everything
        alone = {part: self._rank(everything - {part}) for part in everything}
        first = self._fewest(everything, alone)
        beside = {part: self._rank(first - {part}) - self._rank(first | {part}) for part in everything}
        return min(first, self._fewest(everything, beside), key=len)

    def _fewest(self, parts: Kept, values: Mapping[int, float]) -> frozenset[int]:
        """Return what is left of parts after giving up all that the target allows, the best values first."""

        def _holds(given_up: Sequence[int]) -> bool:
            return self._target.holds(self._searched(parts - set(given_up)))

        order = sorted(parts, key=lambda part: -values[part])
        return frozenset(parts - set(add_in_groups(order, _holds, together=True)))

    def _searched(self, kept: Kept) -> float:
        return self._switched.keeping(kept, -(-len(self._error.feeds) // _SEARCHED_ON))

    def _rank(self, kept: Kept) -> float:
        return self._switched.keeping(kept, -(-len(self._error.feeds) // _RANKED_ON))

    def confirm(self, kept: Kept) -> tuple[str, ...]:
        """Return the patterns of parts, and of more where the conversion as it is written falls short."""
        kept = kept if self._holds(kept) else self._extended(kept)
        several = [part for part in kept if self._patterns([part]) != self._patterns([part], [part])]
        by_ends = add_in_groups(several, lambda ends: self._holds(kept, ends), together=True)
        places = {escape(label_of(node)): i for i, node in enumerate(walk.nodes(self._error.graph))}
        found = {*self._fixed, *self._patterns(kept, by_ends)}
        return tuple(sorted(found, key=lambda pattern: places.get(pattern, -1)))

    def _extended(self, kept: Kept) -> Kept:
        """Return the parts with as few others as will do, those of most error first; at worst all."""
        others = sorted(self._everything - kept, key=lambda part: -self._rank(self._everything - {part}))
        every = {*kept, *others, len(self._everything)}

        def _hold(given_up: Sequence[int]) -> bool:
            return self._holds(every - set(given_up))

        given_up = add_in_groups([len(self._everything), *others], _hold, together=True)
        return every - set(given_up)

    def _holds(self, kept: Kept, by_ends: Container[int] = ()) -> bool:
        """Return whether the model that would be written runs and reaches the target."""
        try:
            return self._target.holds(self._error.keeping([*self._fixed, *self._patterns(kept, by_ends)]))
        except ValueError:
            return False  # another choice is converted and runs, or the search would not have begun
