"""The summary of a model, and of the differences between two, as ``tools.inspect`` prints them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from onnx_narrow.summaries.operator_library import INSIDE, OURS, named
from onnx_narrow.summaries.words import counts
from transforms.compare.inspect_model import OWN, PACKED, Inspection
from transforms.compare.model_differences import Differences
from transforms.compare.number_formats import Row
from transforms.graph.some_names import counted

_MOST_NAMES = 3  # of tensors that differ


_PLAIN = (
    *("files", "bytes", "ir_version", "opsets", "producer", "made_by", "scheme"),
    *("inputs", "outputs", "bodies"),
)
"""Fields that programs get as they are."""


def lines(model: Inspection) -> Iterator[str]:
    """Yield the lines that describe a model."""
    maker = " ".join(filter(None, (model.made_by, model.scheme)))
    by = f", made by {maker or model.producer}" if maker or model.producer else ""
    versions = ", ".join(f"{domain} {version}" for domain, version in model.opsets.items())
    yield f"{model.path}: {model.bytes:,} bytes, IR version {model.ir_version}{by}"
    yield f"Operator sets: {versions}"
    yield from _files(model)
    for title, values in (("Inputs", model.inputs), ("Outputs", model.outputs)):
        yield f"{title}: {', '.join(f'{name} {kind}' for name, kind in values.items()) or 'none'}"
    for domain, operators in model.operators.items():
        yield f"Operators of {domain}: {counts(operators)}"
    if model.bodies:
        yield f"Bodies of If, Loop and Scan: {model.bodies}"
    for kind, (count, size) in model.functions.items():
        yield f"Functions, {kind}: {count}, {size:,} bytes"
    yield from _table("Weights", model.weights)
    if model.weights:
        yield f"Bits per weight: {model.weight_bits:.2f}"
    for name, count in model.rounded_weights.items():
        yield f"Rounded to {name} by nodes in every run: {counted(count, 'constant')}"
    unknown = "" if model.are_sizes_known else ", sizes that are not known count as 1"
    yield from _table(f"Computed tensors{unknown}", model.activations)
    for provider, reason in model.runs.items():
        yield f"Runs on ONNX Runtime {provider}: {'yes' if reason is None else f'no ({reason})'}"
    yield f"Operator library needed: {needed(model)}"


def needed(inspection: Inspection) -> str:
    """Return which libraries a model needs, in words."""
    foreign = [domain for domain in inspection.libraries if domain not in OURS]
    inside = f" ({INSIDE}; faster with ours)" if OWN in inspection.functions else ""
    decoded = f" ({INSIDE})" if PACKED in inspection.functions and not inside else ""
    return named(foreign, ours=len(foreign) < len(inspection.libraries)) or f"none{inside or decoded}"


def against(first: Inspection, second: Inspection, differences: Differences) -> Iterator[str]:
    """Yield how a second model differs from the first."""
    ratio = second.bytes / first.bytes
    yield f"{first.path} -> {second.path}: {first.bytes:,} -> {second.bytes:,} bytes ({ratio:.2f}x)"
    yield f"Bits per weight: {first.weight_bits:.2f} -> {second.weight_bits:.2f}"
    for domain in sorted(first.opsets.keys() | second.opsets.keys()):
        before, after = first.opsets.get(domain, "none"), second.opsets.get(domain, "none")
        if before != after:
            yield f"Operator set {domain}: {before} -> {after}"
    if first.ir_version != second.ir_version:
        yield f"IR version: {first.ir_version} -> {second.ir_version}"
    if differences.operators:
        changes = (
            f"{name.removeprefix('ai.onnx::')} {count:+d}" for name, count in differences.operators.items()
        )
        yield f"Operators: {', '.join(changes)}"
    yield from _formats("Weights", first.weights, second.weights)
    yield from _formats("Computed tensors", first.activations, second.activations)
    constants = {
        "with the same bytes": differences.same,
        "with others": differences.changed,
        f"only in {first.path.name}": differences.only_here,
        f"only in {second.path.name}": differences.only_there,
        "whose data are missing": differences.missing,
    }
    for words, names in constants.items():
        if names:
            yield f"Constants {words}: {len(names)}{_some(names) if words != 'with the same bytes' else ''}"
    yield f"Operator library needed: {needed(first)} -> {needed(second)}"


def as_json(model: Inspection) -> dict[str, Any]:
    """Return what a model is for a program to read."""
    return {
        "file": str(model.path),
        **{name: getattr(model, name) for name in _PLAIN},
        "operators": {domain: dict(ops.most_common()) for domain, ops in model.operators.items()},
        "functions": {kind: {"count": n, "bytes": size} for kind, (n, size) in model.functions.items()},
        "weights": {name: _row(row) for name, row in model.weights.items()},
        "bits_per_weight": round(model.weight_bits, 4),
        "rounded_weights": dict(model.rounded_weights),
        "computed_tensors": {name: _row(row) for name, row in model.activations.items()},
        "sizes_known": model.are_sizes_known,
        "runs": {provider: reason is None for provider, reason in model.runs.items()},
        "why_not": {provider: reason for provider, reason in model.runs.items() if reason},
        "library": needed(model),
    }


def _row(row: Row) -> dict[str, float]:
    return {"tensors": row.tensors, "elements": row.elements, "bytes": row.bytes, "bits": round(row.bits, 4)}


def _files(inspection: Inspection) -> Iterator[str]:
    for name, size in inspection.files.items():
        if name != inspection.path.name:
            state = f" {inspection.unread[name]}" if size is None else f", {size:,} bytes"
            yield f"External data: '{name}'{state}"


def _table(title: str, rows: Mapping[str, Row]) -> Iterator[str]:
    if not rows:
        yield f"{title}: none"
        return
    yield f"{title}:"
    yield f"  {'format':<24}{'tensors':>9}{'elements':>14}{'bytes':>14}{'bits':>8}"
    for name, row in rows.items():
        yield f"  {name:<24}{row.tensors:>9,}{row.elements:>14,}{row.bytes:>14,}{row.bits:>8.2f}"


def _formats(title: str, here: Mapping[str, Row], there: Mapping[str, Row]) -> Iterator[str]:
    for name in dict.fromkeys([*here, *there]):
        before, after = here.get(name, Row()), there.get(name, Row())
        if before != after:
            tensors = f"{before.tensors:,} -> {after.tensors:,} tensors"
            yield f"{title}, {name}: {tensors}, {before.bytes:,} -> {after.bytes:,} bytes"


def _some(names: list[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:_MOST_NAMES])
    return f": {shown}{', ...' if len(names) > _MOST_NAMES else ''}"
