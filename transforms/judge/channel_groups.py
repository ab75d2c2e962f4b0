"""Split an output into groups of channels of very different magnitudes, and compare each group by itself.

In an output of boxes in pixels and scores, boxes have nearly all of the power, so the error of the whole says
nothing of the scores. Models are compared as if each group of channels were an output, and figures are those
of the worst group. The channels of one joined tensor form a group (:mod:`transforms.graph.joined_channels`),
together with those of tensors of similar ranges.
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
    """Groups of the channels of an output along an ``axis``.

    ``places``: the channels of each group. ``factors``: of each group, to scale all groups to the mean power
    of the output.
    """

    axis: int
    places: tuple[tuple[int, ...], ...]
    factors: tuple[float, ...]

    def parts(self, array: AnyArray) -> list[AnyArray]:
        """Return the groups of an output, scaled; for each the output itself if it has other channels."""
        if not self._fits(array):
            return [array for _ in self.places]
        pairs = zip(self.places, self.factors, strict=True)
        return [array.take(channels, axis=self.axis) * np.float32(factor) for channels, factor in pairs]

    def _fits(self, array: AnyArray) -> bool:
        return self.axis < array.ndim and array.shape[self.axis] == sum(map(len, self.places))

    def label(self, group: int) -> str:
        """Return the channels of a group in words: ``0 to 3, 9``."""
        runs = np.split(channels := np.array(self.places[group]), np.flatnonzero(np.diff(channels) > 1) + 1)
        return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


Groups = Mapping[str, ChannelGroups]
"""Groups of channels by name of the output, of outputs with several groups."""


def joined_outputs(graph: gs.Graph) -> dict[str, Joined]:
    """Return how outputs of a float model are joined from tensors, by name; none of a language model."""
    if logits_of(graph):
        return {}
    joins = {str(tensor.name): joined_channels(tensor) for tensor in graph.outputs}
    return {name: joined for name, joined in joins.items() if joined is not None and len(joined.sizes) > 1}


def channel_groups(joined: Mapping[str, Joined], made: Sequence[Feed]) -> dict[str, ChannelGroups]:
    """Return the groups of channels of outputs that are ``joined``.

    ``made``: the outputs of the float model on samples, of which the first ``FEW_SAMPLES`` are used.
    """
    groups_by_name: dict[str, ChannelGroups] = {}
    for name, join in joined.items():
        arrays = [feed[name] for feed in made[:FEW_SAMPLES] if name in feed]
        groups = _groups(join, [array for array in arrays if np.size(array)])
        if groups is not None:
            groups_by_name[name] = groups
    return groups_by_name


def split(feed: Feed, groups: Groups) -> Feed:
    """Return outputs with each group of channels as a separate output, scaled to the same power.

    Groups replace their output in order, under its name and a number (:func:`names_of`). For an output of
    another shape than in the float model, each group is the whole output.
    """
    if not groups:
        return feed
    arrays = dict[str, AnyArray]()
    for name, array in feed.items():
        pieces = groups[name].parts(array) if name in groups else [array]
        arrays.update(zip(names_of(name, groups), pieces, strict=True))
    return arrays


def names_of(output: str, groups: Groups) -> list[str]:
    """Return the names of the groups of an output; its own name if it has one group of channels."""
    if output not in groups:
        return [output]
    return [f"{output}[{number}]" for number in range(len(groups[output].places))]


def _groups(joined: Joined, arrays: Sequence[AnyArray]) -> ChannelGroups | None:
    """Return groups of the joined tensors with similar ranges; None if all ranges are similar."""
    count = sum(joined.sizes)
    fitting = [array for array in arrays if array.ndim > joined.axis and array.shape[joined.axis] == count]
    if len(fitting) < len(arrays) or not arrays:
        return None
    largest, squares = _largest(fitting, joined.axis), _mean_squares(fitting, joined.axis)
    ends = np.cumsum([0, *joined.sizes])
    sources = [range(start, end) for start, end in pairwise(ends)]
    groups = list(_of_similar_ranges({part: float(largest[part].max(initial=0.0)) for part in sources}))
    if len(groups) < 2:
        return None
    powers = [float(squares[list(channels)].mean()) for channels in groups]
    factors = [float(np.sqrt(squares.mean() / power)) if power else 1.0 for power in powers]
    return ChannelGroups(joined.axis, tuple(groups), tuple(factors))


def _of_similar_ranges(largest: Mapping[range, float]) -> Iterable[tuple[int, ...]]:
    """Yield the channels of tensors with similar largest numbers, largest first; zeros join the last."""
    order = sorted(largest, key=lambda part: -largest[part])
    zeros = [place for part in order if not largest[part] for place in part]
    group, top = list[int](), 0.0
    for part in filter(largest.__getitem__, order):
        if group and largest[part] * HIDING < top:
            yield tuple(sorted(group))
            group = []
        top = top if group else largest[part]
        group += part
    yield tuple(sorted([*group, *zeros]))


def _largest(arrays: Sequence[AnyArray], axis: int) -> NDArray[np.float64]:
    return np.max([_of_channels(abs(array), axis).max(axis=1, initial=0.0) for array in arrays], axis=0)


def _mean_squares(arrays: Sequence[AnyArray], axis: int) -> NDArray[np.float64]:
    return np.mean([np.square(_of_channels(array, axis)).mean(axis=1) for array in arrays], axis=0)


def _of_channels(array: AnyArray, axis: int) -> NDArray[np.float64]:
    """Return an array as [channels, elements]; NaN and infinities count as zero."""
    rows = np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1).astype(np.float64)
    return np.nan_to_num(rows, nan=0.0, posinf=0.0, neginf=0.0)
