"""Models that differ from the one that is written in their ranges alone, which are those of other folds.

A sample that has given a range is never beyond it, so that few samples say too much of a model that they gave
the ranges of. Run through a model whose ranges are those of the other folds, each is as new as one that the
model meets later. Whatever was chosen stays chosen: it takes runs of all candidates to choose again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import onnx_graphsurgeon as gs

from transforms.calibrate.calibration import Calibration
from transforms.conversion.rows import Row, run_rows
from transforms.conversion.write_plan import FINISH
from transforms.judge.constants import FEWEST
from transforms.model.copy_graph import copy_graph
from transforms.pipelines.build import write_scheme
from transforms.pipelines.for_runtime import FOR_RUNTIME
from transforms.pipelines.in_memory import KEEP_FOUND
from transforms.pipelines.measure import weights_of
from transforms.pipelines.record import JobRecord
from transforms.pipelines.work import Work, WorkRow
from transforms.run.events import SILENT


def has_folds(work: Work) -> bool:
    """Return whether a model is what its scheme and its ranges make, and these are known of each fold.

    Not so of weights that samples have rounded or tuned, and of nodes that were left in float at the end.
    """
    record, statistics = work.record, work.statistics
    is_left = record.first is not None and record.first.kept
    is_changed = record.decisions.fitted or record.tuned or record.mixed or is_left
    return not is_changed and statistics is not None and len(statistics.folds) >= FEWEST


def folds_for_goal(work: Work, last: Callable[[], Work]) -> Callable[[int], gs.Graph] | None:
    """Return what makes the ``last`` model for each fold of the samples that judge a goal in folds.

    None where these are apart from those that gave ranges, or the model cannot be made so. One in which
    nothing has ranges is the same for all folds.
    """
    if work.held_out is None or not work.held_out.in_folds or not has_folds(work):
        return None

    def _of_fold(fold: int) -> gs.Graph:
        built = last()
        return Folds(built, built.float_form())(fold) if has_folds(built) else built.graph

    return _of_fold


class FoldError(ValueError):
    """A model with the ranges of other folds cannot be written."""


class Folds:
    """Writes the model of a work again, with the ranges of all folds but one."""

    def __init__(self, work: Work, base: gs.Graph) -> None:
        """Take the work as it is in the end, and the float model as it was quantized; both stay so."""
        self._work, self._base = work, base
        self._memory = work.base.memory or weights_of(base)

    def __call__(self, fold: int) -> gs.Graph:
        """Return the model with ranges of all folds but one; FoldError where these do not suit the scheme."""
        assert self._work.statistics is not None, "there are folds"
        try:
            return self.written(self._work.statistics.without_fold(fold))
        except ValueError as error:
            raise FoldError(str(error)) from error

    def written(self, statistics: Calibration) -> gs.Graph:
        """Return the model with the ranges of some statistics."""
        work = self._work
        other = replace(
            work,
            graph=copy_graph(self._base),
            statistics=statistics,
            judge=None,
            base=replace(work.base, memory=self._memory),
            events=SILENT,
            record=JobRecord(),
        )
        other.scheme = work.scheme
        finishing: Sequence[WorkRow] = (*work.taken(FINISH), *work.taken((KEEP_FOUND,)))
        run_rows(other, (Row(write_scheme), *finishing, *work.taken(FOR_RUNTIME)))
        return other.graph
