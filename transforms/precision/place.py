"""The layers of a quantized model that are faster in float on this machine.

Both models, float and quantized, are profiled as a whole, so that fusions, layouts and conversions are those
of real use. Layers that take longer in integers are returned to float, the largest losses first. Complete
models are then timed in turns: what counts is the time of a model with the conversions at its new borders.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby

import onnx_graphsurgeon as gs

from ops.array_types import Feed
from transforms.graph import walk
from transforms.graph.constants import bytes_of_numbers
from transforms.graph.dot_products import is_dot_product
from transforms.model.copy_graph import copy_graph
from transforms.precision.borders import seconds_of_a_number, worth_float
from transforms.precision.chosen import FloatLayers
from transforms.precision.finer_scheme import naming
from transforms.precision.pair_nodes import PairedModels
from transforms.precision.reach import Built
from transforms.run.profile import Kernel, profiled
from transforms.run.speed import SLOWER
from transforms.run.turns import Timer, Timing, Turns, ratio, timed_options
from transforms.runtime.session import RunOptions, open_session
from transforms.scheme import Scheme
from transforms.scheme.layer_rule import IN_FLOAT

_SECONDS, _MOST = 1.0, 6
"""At most: seconds of processor time for timing two models in turns, and groups of layers to try."""

_STEP = 1.01
"""The speedup that more layers in float have to give, also in three of four rounds; one in eight changes
without effect would pass. A small gain is enough, for layers in float also make outputs more accurate."""

_BATCHES = 8
"""Batches of consecutive rounds; the fastest run of each counts."""

_LEAST = 0.005
"""Share of the time of a model that adjacent layers have to lose in integers to be tried in float: less is
within the noise of a profile, and conversions at their borders take as much."""

_REORDERED = 2
"""The time of a border in conversions: integer and float kernels also order channels differently."""

_TAG = re.compile(r"~(\d+)~")

Build = Callable[[Scheme], gs.Graph | None]
"""Quantizes the model anew by a scheme in which nothing is open; None if nothing is to be quantized."""


def faster_in_float(
    first: Built,
    float_graph: gs.Graph,
    names: Callable[[], Set[str]],
    build: Build,
    feed: Feed,
    run: RunOptions,
    timer: Timer | None = None,
) -> FloatLayers:
    """Return the layers of a quantized model that make it faster in float by more than the noise.

    ``first``: the quantized model and its scheme; ``float_graph``: the float model in the form that was
    quantized; neither is changed. ``names``: names of the nodes that a scheme can name. Everything is timed
    on one ``feed``. Raises ValueError as ``build`` and ``timer`` do.
    """
    timer = timer or Turns()
    graph, scheme = first
    paired = PairedModels(copy_graph(float_graph), copy_graph(graph))
    segments = _timed_segments(paired, feed, timed_options(run))
    total = sum(segment.seconds for segment in segments)
    slow = [region for region in _worth_float(segments, timer, run) if _lost(region) > _LEAST * total]
    able = names() if slow else frozenset[str]()
    fastest, used, layers, steps = graph, scheme, list[str](), list[Timing]()
    groups, tried = deque(_alike(sorted(slow, key=_lost, reverse=True))), 0
    while groups and tried < _MOST:
        group = groups.popleft()
        if _lost(group) * _STEP < total * (_STEP - 1):  # their total loss is too small
            continue
        tried += 1
        named = naming(used, (node for segment in group for node in segment.nodes), able, IN_FLOAT)
        is_most = 2 * len(group) > len(segments)  # half of them may be enough, and leaves more in integers
        built = build(named) if named != used and not (is_most and group[1:]) else None
        step = None if built is None else ratio_of((built, fastest), feed, run, 1 / _STEP, timer)
        if built is not None and step is not None and _is_faster(step, _STEP):
            fastest, used = built, named
            layers += [segment.nodes[0] for segment in group]
            steps.append(step)
        elif group[1:]:
            groups += group[: len(group) // 2], group[len(group) // 2 :]
    if len(steps) > 1:
        steps = [ratio_of((fastest, graph), feed, run, 1 / _STEP, timer)]
    if not steps or not _is_faster(steps[0], _STEP):
        return FloatLayers(scheme, len(segments))
    more = bytes_of_numbers(fastest) - bytes_of_numbers(graph)
    return FloatLayers(used, len(segments), tuple(layers), steps[0], more)


def _is_faster(timing: Timing, times: float) -> bool:
    """Return whether a model is ``times`` as fast, and faster in three of four rounds."""
    return timing.median * times < 1 and timing.high < 1


@dataclass
class _Segment:
    """A dot product and the nodes after it up to the next dot products; kernels are fused within it.

    ``nodes``: names of its quantized nodes; ``beside``: indices of the segments that consume its outputs or
    produce its inputs; ``readers``: of the consumers alone. ``seconds`` and ``before``: its time in integers
    and in float; ``size``: how many numbers it outputs, 0 if unknown.
    """

    nodes: list[str] = field(default_factory=list)
    beside: set[int] = field(default_factory=set)
    seconds: float = 0.0
    before: float = 0.0
    readers: set[int] = field(default_factory=set)
    size: float = 0.0


def _lost(region: Iterable[_Segment]) -> float:
    return sum(segment.seconds - segment.before for segment in region)


def _regions(segments: Sequence[_Segment]) -> Iterator[list[_Segment]]:
    """Yield segments that are not faster in integers; adjacent ones form a region without conversions.

    A faster segment joins the regions around it if it loses less in float than these gain, the largest of
    them not counted.
    """
    left = {number for number, segment in enumerate(segments) if segment.before < SLOWER * segment.seconds}
    regions = list(_connected(segments, left))

    def _worth(region: set[int]) -> float:
        return _lost(segments[number] for number in region)

    for number, segment in enumerate(segments):
        beside = sorted(
            (other for other in regions if other & segment.beside and number not in other), key=_worth
        )
        if sum(map(_worth, beside[:-1])) + _lost([segment]) > 0 and not any(
            number in other for other in regions
        ):
            regions = [other for other in regions if other not in beside] + [set().union({number}, *beside)]
    for region in regions:
        yield [segments[number] for number in sorted(region)]


def _connected(segments: Sequence[_Segment], left: set[int]) -> Iterator[set[int]]:
    """Yield the connected components of the segments with the indices ``left``, as sets of indices."""
    left = set(left)
    while left:
        region = pending = {min(left)}
        while pending:
            left -= pending
            pending = set().union(*(segments[number].beside for number in pending)) & left
            region = region | pending
        yield region


def _worth_float(segments: Sequence[_Segment], timer: Timer, run: RunOptions) -> list[list[_Segment]]:
    """Return the regions without the segments that are better left in integers, given the cost of borders."""
    regions = list(_regions(segments))
    if not regions or not any(segment.size for segment in segments):
        return regions
    second = seconds_of_a_number(timer, run)
    lost = {number: _lost([segment]) for number, segment in enumerate(segments)}
    borders = {number: _REORDERED * second * segment.size for number, segment in enumerate(segments)}
    readers = {number: segment.readers for number, segment in enumerate(segments)}
    numbers = {id(segment): number for number, segment in enumerate(segments)}
    reduced = (
        worth_float({numbers[id(segment)] for segment in region}, lost, borders, readers)
        for region in regions
    )
    return [
        [segments[i] for i in sorted(members)]
        for remaining in reduced
        for members in _connected(segments, remaining)
    ]


def _alike(regions: Sequence[Sequence[_Segment]]) -> Iterator[list[_Segment]]:
    """Yield the segments of regions with similar losses together, the largest losses first.

    A group holds the regions that lose more than a half of the largest loss, the next one those above a
    quarter, and so on: regions of the same structure, which lose about the same, are tried together.
    """
    for _, group in groupby(regions, lambda region: int(math.log2(_lost(regions[0]) / _lost(region)))):
        yield [segment for region in group for segment in region]


def ratio_of(
    pair: tuple[gs.Graph, gs.Graph], feed: Feed, run: RunOptions, bound: float, timer: Timer
) -> Timing:
    """Return the time of the first of two models divided by that of the second.

    They run in turns until it is clear on which side of ``bound`` the ratio is. Of consecutive rounds the
    fastest count: other load on the machine only makes a run slower.
    """
    first, second = timer(pair, [feed], run, _SECONDS, bound)
    size = max(1, len(first) // _BATCHES)
    fastest = (
        [min(seconds[i : i + size]) for i in range(0, len(seconds), size)] for seconds in (first, second)
    )
    return ratio(*fastest)


def _timed_segments(paired: PairedModels, feed: Feed, run: RunOptions) -> list[_Segment]:
    """Return the segments with quantized nodes of a model, with their times."""
    base, other = paired.base.graph, paired.other.graph
    names = {id(node): name for name, (node,) in paired.base.layers.items()}
    segment_of, segments = dict[int, int](), list[_Segment]()
    for node in base.nodes:
        makers = {segment_of[id(maker)] for t in node.inputs for maker in t.inputs if id(maker) in segment_of}
        number = max(makers, default=None)
        if id(node) in names and (number is None or is_dot_product(node)):
            number = len(segments)
            segments.append(_Segment())
        if number is None:
            continue
        segment_of[id(node)] = number
        segments[number].nodes += [names[id(node)]] if id(node) in names else []
        for maker in makers - {number}:
            segments[number].beside.add(maker)
            segments[maker].beside.add(number)
            segments[maker].readers.add(number)
    _tag(base, segment_of)
    _tag(other, _segments_of_quantized(paired, segment_of))
    openers = [partial(open_session, graph) for graph in (base, other)]
    profiles = profiled(openers, [_fed(base, feed), _fed(other, feed)], run)
    (floats, integers), sizes = map(_seconds_by_segment, profiles), _sizes(profiles[0])
    for number, segment in enumerate(segments):
        segment.seconds, segment.before, segment.size = (
            integers[number],
            floats[number],
            sizes.get(number, 0.0),
        )
    return segments


def _segments_of_quantized(paired: PairedModels, float_segments: Mapping[int, int]) -> dict[int, int]:
    """Return the segment of each node of the quantized model; conversions belong to their consumers."""
    segment_of: dict[int, int] = {}
    for node in reversed(paired.other.graph.nodes):
        floats = (paired.floats[id(tensor)] for tensor in node.outputs if id(tensor) in paired.floats)
        makers = [maker for tensor in floats if (maker := walk.producer(tensor)) is not None]
        read = [
            segment_of[id(user)]
            for tensor in node.outputs
            for user in tensor.outputs
            if id(user) in segment_of
        ]
        candidates = (
            [float_segments[id(maker)] for maker in makers if id(maker) in float_segments] if makers else read
        )
        if candidates:
            segment_of[id(node)] = min(candidates)
    return segment_of


def _tag(graph: gs.Graph, segment_of: Mapping[int, int]) -> None:
    """Name nodes and outputs after their segments: a fused kernel keeps the name of one of its nodes."""
    for place, node in enumerate(graph.nodes):
        node.name = f"~{segment_of.get(id(node), '')}~{place}"
        for index, tensor in enumerate(node.outputs):
            tensor.name = tensor.name and f"{node.name}~{index}"


def _fed(graph: gs.Graph, feed: Feed) -> Feed:
    return {str(tensor.name): feed[tensor.name] for tensor in graph.inputs}


def _sizes(kernels: Iterable[Kernel]) -> Mapping[int, float]:
    """Return how many numbers the last kernel of each segment outputs."""
    tagged = ((_TAG.search(kernel.name), kernel.made) for kernel in kernels)
    return {int(tag[1]): size / 4 for tag, size in tagged if tag}


def _seconds_by_segment(kernels: Sequence[Kernel]) -> Mapping[int, float]:
    """Return the seconds of each segment; kernels without one, such as layout changes, count for the next."""
    seconds_of, waiting, last = defaultdict[int, float](float), 0.0, None
    for kernel in kernels:
        waiting += kernel.seconds
        tag = _TAG.search(kernel.name)
        if tag:
            last = int(tag[1])
            seconds_of[last] += waiting
            waiting = 0.0
    if last is not None:
        seconds_of[last] += waiting
    return seconds_of
