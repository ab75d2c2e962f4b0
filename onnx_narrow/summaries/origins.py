"""Where the loss of a quantized model begins, in sentences, and what helps, as commands."""

from __future__ import annotations

import math
from collections.abc import Iterator

from onnx_narrow.summaries.advice import helps
from onnx_narrow.summaries.made import Made
from onnx_narrow.summaries.words import figure
from transforms.graph.some_names import counted
from transforms.origins.loss_origins import LossOrigins

_MOST_NAMED = 12
"""Layers that are named with their causes; commands name all that carry half of the error."""

_LEADING = 3
"""Layers that are named first where none makes most of the loss."""

_FEW = 3
"""One of so many layers, or fewer, are few."""


def headline(origins: LossOrigins) -> str:
    """Return the first sentence of a report."""
    main = origins.main
    if not main.named:
        return f"Nothing is lost: output '{main.name}' is as in the float model."
    count = len(main.named)
    those = "this layer makes" if count == 1 else f"these {count} layers make"
    them = "it" if count == 1 else "them"
    pooled = f"SQNR of {origins.samples} samples pooled" if origins.samples > 1 else "SQNR"
    return (
        f"{_begins(origins)}; {those} {100 * main.share:.0f} % of the error of output '{main.name}'. "
        f"{pooled}: {decibels(main.sqnr)} as it is, {decibels(main.without)} with "
        f"{them} in float, {decibels(main.others)} with all others in float instead."
    )


def _begins(origins: LossOrigins) -> str:
    """Return where the loss begins, or that it does nowhere."""
    main, first, every = origins.main, origins.first(), len(origins.layers)
    count = len(main.named)
    if first is not None:
        share = "" if count == 1 else f", with {100 * first.shares[main.name]:.0f} % of it"
        return f"Loss begins at '{first.part.name}' ({first.part.op}){share}"
    if count > max(_MOST_NAMED, every // _FEW):
        return f"The loss is spread over {count} of {every} layers"
    leading = [origins.layers[place] for place in main.named[:_LEADING]]
    shares = (f"'{one.part.name}' with {100 * one.shares[main.name]:.0f} %" for one in leading)
    return f"The loss is spread over {count} of {every} layers, first {', '.join(shares)}"


def lines(origins: LossOrigins, made: Made) -> Iterator[str]:
    """Yield the report in lines: where the loss begins, the layers with their causes, what helps."""
    yield headline(origins)
    main = origins.main
    for cause, places in by_cause(origins):
        shares = [origins.layers[place].shares[main.name] for place in places]
        ends = [f": {cause}" if cause else "" for _ in places]
        if len(places) > 1:
            count = counted(len(places), "layer")
            yield f"  {100 * sum(shares):4.1f} %  {count}: {cause or 'no single cause'}"
            ends = ["" for _ in places]
        indent = "  " * (1 + (len(places) > 1))
        for place, share, end in zip(places, shares, ends, strict=True):
            part = origins.layers[place].part
            yield f"{indent}{100 * share:4.1f} %  {part.name} ({part.op}){end}"
    if len(main.named) > _MOST_NAMED:
        yield f"  and {counted(len(main.named) - _MOST_NAMED, 'other')}"
    yield from suspects(origins)
    for what, command in helps(origins, made):
        yield f"  {what}: {command}"


def by_cause(origins: LossOrigins) -> Iterator[tuple[str, list[int]]]:
    """Yield each cause in words, with the layers that are named for it, those of most error first."""
    found: dict[str, list[int]] = {}
    for place in origins.main.named[:_MOST_NAMED]:
        cause = origins.causes[place].words if place in origins.causes else ""
        found.setdefault(cause, []).append(place)
    yield from found.items()


def suspects(origins: LossOrigins) -> Iterator[str]:
    """Yield a line for each input whose samples look preprocessed in another way than in calibration."""
    for one in origins.inputs:
        if one.is_suspect:
            yield (
                f"Input '{one.name}': samples reach from {one.low:.4g} to {one.high:.4g}, but the quantized "
                f"model was made for {one.grid_low:.4g} to {one.grid_high:.4g}: preprocessed in another way?"
            )


def decibels(value: float) -> str:
    """Return an SQNR in words."""
    return "no error" if value == math.inf else f"{figure(value)} dB"
