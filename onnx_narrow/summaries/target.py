"""What a model's target makes of it, in words."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_graphsurgeon as gs

from onnx_narrow.summaries.words import Detail
from transforms.deploy.low_precision import low_precision
from transforms.scheme.targets import Target

_SHOWN = ("For ", "  Speed: ")
"""Beginnings of the lines on a target that the summary of a job shows to all."""


def brief_lines(graph: gs.Graph, row: Target) -> Iterator[str]:
    """Yield the same for the summary of a job: most of it for those who ask for details."""
    for line in target_lines(graph, row):
        yield line if line.startswith(_SHOWN) else Detail(line)


def target_lines(graph: gs.Graph, row: Target) -> Iterator[str]:
    """Yield which nodes the target computes in low precision, which not and why, and what that is worth."""
    count, *reasons = low_precision(graph, row).lines()
    yield f"For {row.runtime}: {count}"
    for line in reasons:
        yield f"  {line}"
    yield f"  Speed: {row.speed}"
    yield f"  Rules verified: {row.verified}"
