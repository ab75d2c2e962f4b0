"""The summary of automatic mixed precision."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from onnx_narrow.summaries.words import Detail, aligned, shortened
from transforms.graph.some_names import counted
from transforms.precision.mix import MixedPrecision
from transforms.search.output_metrics import METRICS, in_words


def lines(mixed: MixedPrecision) -> Iterator[str]:
    """Yield a table of layers with formats, sensitivities and decisions, and the overall result."""
    if mixed.sensitivity is not None:
        yield from _table(mixed) if mixed.is_analysis else map(Detail, _table(mixed))
    yield from mixed.notes
    if mixed.is_analysis:
        return
    counts = Counter(rule.label for rule in mixed.choices.values())
    moved = ", ".join(f"{count} to {label}" for label, count in counts.items()) or "none"
    yield f"Moved {len(mixed.choices)} of {mixed.count} layers: {moved}; the others stay {mixed.plain.label}"
    if mixed.assignment is None:
        yield "No target and no data: layers were moved without measuring"
        return
    yield from _sizes(mixed)
    assignment = mixed.assignment
    target = f", the target is {assignment.target.bound}" if assignment.target else ", no target"
    values = f"{in_words(mixed.metric, assignment.baseline)} -> {in_words(mixed.metric, assignment.value)}"
    tried = f"{counted(len(assignment.steps), 'model')} tried on {counted(mixed.samples, 'sample')}"
    yield f"{mixed.metric}: {values}{target}; {tried}"


def _table(mixed: MixedPrecision) -> Iterator[str]:
    assert mixed.sensitivity is not None
    rows = [("layer", "operator", "formats", *mixed.labels, "decision")]
    values = {(damage.layer, damage.label): damage.value for damage in mixed.sensitivity.damages}
    order = sorted(mixed.candidates, key=lambda layer: -_worst(mixed, layer.name))
    for layer in order:
        rule = mixed.choices.get(layer.name, mixed.plain)
        sensitivities = [f"{values[layer.name, label]:.6g}" for label in mixed.labels]
        rows.append(
            (shortened(layer.name), layer.op, rule.label, *sensitivities, _decision(mixed, layer.name))
        )
    if mixed.is_analysis:
        rows = [(*cells[:2], *cells[3:-1]) for cells in rows]
    unit = METRICS[mixed.sensitivity.metric].unit if mixed.sensitivity.metric in METRICS else ""
    quantity = f"{mixed.sensitivity.metric} {unit}".rstrip()
    samples = counted(mixed.sensitivity.samples, "sample")
    yield f"Sensitivity: {quantity} with that layer alone in a format, else float, on {samples}"
    yield from aligned(rows)


def _worst(mixed: MixedPrecision, name: str) -> float:
    assert mixed.sensitivity is not None
    return max(mixed.sensitivity.harm_of(name, label) for label in mixed.labels)


def _decision(mixed: MixedPrecision, name: str) -> str:
    if name in mixed.choices:
        return "moved"
    tried = mixed.assignment is not None and any(
        len(step.moved) == 1 and step.moved[0][0] == name for step in mixed.assignment.steps
    )
    return "kept: breaks the target" if tried else "kept"


def _sizes(mixed: MixedPrecision) -> Iterator[str]:
    assert mixed.assignment is not None
    before, after = mixed.assignment.baseline_size, mixed.assignment.size
    weights = sum(candidate.weights for candidate in mixed.candidates)
    operands = weights + sum(candidate.activations for candidate in mixed.candidates)
    if weights:
        yield (
            f"Bits per weight: {before.weight / weights:.4g} -> {after.weight / weights:.4g};"
            f" weights {_bytes(before.weight)} -> {_bytes(after.weight)} bytes"
        )
    yield f"Bits per operand: {before.total / operands:.4g} -> {after.total / operands:.4g}"


def _bytes(bits: float) -> str:
    return f"{round(bits / 8):,}"
