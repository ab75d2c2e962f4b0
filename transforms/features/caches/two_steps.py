"""Texts that a decoder reads in two steps, the second with the caches that the first has left.

A sample often has an empty cache. What a model in use reads is a cache that was fed back: so is half of a
sample here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import AnyArray, Feed
from ops.metrics import sums_of_numbers
from transforms.features.caches.coded_caches import CodedCache
from transforms.run.run_model import Run
from transforms.run.samples import IDS, MASK, POSITIONS, TYPES

_TRIED = 16
"""Tokens of a text that show whether two steps make what one makes."""

_AS_ONE = 1e-6
"""Error by power up to which two steps make what one makes; orders of sums differ."""

Axes = Sequence[object]


@dataclass(frozen=True)
class TwoSteps:
    """How the feeds of a model are cut in two: along axes of the new tokens, and of all up to them.

    ``shapes``: of the inputs, with numbers for known sizes and names or None for others; ``ids``: the input
    of the new tokens; ``caches``: the output that each input of a cache is fed with; ``tokens``: an input of
    a cache, and its axis that grows.
    """

    shapes: Mapping[str, Axes]
    ids: str
    caches: Mapping[str, str]
    tokens: tuple[str, int]

    @classmethod
    def of(cls, graph: gs.Graph, caches: Sequence[CodedCache]) -> TwoSteps | None:
        """Return how to cut the feeds of a float model with such caches; None without an input of tokens."""
        grown = [(one, one.tokens) for one in caches if one.tokens is not None]
        pairs = {one.past: one.present for one, _ in grown}
        shapes: dict[str, Axes] = {str(one.name): one.shape or () for one in graph.inputs}
        integers = (str(one.name) for one in graph.inputs if one.dtype in (np.int64, np.int32))
        found = [name for name in integers if len(shapes[name]) == 2 and not _is_known(shapes[name][1])]
        ids = IDS if IDS in found else next(iter(found), None)
        first = [(one.past, tokens) for one, tokens in grown[:1]]
        return cls(shapes, ids, pairs, *first) if ids and first else None

    def through(self, run: Run) -> Run:
        """Return what runs a model in two steps; a text of one token in one."""

        def _run(feed: Feed) -> Feed:
            if (count := feed[self.ids].shape[1]) < 2:
                return run(feed)
            first = run(self._part(feed, 0, count // 2))
            rest = self._part(feed, count // 2, count)
            second = run({**rest, **{past: first[present] for past, present in self.caches.items()}})
            known = self.caches.values()
            return {
                name: made if name in known else _joined(first[name], made, count)
                for name, made in second.items()
            }

        return _run

    def agrees(self, run: Run, feed: Feed) -> bool:
        """Return whether a model makes the same of the first tokens in two steps as in one.

        Not so of a text of one token.
        """
        if (count := feed[self.ids].shape[1]) < 2:
            return False
        text = self._part(feed, 0, min(count, _TRIED))
        try:
            whole, parts = run(text), self.through(run)(text)
        except Exception:  # of the runtime, on shapes that are not those of a text: cut elsewhere
            return False
        return all(_is_alike(array, parts[name]) for name, array in whole.items())

    def _part(self, feed: Feed, start: int, end: int) -> dict[str, AnyArray]:
        """Return the feed of the tokens from ``start`` to ``end``, with a mask of all up to the end."""
        past, axis = self.tokens
        new, before = feed[self.ids].shape[1], feed[past].shape[axis]
        found = dict(feed)
        for name in feed.keys() - self.caches.keys():
            for place, size in enumerate(self.shapes[name]):
                length = found[name].shape[place]
                if self._is_of_new(name, place, size) and length == new:
                    found[name] = found[name].take(range(start, end), place)
                elif place and not _is_known(size) and length == before + new:
                    found[name] = found[name].take(range(before + end), place)
        return found

    def _is_of_new(self, name: str, axis: int, size: object) -> bool:
        """Return whether an axis of an input counts the new tokens, by the name of its size or its own."""
        if name == MASK or _is_known(size):
            return False
        known = name in (self.ids, POSITIONS, TYPES) and axis == 1
        return known or (size is not None and size == self.shapes[self.ids][1])


def _is_known(size: object) -> bool:
    return isinstance(size, int) and size >= 0


def _joined(first: AnyArray, second: AnyArray, count: int) -> AnyArray:
    """Return the outputs of two steps as one; those that have nothing for each token are of the second."""
    for axis, sizes in enumerate(zip(first.shape, second.shape, strict=True)):
        if sum(sizes) == count and sizes[0] == count // 2:
            return np.concatenate([first, second], axis)
    return second


def _is_alike(whole: AnyArray, parts: AnyArray) -> bool:
    if whole.shape != parts.shape:
        return False
    if whole.dtype.kind != "f":
        return bool((whole == parts).all())
    sums = sums_of_numbers(whole, parts)
    return not sums.other_non_finite and sums.error_energy <= _AS_ONE * sums.baseline_energy
