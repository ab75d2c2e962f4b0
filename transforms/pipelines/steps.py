"""Run the rows of a recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TypeVar

from transforms.conversion import rows
from transforms.conversion.rows import Row, Step, as_rows, check_order, run_rows
from transforms.pipelines.work import Work
from transforms.run.run_each import products_on_one_thread

Steps = Sequence[Row[Work] | Step[Work]]
"""A recipe: rows, and plain functions of a work, which every job enters."""

DECIDE = "decide"
"""The row without which rules decide."""

_NOTHING: Mapping[str, str] = MappingProxyType({})

W = TypeVar("W", bound=Work)


@products_on_one_thread()
def run(work: W, steps: Steps, needed: Mapping[str, str] = _NOTHING) -> W:
    """Enter the rows of a recipe in order; the record lists the entered rows with their seconds.

    Without a row ``decide``, rules set all 'auto' keys of the scheme. ``needed``: fields of the work that are
    read afterwards, with the row that sets each. Raises ValueError for a row that stands before one that it
    needs, and as the rows do; the graph is then in an undefined state.
    """
    recipe = as_rows(steps)
    check_order(work, recipe, needed)
    names = [row.name for row in recipe]
    if DECIDE not in names:
        work.close()
    work.options = replace(work.options, recipe=recipe)
    run_rows(work, recipe)
    return work


def phases_of(work: Work, steps: Steps) -> tuple[str, ...]:
    """Return the phases that a new work will show, in order."""
    return rows.phases_of(work, as_rows(steps))
