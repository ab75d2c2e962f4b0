"""A comparison of results as JSON and CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnx_narrow.api.compared_folders import ComparedFolders
    from transforms.compare.compare_results import Comparison


def by_output(comparisons: Sequence[Comparison]) -> dict[str, list[Comparison]]:
    """Return the comparisons of each output."""
    groups: dict[str, list[Comparison]] = {}
    for comparison in comparisons:
        groups.setdefault(comparison.output, []).append(comparison)
    return groups


def full_name(comparison: Comparison) -> str:
    """Return the name of a file with the folder of its output, if there are several."""
    return f"{comparison.output}/{comparison.name}" if comparison.output else comparison.name


def figures(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """Return counts, and mean and worst values."""
    from transforms.compare.compare_results import summarize

    summary = summarize(comparisons)
    return {
        "files": len(comparisons),
        "identical_files": sum(comparison.is_identical for comparison in comparisons),
        "non_finite_files": sum(not comparison.is_finite for comparison in comparisons),
        "mean": summary.mean,
        "worst": summary.worst,
    }


def as_json(compared: ComparedFolders) -> dict[str, Any]:
    """Return all figures as values that strict JSON can represent."""
    report, outputs = figures(compared.counted), by_output(compared.comparisons)
    report["outputs"] = {output: figures(members) for output, members in outputs.items()}
    for name in ("top1", "language", "greedy"):
        section = getattr(compared, name)
        report[name] = vars(section) if section else None
    report["per_file"] = [vars(comparison) for comparison in compared.comparisons]
    report["steps"] = compared.steps
    plain: dict[str, Any] = _plain(report)
    return plain


def as_csv(comparisons: Sequence[Comparison]) -> str:
    """Return a line for each file, under a line with the names of columns; nothing without files."""
    text = io.StringIO()
    rows = [{"file": full_name(comparison)} | vars(comparison) for comparison in comparisons]
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        shape = "x".join(map(str, row["shape"]))
        writer.writerow(
            {key: "" if value != value else value for key, value in row.items()} | {"shape": shape}
        )
    return text.getvalue()


def _plain(value: Any) -> Any:
    """Return a value that strict JSON can represent: infinities as strings, NaN as null."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value
