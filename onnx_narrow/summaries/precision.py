"""Layers that stay finer for a goal of the outputs, or in float for their time, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from onnx_narrow.summaries.timing import against
from onnx_narrow.summaries.words import Detail
from transforms.files.spelling import as_option, spelled
from transforms.graph.selection import exactly
from transforms.graph.some_names import counted, some_names
from transforms.search.target import LOST_TOP1, Scored, Target

if TYPE_CHECKING:
    from transforms.judge.decisions import LossyLayers
    from transforms.pipelines.work import Work
    from transforms.precision.chosen import BesidePreset, FloatLayers


def lossy_lines(lossy: LossyLayers) -> Iterator[str]:
    """Yield which layers stay float for the outputs, their gain and price, and how to name them."""
    price = f"{lossy.gain.shown or lossy.gain}, {100 * lossy.more:+.0f} % bytes"
    yield _in_format("float, for accuracy", lossy.layers, lossy.count, price)
    yield Detail("  " + " ".join(as_option("exclude_nodes", exactly(name)) for name in lossy.layers))


def placed_lines(placed: FloatLayers) -> Iterator[str]:
    """Yield which layers stay float for their time, how much faster that is, and their price."""
    if not placed.layers:
        return
    assert placed.ratio is not None, "there are layers"
    yield _in_format("float, for speed", placed.layers, placed.count)
    price = f"{placed.more_bytes:+,} bytes of weights"
    yield f"  {against(placed.ratio, 'with all in integers')}, {price}"


def preset_lines(beside: BesidePreset, config: str) -> Iterator[str]:
    """Yield how a model for a target compares with its preset, if the preset is clearly better.

    ``config``: the preset. The line says which of the two is written, and how to get the other.
    """
    where = f"on the {counted(beside.samples, 'sample')} used for the search"
    figures = f"{beside.own:.1f} dB with {spelled('{target}')}, {beside.without:.1f} dB without {where}"
    if beside.is_far:
        ratio = "" if beside.ratio is None else f", which is {against(beside.ratio, 'the model for it')}"
        way = (
            "the latter is written" if beside.is_taken else f"{as_option('config', config)} makes the latter"
        )
        yield f"Compared with the preset: {figures}: {way}{ratio}"
    if beside.found is not None and beside.found.layers:
        names = [part.name for part in beside.found.layers]
        change = f"{beside.found.before:.1f} -> {beside.found.after:.1f} dB"
        yield _in_format("float, for accuracy", names, beside.found.count, change)


def reached_lines(work: Work) -> Iterator[str]:
    """Yield how a goal was reached: the metric before and after, the layers by name, and their price.

    A goal that may be missed is reported as missed where samples do not show it.
    """
    reached, goal, fallback = work.record.reached, work.options.goal, work.options.fallback
    if reached is None or goal is None:
        return
    where = work.held_out.where if work.held_out else ""
    if reached.left_out:
        yield f"Left out of the target: {some_names(reached.left_out)}, fed back as {_kind(goal)}"
    is_shown = goal.is_shown(Scored(reached.after, reached.error))
    target = f"Target of {goal.bound}: {'' if is_shown else 'missed, '}"
    if not reached.layers:
        result = goal.text(reached.before, reached.error)
        yield f"{target}{result} on {where}, no layer {'needs' if is_shown else 'is better in'} {fallback}"
        return
    change = f"{goal.text(reached.before)} -> {goal.text(reached.after, reached.error)}"
    yield f"{target}{change} on {where}"
    yield _in_format(fallback, [part.name for part in reached.layers], reached.count)
    for part in reached.layers:
        more_nodes = f" with {', '.join(part.nodes[1:])}" if part.nodes[1:] else ""
        yield Detail(f"  {part.name} ({part.op}){more_nodes}")
    more = reached.bytes_after - reached.bytes_before
    share = 100 * more / max(reached.bytes_before, 1)
    yield f"Price: {more:+,} bytes of weights ({share:+.0f} %)"


def _in_format(what: str, names: Sequence[str], count: int, note: str = "") -> str:
    """Return which layers have a format, out of how many; ``note``: their gain and price."""
    layers = f"{len(names)} of {counted(count, 'layer')}{f' ({note})' if note else ''}"
    return f"In {what}: {layers}: {some_names(names)}"


def _kind(goal: Target) -> str:
    return "states, no answers" if goal.metric == LOST_TOP1 else "caches that the logits are made of"
