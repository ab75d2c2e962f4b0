"""The layers of a quantized model that are faster in float on this machine.

The float model and the quantized one are profiled whole, so that fusions, layouts and conversions are those
of use. Layers that take longer in integers are put back to float, those that lose most first, and whole
models take turns: what counts is the time of the model, with the conversions at its new borders.
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
"""Seconds of the processor for which two models take turns at most, and groups of layers that are tried."""

_STEP = 1.01
"""Times as fast that a model has to become with some more layers in float, and in three of four rounds: of
what changes nothing, one in eight would be. It need not be more, for layers in float make outputs better."""

_PARTS = 8
"""Parts of the rounds, of each of which the fastest run counts."""

_LEAST = 0.005
"""Share of the time of a model that layers beside each other have to lose in integers to be tried in float:
less is within the noise of a profile, and the conversions at their borders take as much."""

_REORDERED = 2
"""Times as long as a conversion that a border takes: kernels of integers and float order channels apart."""

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
    """Return the layers of a quantized model that it is faster with in float, if that is beyond the noise.

    ``first``: the quantized model and its scheme; ``float_graph``: the float model as it was quantized; both
    stay as they are. ``names``: those of nodes that a scheme can name. All is timed on one ``feed``.
    Raises ValueError as ``build`` and ``timer`` do.
    """
    timer = timer or Turns()
    graph, scheme = first
    paired = PairedModels(copy_graph(float_graph), copy_graph(graph))
    parts = _timed_parts(paired, feed, timed_options(run))
    whole = sum(one.seconds for one in parts)
    slow = [region for region in _worth_float(parts, timer, run) if _lost(region) > _LEAST * whole]
    able = names() if slow else frozenset[str]()
    fastest, used, layers, steps = graph, scheme, list[str](), list[Timing]()
    groups, tried = deque(_alike(sorted(slow, key=_lost, reverse=True))), 0
    while groups and tried < _MOST:
        group = groups.popleft()
        if _lost(group) * _STEP < whole * (_STEP - 1):  # all that they lose is too little
            continue
        tried += 1
        named = naming(used, (node for part in group for node in part.nodes), able, IN_FLOAT)
        is_most = 2 * len(group) > len(parts)  # a half of them may do, and leaves more in integers
        built = build(named) if named != used and not (is_most and group[1:]) else None
        step = None if built is None else ratio_of((built, fastest), feed, run, 1 / _STEP, timer)
        if built is not None and step is not None and _is_faster(step, _STEP):
            fastest, used = built, named
            layers += [part.nodes[0] for part in group]
            steps.append(step)
        elif group[1:]:
            groups += group[: len(group) // 2], group[len(group) // 2 :]
    if len(steps) > 1:
        steps = [ratio_of((fastest, graph), feed, run, 1 / _STEP, timer)]
    if not steps or not _is_faster(steps[0], _STEP):
        return FloatLayers(scheme, len(parts))
    more = bytes_of_numbers(fastest) - bytes_of_numbers(graph)
    return FloatLayers(used, len(parts), tuple(layers), steps[0], more)


def _is_faster(found: Timing, times: float) -> bool:
    """Return whether a model is so many times as fast, and faster in three of four rounds."""
    return found.median * times < 1 and found.high < 1


@dataclass
class _Part:
    """A dot product and what follows it up to the next ones, since kernels are fused within it.

    ``nodes``: names of those that are quantized; ``beside``: numbers of the parts that read what it makes, or
    make what it reads; ``readers``: the former. ``seconds`` and ``before``: in integers and in float;
    ``made``: how many numbers it makes, 0 where that is not known.
    """

    nodes: list[str] = field(default_factory=list)
    beside: set[int] = field(default_factory=set)
    seconds: float = 0.0
    before: float = 0.0
    readers: set[int] = field(default_factory=set)
    made: float = 0.0


def _lost(region: Iterable[_Part]) -> float:
    return sum(part.seconds - part.before for part in region)


def _regions(parts: Sequence[_Part]) -> Iterator[list[_Part]]:
    """Yield parts that are not faster in integers, those together that are beside each other: in float there
    is no conversion between them. Others are with them that lose less in float than all but the largest of
    the regions that they are between.
    """
    left = {number for number, part in enumerate(parts) if part.before < SLOWER * part.seconds}
    regions = list(_connected(parts, left))

    def _worth(region: set[int]) -> float:
        return _lost(parts[number] for number in region)

    for number, part in enumerate(parts):
        beside = sorted((one for one in regions if one & part.beside and number not in one), key=_worth)
        if sum(map(_worth, beside[:-1])) + _lost([part]) > 0 and not any(number in one for one in regions):
            regions = [one for one in regions if one not in beside] + [set().union({number}, *beside)]
    for region in regions:
        yield [parts[number] for number in sorted(region)]


def _connected(parts: Sequence[_Part], left: set[int]) -> Iterator[set[int]]:
    """Yield the numbers of some parts, those together that are beside each other."""
    left = set(left)
    while left:
        found = pending = {min(left)}
        while pending:
            left -= pending
            pending = set().union(*(parts[number].beside for number in pending)) & left
            found = found | pending
        yield found


def _worth_float(parts: Sequence[_Part], timer: Timer, run: RunOptions) -> list[list[_Part]]:
    """Return regions without the parts for which conversions at other borders take less time."""
    regions = list(_regions(parts))
    if not regions or not any(part.made for part in parts):
        return regions
    second = seconds_of_a_number(timer, run)
    lost = {number: _lost([part]) for number, part in enumerate(parts)}
    borders = {number: _REORDERED * second * part.made for number, part in enumerate(parts)}
    readers = {number: part.readers for number, part in enumerate(parts)}
    numbers = {id(part): number for number, part in enumerate(parts)}
    kept = (worth_float({numbers[id(part)] for part in region}, lost, borders, readers) for region in regions)
    return [[parts[i] for i in sorted(one)] for some in kept for one in _connected(parts, some)]


def _alike(regions: Sequence[Sequence[_Part]]) -> Iterator[list[_Part]]:
    """Yield the parts of regions, the worst first, of those together that lose more than a half, a quarter
    and so on of what the worst does: regions of one structure, which lose about the same, are tried together.
    """
    for _, group in groupby(regions, lambda region: int(math.log2(_lost(regions[0]) / _lost(region)))):
        yield [part for region in group for part in region]


def ratio_of(
    pair: tuple[gs.Graph, gs.Graph], feed: Feed, run: RunOptions, bound: float, timer: Timer
) -> Timing:
    """Return the time of the first of two models by that of the second, in turns until it is clear on which
    side of a bound that is.

    Of some rounds after each other the fastest count: what else the machine does only makes a run slower.
    """
    made, before = timer(pair, [feed], run, _SECONDS, bound)
    size = max(1, len(made) // _PARTS)
    fastest = ([min(one[i : i + size]) for i in range(0, len(one), size)] for one in (made, before))
    return ratio(*fastest)


def _timed_parts(paired: PairedModels, feed: Feed, run: RunOptions) -> list[_Part]:
    """Return the parts of a model of which nodes are quantized, with their times."""
    base, other = paired.base.graph, paired.other.graph
    names = {id(node): name for name, (node,) in paired.base.layers.items()}
    part_of, parts = dict[int, int](), list[_Part]()
    for node in base.nodes:
        makers = {part_of[id(maker)] for t in node.inputs for maker in t.inputs if id(maker) in part_of}
        number = max(makers, default=None)
        if id(node) in names and (number is None or is_dot_product(node)):
            number = len(parts)
            parts.append(_Part())
        if number is None:
            continue
        part_of[id(node)] = number
        parts[number].nodes += [names[id(node)]] if id(node) in names else []
        for maker in makers - {number}:
            parts[number].beside.add(maker)
            parts[maker].beside.add(number)
            parts[maker].readers.add(number)
    _tag(base, part_of)
    _tag(other, _parts_of_quantized(paired, part_of))
    openers = [partial(open_session, graph) for graph in (base, other)]
    profiles = profiled(openers, [_fed(base, feed), _fed(other, feed)], run)
    (floats, integers), made = map(_by_part, profiles), _made(profiles[0])
    for number, part in enumerate(parts):
        part.seconds, part.before, part.made = integers[number], floats[number], made.get(number, 0.0)
    return parts


def _parts_of_quantized(paired: PairedModels, part_of: Mapping[int, int]) -> dict[int, int]:
    """Return the parts of the nodes of the quantized model; conversions belong to what reads them."""
    found: dict[int, int] = {}
    for node in reversed(paired.other.graph.nodes):
        floats = (paired.floats[id(tensor)] for tensor in node.outputs if id(tensor) in paired.floats)
        makers = [maker for tensor in floats if (maker := walk.producer(tensor)) is not None]
        read = [found[id(user)] for tensor in node.outputs for user in tensor.outputs if id(user) in found]
        parts = [part_of[id(maker)] for maker in makers if id(maker) in part_of] if makers else read
        if parts:
            found[id(node)] = min(parts)
    return found


def _tag(graph: gs.Graph, part_of: Mapping[int, int]) -> None:
    """Name nodes, and what they make, by their parts: kernels are named after what they were fused of."""
    for place, node in enumerate(graph.nodes):
        node.name = f"~{part_of.get(id(node), '')}~{place}"
        for index, tensor in enumerate(node.outputs):
            tensor.name = tensor.name and f"{node.name}~{index}"


def _fed(graph: gs.Graph, feed: Feed) -> Feed:
    return {str(tensor.name): feed[tensor.name] for tensor in graph.inputs}


def _made(kernels: Iterable[Kernel]) -> Mapping[int, float]:
    """Return how many numbers the last kernel of each part makes."""
    tagged = ((_TAG.search(kernel.name), kernel.made) for kernel in kernels)
    return {int(tag[1]): made / 4 for tag, made in tagged if tag}


def _by_part(kernels: Sequence[Kernel]) -> Mapping[int, float]:
    """Return the seconds of each part; a kernel of none, which changes a layout, is of the part after it."""
    found, waiting, last = defaultdict[int, float](float), 0.0, None
    for kernel in kernels:
        waiting += kernel.seconds
        tag = _TAG.search(kernel.name)
        if tag:
            last = int(tag[1])
            found[last] += waiting
            waiting = 0.0
    if last is not None:
        found[last] += waiting
    return found
