"""The loop that takes the rows of a recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TypeVar

from transforms.conversion import rows
from transforms.conversion.rows import Row, Step, as_rows, check_order, run_rows
from transforms.pipelines.work import Work
from transforms.run.run_each import products_on_one_thread
from transforms.scheme.scheme_values import OFF

Steps = Sequence[Row[Work] | Step[Work]]
"""A recipe: rows, and plain functions of a work, which are entered in each job."""

DECIDE, BUILD, USE_FULL_RANGE = "decide", "build", "use_full_range"
"""Rows without which rules decide, or that build a model."""

_NOTHING: Mapping[str, str] = MappingProxyType({})

W = TypeVar("W", bound=Work)


@products_on_one_thread()
def run(work: W, steps: Steps, needed: Mapping[str, str] = _NOTHING) -> W:
    """Enter the rows of a recipe; the record says which were entered, and for how many seconds each.

    Without a row ``decide``, rules decide whatever the scheme leaves open; without ``use_full_range``, no
    tensor is shifted. ``needed``: fields of the work that are read afterwards, with the row that sets each.
    Raises ValueError for a
    row before one that it needs, and what a row raises; the graph is then in an undefined state.
    """
    recipe = as_rows(steps)
    check_order(work, recipe, needed)
    names = [row.name for row in recipe]
    if DECIDE not in names:
        work.close()
    if BUILD in names and USE_FULL_RANGE not in names:
        work.asked, work.scheme = (scheme.with_(full_range=OFF) for scheme in (work.asked, work.scheme))
    work.options = replace(work.options, recipe=recipe)
    run_rows(work, recipe)
    return work


def phases_of(work: Work, steps: Steps) -> tuple[str, ...]:
    """Return the phases that a work which has not begun will show, in order."""
    return rows.phases_of(work, as_rows(steps))
