"""Channels of one output whose numbers are of very different sizes: each group of them counts by itself.

Boxes in pixels have nearly all of the power of an output in which scores stand beside them: the error of
the whole does not tell what became of the scores. Models are compared as if each group of channels were an
output, and figures are those of the worst group. Channels belong together that one tensor
brought into the output (:mod:`transforms.graph.joined_channels`), as do tensors of similar ranges.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from ops.array_types import AnyArray, Feed
from transforms.graph.embeddings import logits_of
from transforms.graph.joined_channels import Joined, joined_channels
from transforms.judge.constants import FEW_SAMPLES, HIDING


@dataclass(frozen=True)
class ChannelGroups:
    """Groups of the channels of an output along an ``axis``: their places, and the factor of each group by
    which all have the same power, and the output has that of before.
    """

    axis: int
    places: tuple[tuple[int, ...], ...]
    factors: tuple[float, ...]

    def parts(self, array: AnyArray) -> list[AnyArray]:
        """Return the groups of an output by their factors; the output itself for each if it has others."""
        if not self._fits(array):
            return [array for _ in self.places]
        pairs = zip(self.places, self.factors, strict=True)
        return [array.take(some, axis=self.axis) * np.float32(factor) for some, factor in pairs]

    def _fits(self, array: AnyArray) -> bool:
        return self.axis < array.ndim and array.shape[self.axis] == sum(map(len, self.places))

    def label(self, group: int) -> str:
        """Return the channels of a group in words: ``0 to 3, 9``."""
        runs = np.split(some := np.array(self.places[group]), np.flatnonzero(np.diff(some) > 1) + 1)
        return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


Groups = Mapping[str, ChannelGroups]
"""The groups of channels of the outputs that have several, by name."""


def joined_outputs(graph: gs.Graph) -> dict[str, Joined]:
    """Return how the outputs of a float model were joined that were, by name; logits of tokens are one."""
    if logits_of(graph):
        return {}
    found = {str(tensor.name): joined_channels(tensor) for tensor in graph.outputs}
    return {name: joined for name, joined in found.items() if joined is not None and len(joined.sizes) > 1}


def channel_groups(joined: Mapping[str, Joined], made: Sequence[Feed]) -> dict[str, ChannelGroups]:
    """Return the groups of channels of outputs that were ``joined``.

    ``made``: what the float model makes of some samples, of which the first ones are looked at.
    """
    found: dict[str, ChannelGroups] = {}
    for name, one in joined.items():
        arrays = [feed[name] for feed in made[:FEW_SAMPLES] if name in feed]
        groups = _groups(one, [array for array in arrays if np.size(array)])
        if groups is not None:
            found[name] = groups
    return found


def split(feed: Feed, groups: Groups) -> Feed:
    """Return outputs with each group of channels as an output of its own, all groups with similar power.

    A group stands in the place of its output, under its name and a number (:func:`names_of`). Of another
    shape than in the float model each group is the whole.
    """
    if not groups:
        return feed
    found = dict[str, AnyArray]()
    for name, array in feed.items():
        parts = groups[name].parts(array) if name in groups else [array]
        found.update(zip(names_of(name, groups), parts, strict=True))
    return found


def names_of(output: str, groups: Groups) -> list[str]:
    """Return the names that an output has where it is split: its own if it has one group of channels."""
    if output not in groups:
        return [output]
    return [f"{output}[{number}]" for number in range(len(groups[output].places))]


def _groups(joined: Joined, arrays: Sequence[AnyArray]) -> ChannelGroups | None:
    """Return the groups of parts with similar ranges, None if all ranges are similar."""
    count = sum(joined.sizes)
    fitting = [one for one in arrays if one.ndim > joined.axis and one.shape[joined.axis] == count]
    if len(fitting) < len(arrays) or not arrays:
        return None
    largest, squares = _largest(fitting, joined.axis), _mean_squares(fitting, joined.axis)
    ends = np.cumsum([0, *joined.sizes])
    parts = [range(start, end) for start, end in pairwise(ends)]
    groups = list(_of_similar_ranges({part: float(largest[part].max(initial=0.0)) for part in parts}))
    if len(groups) < 2:
        return None
    powers = [float(squares[list(some)].mean()) for some in groups]
    factors = [float(np.sqrt(squares.mean() / power)) if power else 1.0 for power in powers]
    return ChannelGroups(joined.axis, tuple(groups), tuple(factors))


def _of_similar_ranges(largest: Mapping[range, float]) -> Iterable[tuple[int, ...]]:
    """Yield the places of parts whose largest numbers are similar, the largest first; zeros join the last."""
    order = sorted(largest, key=lambda part: -largest[part])
    zeros = [place for part in order if not largest[part] for place in part]
    group, top = list[int](), 0.0
    for part in (one for one in order if largest[one]):
        if group and largest[part] * HIDING < top:
            yield tuple(sorted(group))
            group = []
        top = top if group else largest[part]
        group += part
    yield tuple(sorted([*group, *zeros]))


def _largest(arrays: Sequence[AnyArray], axis: int) -> NDArray[np.float64]:
    return np.max([_of_channels(abs(one), axis).max(axis=1, initial=0.0) for one in arrays], axis=0)


def _mean_squares(arrays: Sequence[AnyArray], axis: int) -> NDArray[np.float64]:
    return np.mean([np.square(_of_channels(one, axis)).mean(axis=1) for one in arrays], axis=0)


def _of_channels(array: AnyArray, axis: int) -> NDArray[np.float64]:
    """Return an array as [channels, numbers]; what is not finite counts as zero."""
    rows = np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1).astype(np.float64)
    return np.nan_to_num(rows, nan=0.0, posinf=0.0, neginf=0.0)
