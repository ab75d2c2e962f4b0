"""Build the final model once for each fold of the samples, with ranges from the other folds.

No value of a calibration sample exceeds the ranges, so errors on few samples are optimistic. In a model with
the ranges of the other folds, a sample is as new as data the model sees later. Choices are not made again for
each fold, which would take runs of all candidates.
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
    """Return whether the model follows from its scheme and ranges alone, and each fold has ranges.

    Not if samples have fitted or tuned weights, or the first run left nodes in float.
    """
    record, statistics = work.record, work.statistics
    is_left = record.first is not None and record.first.kept
    is_changed = record.decisions.fitted or record.tuned or record.mixed or is_left
    return not is_changed and statistics is not None and len(statistics.folds) >= FEWEST


def folds_for_goal(work: Work, last: Callable[[], Work]) -> Callable[[int], gs.Graph] | None:
    """Return a function that builds the model of ``last()`` for each fold of the judging samples.

    None if these are held out from calibration, or the model cannot be built for folds. A model without
    ranges is the same for all folds.
    """
    if work.held_out is None or not work.held_out.in_folds or not has_folds(work):
        return None

    def _of_fold(fold: int) -> gs.Graph:
        built = last()
        return Folds(built, built.float_form())(fold) if has_folds(built) else built.graph

    return _of_fold


class FoldError(ValueError):
    """A model with the ranges of other folds cannot be built."""


class Folds:
    """Builds the model of a work again, with the ranges of all folds but one."""

    def __init__(self, work: Work, base: gs.Graph) -> None:
        """Take the finished work, and the float model in the form that was quantized; changes neither."""
        self._work, self._base = work, base
        self._memory = work.base.memory or weights_of(base)

    def __call__(self, fold: int) -> gs.Graph:
        """Return the model with ranges of all folds but one; FoldError if these do not suit the scheme."""
        assert self._work.statistics is not None, "there are folds"
        try:
            return self.written(self._work.statistics.without_fold(fold))
        except ValueError as error:
            raise FoldError(str(error)) from error

    def written(self, statistics: Calibration) -> gs.Graph:
        """Return the model with the ranges of the given statistics."""
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
