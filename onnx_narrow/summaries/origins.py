"""Where the loss of a quantized model begins, in sentences, and remedies, as commands."""

from __future__ import annotations

import math
from collections.abc import Iterator

from onnx_narrow.summaries.advice import helps
from onnx_narrow.summaries.model_history import ModelHistory
from onnx_narrow.summaries.words import figure
from transforms.graph.some_names import counted
from transforms.origins.loss_origins import LossOrigins

_MOST_NAMED = 12
"""Layers that are named with their causes; commands name all that carry half of the error."""

_LEADING = 3
"""Layers that are named first where none makes most of the loss."""

_FEW = 3
"""A third of the layers, or fewer, are few."""


def headline(origins: LossOrigins) -> str:
    """Return the first sentence of a report."""
    main = origins.main
    if not main.named:
        return f"Nothing is lost: output '{main.name}' is as in the float model."
    count = len(main.named)
    subject = "this layer makes" if count == 1 else f"these {count} layers make"
    pronoun = "it" if count == 1 else "them"
    pooled = f"SQNR of {origins.samples} samples pooled" if origins.samples > 1 else "SQNR"
    return (
        f"{_begins(origins)}; {subject} {100 * main.share:.0f} % of the error of output '{main.name}'. "
        f"{pooled}: {decibels(main.sqnr)} as it is, {decibels(main.without)} with "
        f"{pronoun} in float, {decibels(main.others)} with all others in float instead."
    )


def _begins(origins: LossOrigins) -> str:
    """Return where the loss begins, or that it is spread over many layers."""
    main, first, every = origins.main, origins.first(), len(origins.layers)
    count = len(main.named)
    if first is not None:
        share = "" if count == 1 else f", with {100 * first.shares[main.name]:.0f} % of it"
        return f"Loss begins at '{first.part.name}' ({first.part.op}){share}"
    if count > max(_MOST_NAMED, every // _FEW):
        return f"The loss is spread over {count} of {every} layers"
    leading = [origins.layers[place] for place in main.named[:_LEADING]]
    shares = (f"'{layer.part.name}' with {100 * layer.shares[main.name]:.0f} %" for layer in leading)
    return f"The loss is spread over {count} of {every} layers, first {', '.join(shares)}"


def lines(origins: LossOrigins, history: ModelHistory) -> Iterator[str]:
    """Yield the report in lines: where the loss begins, the layers with their causes, and the remedies."""
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
    for remedy, call in helps(origins, history):
        yield f"  {remedy}: {call}"


def by_cause(origins: LossOrigins) -> Iterator[tuple[str, list[int]]]:
    """Yield each cause in words, with the layers that are named for it, those of most error first."""
    places_by_cause: dict[str, list[int]] = {}
    for place in origins.main.named[:_MOST_NAMED]:
        cause = origins.causes[place].words if place in origins.causes else ""
        places_by_cause.setdefault(cause, []).append(place)
    yield from places_by_cause.items()


def suspects(origins: LossOrigins) -> Iterator[str]:
    """Yield a line for each input whose samples seem to be preprocessed differently than in calibration."""
    for samples in origins.inputs:
        if samples.is_suspect:
            yield (
                f"Input '{samples.name}': samples reach from {samples.low:.4g} to {samples.high:.4g}, but "
                f"the quantized model was made for {samples.grid_low:.4g} to {samples.grid_high:.4g}: "
                "preprocessed in another way?"
            )


def decibels(value: float) -> str:
    """Return an SQNR in words."""
    return "no error" if value == math.inf else f"{figure(value)} dB"
