"""What ``tools.inspect --grids`` says of the weights of a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from transforms.graph.found_grids import FoundWeight, share_lines


def lines(found: Sequence[FoundWeight]) -> Iterator[str]:
    """Yield a line for each weight on a grid, all or in part, and lines on all of them together."""
    on_grids = [one for one in found if one.grid is not None]
    if not on_grids:
        yield f"On a grid already: none of {len(found)} weights"
    for one in on_grids:
        yield f"{one.name}: {one.words}"
    yield from share_lines(found)


def as_json(found: Sequence[FoundWeight]) -> dict[str, Any]:
    """Return the weights and their grids for a program to read."""
    return {"weights": {one.name: {"elements": one.size, "grid": _grid(one)} for one in found}}


def _grid(found: FoundWeight) -> dict[str, Any] | None:
    grid = found.grid
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
