"""The summary of a quantized model compared with its float model, the most important lines first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from onnx_narrow.summaries.results import cache_line, view_lines
from onnx_narrow.summaries.timing import cost_lines
from onnx_narrow.summaries.unequal_results import unequal_lines
from transforms.compare.compare_models import ModelComparison
from transforms.compare.compare_results import summarize

_WORST = 3
"""Layers that are named."""


def lines(comparison: ModelComparison, origins: Iterable[str]) -> Iterator[str]:
    """Yield the differences and the costs of both models; ``origins``: lines on where the loss begins."""
    yield f"Compared {len(comparison.layers)} tensors on {comparison.samples} samples."
    for output, sqnr in comparison.output_sqnr:
        yield f"  {sqnr:6.1f} dB  output {output}{_of_samples(comparison, output)}"
    yield from cache_line(comparison.results, comparison.view)
    yield from view_lines(comparison.view)
    yield from unequal_lines(comparison.results)
    for layer in comparison.worst[:_WORST]:
        match = layer.match
        yield f"  {layer.total.sqnr():6.1f} dB  {match.name} ({match.op}, {match.format}), samples pooled"
    yield from origins
    yield from cost_lines(comparison.costs)


def _of_samples(comparison: ModelComparison, output: str) -> str:
    """Return the SQNR of several samples and that of the worst one, in words."""
    if comparison.samples == 1:
        return ""
    worst = summarize([one for one in comparison.counted if one.output == output]).worst["sqnr"]
    pooled = f", {comparison.samples} samples pooled"
    return pooled + ("" if worst is None else f"; {worst:.1f} dB of the worst sample")
