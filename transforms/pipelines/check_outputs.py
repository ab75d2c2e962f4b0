"""Measure the error of a quantized model's outputs on samples that decided nothing.

Ranges are measured on all samples, so each sample runs through a model whose ranges are from other folds
(:mod:`transforms.pipelines.folds`). If a model cannot be built for each fold, samples are held out from the
start, or the result says that the samples were used.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import AnyArray, Feed
from transforms import features
from transforms.calibrate.calibration import fold_of
from transforms.calibrate.calibration_data import CalibrationData
from transforms.full_range.recorded_shifts import shifts_within
from transforms.graph.class_output import class_output
from transforms.graph.embeddings import logits_of
from transforms.judge.constants import ENOUGH, FEWEST, MOST_SAMPLES
from transforms.judge.decisions import Checked
from transforms.judge.errors import Errors
from transforms.judge.figure_error import figure_of
from transforms.judge.judge import Judge
from transforms.judge.reference import Reference
from transforms.judge.sample_roles import checking, summarizing
from transforms.judge.shape_watch import ShapeWatch
from transforms.judge.softmax_outputs import in_both, show_before_softmax
from transforms.model.copy_graph import copy_graph
from transforms.pipelines.work import Work
from transforms.run.failing_samples import failing
from transforms.runtime.session import RunOptions
from transforms.search.output_metrics import lost_rows

See = Callable[[Feed, Feed], None]
"""Called with each feed and the outputs for it."""

ModelOf = Callable[[int], gs.Graph]
"""Makes the model for a fold: with ranges from the samples of all other folds."""


class UselessError(ValueError):
    """A language model whose probabilities are too far from those of the float model."""

    def __init__(self, outputs: Checked) -> None:
        """Take the error of the outputs."""
        super().__init__(f"{outputs}, which is of no use")
        self.outputs = outputs


def check_outputs(
    work: Work,
    float_graph: gs.Graph,
    quantized_graph: gs.Graph,
    folds: ModelOf | None = None,
    *,
    random: CalibrationData | None = None,
) -> Checked | None:
    """Return the error of a quantized model against the float model; None without float outputs.

    ``folds``: makes the model for each fold; without it, samples that decided nothing are used, if there are
    any. The result is also put into the record of decisions. An output whose rows depend on values counts as
    the tensors that it is made of, and one that ends in a Softmax as the input of the Softmax. Texts of a
    model with quantized caches are read in two steps, so that errors of the caches count, if the float model
    gives the same outputs in one step and in two. ``random``: random data to compare on instead of samples.
    Raises ValueError, naming the sample, for a model that fails on one.
    """
    data = random or work.data
    assert data is not None, "outputs are compared on samples"
    first = list(islice(data.feeds(float_graph), MOST_SAMPLES + ENOUGH))
    if random:
        spared = _Spared(range(len(first)), decided=None)
    else:
        spared = _spared(work, len(first), texts=bool(logits_of(float_graph)), folds=folds)
    checked = _compared((float_graph, quantized_graph), first, spared, work.run_here)
    checked = checked and replace(checked, are_random=random is not None)
    work.record.decisions.outputs = checked or work.record.decisions.outputs
    return checked


@dataclass(frozen=True)
class _Spared:
    """The places of samples to compare; ``decided``: as of :class:`Checked`.

    ``model_of``: makes the model for a fold; None if one model runs all samples.
    """

    places: Sequence[int]
    decided: bool | None
    model_of: ModelOf | None = None

    @property
    def folds(self) -> list[int]:
        """The fold of each sample; 0 for all if one model runs all samples."""
        return [fold_of(place) if self.model_of else 0 for place in self.places]


def _spared(work: Work, count: int, *, texts: bool, folds: ModelOf | None) -> _Spared:
    """Return which of ``count`` samples to compare: those that decided nothing, if there are any."""
    decisions = work.record.decisions
    chooses = bool(decisions.tried) or decisions.fitted or decisions.searched
    every = summarizing(count, texts=texts)
    if folds is not None and count >= FEWEST:
        return _Spared(every, decided=False, model_of=folds)
    if not chooses and work.statistics is None:
        return _Spared(every, decided=None)
    spared = checking(count, texts=chooses and texts)
    is_new = bool(spared) and (work.statistics is None or decisions.fitted)
    return _Spared(spared, decided=False) if is_new else _Spared(every, decided=True)


def _compared(
    pair: tuple[gs.Graph, gs.Graph], samples: Sequence[tuple[str, Feed]], spared: _Spared, run: RunOptions
) -> Checked | None:
    """Return the error of a quantized model against the float model, the two graphs of ``pair``."""
    float_graph, quantized_graph = pair
    chosen = [samples[place] for place in spared.places]
    # the judge runs the float model, with saturated outputs replaced by the input of their Softmax
    saturated, reference = in_both(*pair), copy_graph(float_graph)
    views = show_before_softmax(reference, saturated)
    judge = Judge(reference, [feed for _, feed in chosen], run, stays=True)
    view = features.view_of(quantized_graph)
    steps = view.in_steps(float_graph, judge.reference.run, judge.reference.feeds) if view else None

    def _shown(fold: int) -> tuple[gs.Graph, Mapping[str, float]]:
        graph = spared.model_of(fold) if spared.model_of else copy_graph(quantized_graph)
        show_before_softmax(graph, saturated)
        return graph, shifts_within(graph)

    with failing(dict(chosen), float_graph, run, "the quantized model"):
        if not judge.reference.outputs:
            return None
        answers, shapes = _Answers(class_output(float_graph), judge), ShapeWatch(judge.reference)
        errors = judge.errors_in_folds(_shown, spared.folds, steps, seen_by(answers.see, shapes.see))
    if not np.isfinite(errors.signal).all():
        return None
    # figures of what counts: rows of equal shapes, the worst group of channels, logits apart
    names = judge.reference.outputs
    replaced = {name for name, view in zip(saturated, views, strict=True) if view in names}
    checked = Checked(
        0.0,
        len(chosen),
        spared.decided,
        through_caches=bool(steps),
        same=answers.same(),
        folds=len(set(spared.folds)) if spared.model_of else 0,
        before_softmax=bool(replaced),
    )
    errors, checked, folds = _of_same_shapes(errors, checked, shapes, spared.folds)
    errors, checked = _of_worst_channels(errors, checked, judge.reference, replaced)
    tokens = judge.reference.tokens([name for name in names if name not in replaced])
    return _figures(errors, tokens, checked, folds)


def seen_by(*watchers: See) -> See:
    """Return a function that calls each watcher."""

    def _see(feed: Feed, outputs: Feed) -> None:
        for see in watchers:
            see(feed, outputs)

    return _see


def _of_same_shapes(
    errors: Errors, checked: Checked, shapes: ShapeWatch, folds: Sequence[int]
) -> tuple[Errors, Checked, Sequence[int]]:
    """Return errors and folds of the samples in which outputs have the same shapes; of all if none has.

    The number of samples is entered in ``checked``. If other tensors are compared in place of an output, its
    shape does not matter.
    """
    watched = shapes.found()
    rows = np.array([not set(names) - watched.judged.keys() for names in shapes.differing()])
    if rows.all() or not rows.any():
        return errors, replace(checked, shapes=watched), folds
    comparable = Errors(errors.errors[rows], errors.signal[rows], errors.count)
    return (
        comparable,
        replace(checked, samples=int(rows.sum()), shapes=watched),
        list(np.asarray(folds)[rows]),
    )


class _Answers:
    """Collects the answers of a classifier; ``name``: its output, None for other models."""

    def __init__(self, name: str | None, judge: Judge) -> None:
        self._name = name if name in judge.reference.outputs else None
        self._judge, self._outputs = judge, dict[int, AnyArray]()

    def see(self, feed: Feed, outputs: Feed) -> None:
        """Keep the output for a sample."""
        if self._name is not None and self._name in outputs:
            self._outputs[id(feed)] = outputs[self._name]

    def same(self) -> tuple[int, int] | None:
        """Return the number of rows in which both models have the same answer, and of all rows."""
        if self._name is None:
            return None
        reference, counts = self._judge.reference, list[tuple[int, int]]()
        for feed, expected in zip(reference.feeds, reference.made([self._name]), strict=True):
            answer = self._outputs.get(id(feed), np.zeros(0, np.float32))  # counts as another shape
            counts.append(lost_rows((expected, {self._name: answer})))
        lost, rows = (sum(each) for each in zip(*counts, strict=True))
        return rows - lost, rows


def _of_worst_channels(
    errors: Errors, checked: Checked, reference: Reference, replaced: Collection[str]
) -> tuple[Errors, Checked]:
    """Return errors with only the worst group of channels of each output, and note which groups these are.

    ``replaced``: outputs that do not count.
    """
    columns, worst_columns, words = reference.columns, list[int](), list[str]()
    for name in dict.fromkeys(name for name in columns if name not in replaced):
        places = [place for place, column in enumerate(columns) if column == name]
        worst = int(np.argmin(np.nan_to_num(errors.decibels[places], nan=np.inf)))
        worst_columns.append(places[worst])
        if name in reference.groups:
            words.append(f"worst channels of '{name}': {reference.groups[name].label(worst)}")
    return errors.of_outputs(worst_columns), replace(checked, channels=", ".join(words))


def _figures(errors: Errors, tokens: Sequence[int], checked: Checked, folds: Sequence[int]) -> Checked:
    """Enter the figures of errors: if there are logits, theirs, and those of all other outputs apart."""
    if not tokens:
        error, decibels_error = figure_of(errors, folds)
        return replace(checked, error=error, decibels_error=decibels_error)
    rest = [place for place in range(errors.count) if place not in tokens]
    rest_error = errors.of_outputs(rest).relative if rest else None
    error = errors.of_outputs(tokens).relative
    return replace(checked, error=error, of_tokens=True, others=rest_error, others_count=len(rest))
