"""The weights of a model and their grids, as ``tools.inspect --grids`` lists them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from transforms.graph.found_grids import FoundWeight, share_lines


def lines(weights: Sequence[FoundWeight]) -> Iterator[str]:
    """Yield a line for each weight on a grid, all or in part, and lines on all of them together."""
    on_grids = [weight for weight in weights if weight.grid is not None]
    if not on_grids:
        yield f"On a grid already: none of {len(weights)} weights"
    for weight in on_grids:
        yield f"{weight.name}: {weight.words}"
    yield from share_lines(weights)


def as_json(weights: Sequence[FoundWeight]) -> dict[str, Any]:
    """Return the weights and their grids for a program to read."""
    return {"weights": {weight.name: {"elements": weight.size, "grid": _grid(weight)} for weight in weights}}


def _grid(weight: FoundWeight) -> dict[str, Any] | None:
    grid = weight.grid
    if grid is None:
        return None
    return {
        "element": grid.kind.element or "integer",
        "bits": grid.bits,
        "has_minimum": grid.kind.has_minimum,
        "rounded_to": grid.kind.rounding,
        "axis": grid.axis,
        "block_size": grid.block,
        "is_adjacent": grid.order is None,
        "share": grid.share,
    }
