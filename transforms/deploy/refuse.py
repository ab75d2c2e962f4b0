"""Refusals of models that break the rules of a deployment target."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_graphsurgeon as gs

from transforms.deploy.check_target import check_target, free_inputs
from transforms.scheme.targets import Target


def refuse_broken(graph: gs.Graph, row: Target) -> None:
    """Raise ValueError for the first rule of a target that a model breaks, with the number of others."""
    _refuse(check_target(graph, row), row)


def refuse_free(graph: gs.Graph, row: Target) -> None:
    """Raise ValueError for inputs with free dimensions, if the target takes fixed shapes alone."""
    _refuse(list(free_inputs(graph, row)), row)


def _refuse(broken: Sequence[str], row: Target) -> None:
    if broken:
        rest = f", and {len(broken) - 1} more" if len(broken) > 1 else ""
        raise ValueError(f"target '{row.name}': {broken[0]}{rest}")
