"""The summary of fine-tuning: each layer, and the outputs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from onnx_narrow.summaries import running
from onnx_narrow.summaries.words import Detail, Sizes, written
from transforms.files.spelling import spelled
from transforms.finetune.tuned import TunedModel
from transforms.graph.some_names import counted

_FITTED = (
    "Weights were rounded by outputs on samples when the model was quantized, and look better on these than "
    "they are: a preset with _ADAQUANT at its end tunes them instead"
)
_LEAST_POWER = 1e-10
"""Errors below this multiple of the rounding noise count as zero, for powers are what
sums of squares are larger by than those of the means. A single row has no power at all."""


def lines(done: TunedModel, samples: int, sizes: Sizes, *, fitted: bool = False) -> Iterator[str]:
    """Yield the summary: layers, outputs, and the file; ``fitted``: whether quantizing rounded by outputs."""
    yield from tuning_lines(done, samples)
    if fitted and done.attempt is None:
        yield _FITTED
    yield written(sizes)


def poor(done: TunedModel) -> Iterator[str]:
    """Yield a warning if the outputs on held-out samples are poor after tuning."""
    if math.isfinite(done.after) and running.is_poor(done.after):
        yield running.poor(running.figure_of(done.after, of_tokens=done.of_tokens), "held-out samples")


def broken_limit(done: TunedModel, limit: int | None) -> str | None:
    """Return the line on a limit on memory that cannot be kept, or None."""
    needed = done.walk.largest_step
    if limit is None or needed <= limit:
        return None
    return (
        f"Memory limit: {limit:,} bytes cannot hold, one sample has tensors of {needed:,} bytes in one step"
    )


def tuning_lines(done: TunedModel, samples: int) -> Iterator[str]:
    """Yield what became of each layer, those left alone, and the outputs."""
    width = max(len(layer.name) for layer in done.walk.layers)
    kept_count = 0
    for number, layer in enumerate(done.walk.layers):
        is_kept = layer.is_kept and done.attempt is not None and number not in done.put_back
        kept_count += is_kept
        outcome = layer.what if is_kept else "put back" if number in done.put_back else "not changed"
        change = in_words(layer.power, layer.before, layer.after)
        yield Detail(f"{layer.name:<{width}}  {layer.op}  {change}  {outcome}  {layer.seconds:.2f} s")
    reasons = Counter((layer.op, layer.reason) for layer in done.walk.left_alone)
    for (op, reason), count in reasons.items():
        yield Detail(f"Skipped: {count} {op}: {reason}")
    yield f"Tuned: {kept_count} of {len(done.walk.layers)} layers on {samples} samples"
    if done.spread:
        free = spelled("{full_range:free}")
        added = f"; {done.added} Pads and Subs added, which {free} leaves out" if done.added else ""
        yield f"Full range of int8 used: {counted(done.spread, 'tensor')}{added}"
    shares = [share for _, share in _shares(done)]
    if shares and done.attempt is None:
        words = "of the layers' errors remain with float weights"
        yield f"Error of inputs: {min(shares):.0%} to {max(shares):.0%} {words}"
    yield from done.notes
    yield f"Outputs on held-out samples: {_of_outputs(done)}"


def reasons(done: TunedModel) -> Iterator[str]:
    """Yield for each layer the share of its error that other weights cannot remove, where it is known."""
    for name, share in _shares(done):
        yield f"{name}: {share:.0%} of its error comes from its inputs: float weights leave it, too"


def _shares(done: TunedModel) -> Iterator[tuple[str, float]]:
    """Yield the layers that have an error, with the share of it that remains with float weights."""
    for layer in done.walk.layers:
        if layer.before > 0 and math.isfinite(layer.before) and math.isfinite(layer.of_inputs):
            yield layer.name, min(max(layer.of_inputs, 0.0) / layer.before, 1.0)


def in_words(power: float, *errors: float) -> str:
    """Return squared errors of a layer one after another: in dB, as numbers where the power is unusable.

    ``power``: the squares of the right outputs, around their means.
    """
    ratios = [_decibels(power, error) for error in errors]
    if None not in ratios:
        return " -> ".join(map(str, ratios)) + " dB"
    numbers = " -> ".join(f"{error:.3g}" for error in errors)
    is_known = all(map(math.isfinite, (power, *errors)))
    return (
        f"squared error {numbers}{', the output is almost constant on held-out samples' if is_known else ''}"
    )


def _of_outputs(done: TunedModel) -> str:
    errors = (done.before,) if done.attempt is None else (done.before, done.after)
    if done.of_tokens:
        words = f"KL divergence of {' -> '.join(f'{error:.3g}' for error in errors)} nats a token"
        return f"{words}{_what_blocked(done)}"
    ratios = [_decibels(1.0, error) or "none" for error in errors]
    reason = "an output of the float model is zero there, or one is not finite"
    words = f"{' -> '.join(ratios)} dB" + (f" (none: {reason})" if "none" in ratios else "")
    return f"{words}{_what_blocked(done)}"


def _what_blocked(done: TunedModel) -> str:
    """Return the gain with its standard error, and why not all layers that became better are kept."""
    gain = "" if done.gain is None or not math.isfinite(done.gain.error) else f"{done.gain}"
    if done.attempt is None:
        why = f"tuned weights would change that by {gain}" if gain else "no improvement"
        regressed = f", output '{done.blocked}' regresses" if done.blocked else ""
        return f"; model not changed: {why}{regressed}"
    change = f", {gain}" if gain else ""
    layers = counted(len(done.put_back), "layer")
    return f"{change}; put back for output '{done.blocked}': {layers}" if done.put_back else change


def _decibels(power: float, error: float) -> str | None:
    """Return a ratio in dB, or None if it is undefined; errors of about 0 may be negative by rounding."""
    if not (math.isfinite(power) and math.isfinite(error)):
        return None
    if error <= 0:
        return "inf"
    return f"{10 * math.log10(power / error):.2f}" if power > _LEAST_POWER * error else None
