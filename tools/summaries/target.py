"""What a model's target makes of it, in words."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_graphsurgeon as gs

from transforms.deploy.check_target import check_target, free_inputs
from transforms.deploy.low_precision import low_precision
from transforms.scheme.targets import Target

SATURATES = (
    "This processor has no VNNI: sums of two products of uint8 and int8 saturate at 16 bits, which large "
    "weights beside large activations reach; compare outputs with tools.evaluate"
)
"""What ONNX Runtime's kernels for older x86 processors do to models of uint8 activations and int8 weights."""


def refuse_broken(graph: gs.Graph, row: Target) -> None:
    """Raise ValueError for the first rule of a target that a model breaks, with the number of others."""
    _refuse(check_target(graph, row), row)


def refuse_free(graph: gs.Graph, row: Target) -> None:
    """Raise ValueError for inputs with free dimensions, if the target takes fixed shapes alone."""
    _refuse(list(free_inputs(graph, row)), row)


def _refuse(broken: list[str], row: Target) -> None:
    if broken:
        rest = f", and {len(broken) - 1} more" if len(broken) > 1 else ""
        raise ValueError(f"target '{row.name}': {broken[0]}{rest}")


def target_lines(graph: gs.Graph, row: Target) -> Iterator[str]:
    """Yield which nodes the target computes in low precision, which not and why, and what that is worth."""
    yield f"For {row.runtime}:"
    for line in low_precision(graph, row).lines():
        yield f"  {line}"
    yield f"  Speed: {row.speed}"
    yield f"  Verified: {row.verified}"
