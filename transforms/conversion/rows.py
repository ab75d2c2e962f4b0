"""Recipes: rows of changes to a model, each entered where its operators or options occur."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import onnx_graphsurgeon as gs

from transforms import features
from transforms.conversion.record import Record
from transforms.graph import walk


class HasGraph(Protocol):
    """What the rows of a recipe work on: a graph that changes, and the record of the changes."""

    graph: gs.Graph

    @property
    def record(self) -> Record:
        """The record."""


W = TypeVar("W", bound=HasGraph, contravariant=True)
V = TypeVar("V", bound=HasGraph)

Step = Callable[[W], int | None]
"""Reads and changes a work. Rewrites return how many changes they made, others None."""


def always(work: object) -> bool:
    """Return True: the row is entered in every job."""
    return True


def shows(*phases: str) -> Callable[[object], tuple[str, ...]]:
    """Return a function that returns the phases of a row, for any work."""
    return lambda work: phases


_shows_none = shows()


@dataclass(frozen=True, eq=False)
class Row(Generic[W]):
    """A step of a recipe, and the conditions under which it is entered.

    Attributes
    ----------
    run : function
        Reads and changes the work. Rewrites return how many changes they made.
    operators : set of str
        The row is entered only where the graph has a node of one of these types; empty for any graph.
    when : function
        The row is entered only for a work for which this is true. It may use what is known before the first
        row: the scheme, the samples and the options.
    needs : mapping of str to str
        Fields of the work that the row reads, with the row that sets each.
    gives : tuple of str
        Fields that it sets instead of another row.
    after : tuple of str
        Rows that come before this one if a recipe has them.
    phases : function
        The phases that the row shows in the progress bar, for a work that has not begun.
    line : str
        The noun that follows the count in the summary.
    """

    run: Step[W]
    operators: Set[str] = frozenset()
    when: Callable[[W], bool] = always
    needs: Mapping[str, str] = field(default_factory=dict)
    gives: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    phases: Callable[[W], Iterable[str]] = _shows_none
    line: str = ""

    @property
    def name(self) -> str:
        """The name of the function."""
        return str(getattr(self.run, "__name__", type(self.run).__name__))


def as_rows(steps: Iterable[Row[V] | Step[V]]) -> tuple[Row[V], ...]:
    """Return steps as rows: a plain function is entered in every job, and needs nothing."""
    return tuple(step if isinstance(step, Row) else Row(step) for step in steps)


def phases_of(work: V, rows: Iterable[Row[V]]) -> tuple[str, ...]:
    """Return the phases that a work will show, in order."""
    return tuple(dict.fromkeys(phase for row in rows if row.when(work) for phase in row.phases(work)))


def check_order(work: HasGraph, rows: Sequence[Row[Any]], needed: Mapping[str, str]) -> None:
    """Raise ValueError for a row before one that it needs, which the message names.

    ``needed``: fields that are read after the last row, with the row that sets each.
    """
    names = [row.name for row in rows]
    provided: set[str] = set()

    def _check(needs: Mapping[str, str], before: Sequence[str], reader: str) -> None:
        for name, giver in needs.items():
            if giver not in before and name not in provided and not _has(work, name):
                raise ValueError(f"{reader} needs {name}: step '{giver}' comes first")

    for place, row in enumerate(rows):
        _check(row.needs, names[:place], f"step '{row.name}'")
        for other in row.after:
            if other in names[place:] and other not in names[:place]:
                raise ValueError(f"step '{row.name}' comes after step '{other}'")
        provided.update(row.gives)
    _check(needed, names, "the result")


def _has(work: HasGraph, name: str) -> bool:
    value = operator.attrgetter(name)(work)
    return bool(value.nodes or value.outputs) if isinstance(value, gs.Graph) else value is not None


def run_rows(work: V, rows: Iterable[Row[V]]) -> None:
    """Run the rows whose operators and options occur, one after another.

    The record lists the rows that were entered, their seconds, and their counts. Raises what a row raises;
    the graph is then in an undefined state.
    """
    types: frozenset[str] | None = None
    for row in rows:
        if not row.when(work):
            continue
        if row.operators:
            types = frozenset(node.op for node in walk.nodes(work.graph)) if types is None else types
            if row.operators.isdisjoint(types):
                continue
        start = time.perf_counter()
        count = row.run(work)
        if count is None or count:
            types = None
        if count is not None and row.line:
            work.record.changes[row.line] += count
        work.record.steps.append((row.name, time.perf_counter() - start))


def features_of(graph: gs.Graph) -> tuple[features.Feature, ...]:
    """Return the features that are open in a graph."""
    return features.open_in(node.op for node in walk.nodes(graph))


def run_feature_rows(work: HasGraph, opened: Iterable[features.Feature], place: str) -> None:
    """Run the rows that features have at a place of the recipes."""
    for feature in opened:
        run_rows(work, feature.rows.get(place, ()))
