"""Run texts through a decoder in two steps, the second with the caches of the first.

Samples often have an empty cache, but a model in use reads caches that were fed back. In two steps, half of
each sample is read with such a cache.
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
"""Tokens of a text on which two steps are compared with one."""

_AS_ONE = 1e-6
"""Relative error power within which two steps equal one; orders of sums differ."""

Axes = Sequence[object]


@dataclass(frozen=True)
class TwoSteps:
    """How to split the feeds of a model in two along axes of new tokens and of all tokens so far.

    ``shapes``: of the inputs, with numbers for fixed sizes and names or None for others; ``ids``: the input
    of the new tokens; ``caches``: by input of a cache, the output that feeds it; ``tokens``: an input of a
    cache, and its axis that grows.
    """

    shapes: Mapping[str, Axes]
    ids: str
    caches: Mapping[str, str]
    tokens: tuple[str, int]

    @classmethod
    def of(cls, graph: gs.Graph, caches: Sequence[CodedCache]) -> TwoSteps | None:
        """Return how to split the feeds of a float model with such caches, or None without token inputs."""
        grown = [(one, one.tokens) for one in caches if one.tokens is not None]
        pairs = {one.past: one.present for one, _ in grown}
        shapes: dict[str, Axes] = {str(one.name): one.shape or () for one in graph.inputs}
        integers = (str(one.name) for one in graph.inputs if one.dtype in (np.int64, np.int32))
        found = [name for name in integers if len(shapes[name]) == 2 and not _is_known(shapes[name][1])]
        ids = IDS if IDS in found else next(iter(found), None)
        first = [(one.past, tokens) for one, tokens in grown[:1]]
        return cls(shapes, ids, pairs, *first) if ids and first else None

    def through(self, run: Run) -> Run:
        """Return a function that runs a model in two steps; a text of one token in one."""

        def _run(feed: Feed) -> Feed:
            if (count := feed[self.ids].shape[1]) < 2:
                return run(feed)
            first = run(self._part(feed, 0, count // 2))
            rest = self._part(feed, count // 2, count)
            second = run({**rest, **{past: first[present] for past, present in self.caches.items()}})
            cache_names = self.caches.values()
            return {
                name: array if name in cache_names else _joined(first[name], array, count)
                for name, array in second.items()
            }

        return _run

    def agrees(self, run: Run, feed: Feed) -> bool:
        """Return whether a model gives the same outputs for the first tokens in two steps as in one.

        False for a text of one token.
        """
        if (count := feed[self.ids].shape[1]) < 2:
            return False
        text = self._part(feed, 0, min(count, _TRIED))
        try:
            at_once, in_steps = run(text), self.through(run)(text)
        except Exception:  # of the runtime: shapes that do not split as a text does
            return False
        return all(_is_alike(array, in_steps[name]) for name, array in at_once.items())

    def _part(self, feed: Feed, start: int, end: int) -> dict[str, AnyArray]:
        """Return the feed of tokens ``start`` to ``end``, with a mask of all tokens up to the end."""
        past, axis = self.tokens
        new, before = feed[self.ids].shape[1], feed[past].shape[axis]
        inputs = dict(feed)
        for name in feed.keys() - self.caches.keys():
            for place, size in enumerate(self.shapes[name]):
                length = inputs[name].shape[place]
                if self._is_of_new(name, place, size) and length == new:
                    inputs[name] = inputs[name].take(range(start, end), place)
                elif place and not _is_known(size) and length == before + new:
                    inputs[name] = inputs[name].take(range(before + end), place)
        return inputs

    def _is_of_new(self, name: str, axis: int, size: object) -> bool:
        """Return whether an axis of an input counts the new tokens, by the name of its size or its own."""
        if name == MASK or _is_known(size):
            return False
        is_token_input = name in (self.ids, POSITIONS, TYPES) and axis == 1
        return is_token_input or (size is not None and size == self.shapes[self.ids][1])


def _is_known(size: object) -> bool:
    return isinstance(size, int) and size >= 0


def _joined(first: AnyArray, second: AnyArray, count: int) -> AnyArray:
    """Concatenate the outputs of two steps along tokens; those without a token axis are the second's."""
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
