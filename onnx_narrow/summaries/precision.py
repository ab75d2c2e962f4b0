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


def lossy_lines(found: LossyLayers) -> Iterator[str]:
    """Yield which layers stay float for the outputs, their gain and price, and how to name them."""
    price = f"{found.gain.shown or found.gain}, {100 * found.more:+.0f} % bytes"
    yield _in_format("float, for accuracy", found.layers, found.count, price)
    yield Detail("  " + " ".join(as_option("exclude_nodes", exactly(name)) for name in found.layers))


def placed_lines(found: FloatLayers) -> Iterator[str]:
    """Yield which layers stay float for their time, how much faster that is, and their price."""
    if not found.layers:
        return
    assert found.ratio is not None, "there are layers"
    yield _in_format("float, for speed", found.layers, found.count)
    price = f"{found.more_bytes:+,} bytes of weights"
    yield f"  {against(found.ratio, 'with all in integers')}, {price}"


def preset_lines(found: BesidePreset, config: str) -> Iterator[str]:
    """Yield how a model for a target stands beside its preset, if that is clearly better.

    ``config``: the preset. The line says which of both is written, and how to get the other.
    """
    where = f"on the {counted(found.samples, 'sample')} used for the search"
    figures = f"{found.own:.1f} dB with {spelled('{target}')}, {found.without:.1f} dB without {where}"
    if found.is_far:
        ratio = "" if found.ratio is None else f", which is {against(found.ratio, 'the model for it')}"
        way = "the latter is written" if found.is_taken else f"{as_option('config', config)} makes the latter"
        yield f"Compared with the preset: {figures}: {way}{ratio}"
    if found.found is not None and found.found.layers:
        names = [part.name for part in found.found.layers]
        change = f"{found.found.before:.1f} -> {found.found.after:.1f} dB"
        yield _in_format("float, for accuracy", names, found.found.count, change)


def reached_lines(work: Work) -> Iterator[str]:
    """Yield how a goal was reached: the metric before and after, the layers by name, and their price.

    A goal that was allowed to be missed is said to be, where samples do not show it.
    """
    found, goal, fallback = work.record.reached, work.options.goal, work.options.fallback
    if found is None or goal is None:
        return
    where = work.held_out.where if work.held_out else ""
    if found.left_out:
        yield f"Left out of the target: {some_names(found.left_out)}, fed back as {_kind(goal)}"
    is_shown = goal.is_shown(Scored(found.after, found.error))
    target = f"Target of {goal.bound}: {'' if is_shown else 'missed, '}"
    if not found.layers:
        said = goal.text(found.before, found.error)
        yield f"{target}{said} on {where}, no layer {'needs' if is_shown else 'is better in'} {fallback}"
        return
    change = f"{goal.text(found.before)} -> {goal.text(found.after, found.error)}"
    yield f"{target}{change} on {where}"
    yield _in_format(fallback, [part.name for part in found.layers], found.count)
    for part in found.layers:
        others = f" with {', '.join(part.nodes[1:])}" if part.nodes[1:] else ""
        yield Detail(f"  {part.name} ({part.op}){others}")
    more = found.bytes_after - found.bytes_before
    share = 100 * more / max(found.bytes_before, 1)
    yield f"Price: {more:+,} bytes of weights ({share:+.0f} %)"


def _in_format(what: str, names: Sequence[str], count: int, note: str = "") -> str:
    """Return which layers have a format, of how many there are; ``note``: what that brings."""
    layers = f"{len(names)} of {counted(count, 'layer')}{f' ({note})' if note else ''}"
    return f"In {what}: {layers}: {some_names(names)}"


def _kind(goal: Target) -> str:
    return "states, no answers" if goal.metric == LOST_TOP1 else "caches that the logits are made of"
