"""How good the outputs of a quantized model are, on samples that decided nothing if there are enough."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import AnyArray, Feed
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.full_range.recorded_shifts import shifts_within
from transforms.graph.class_output import class_output
from transforms.graph.embeddings import logits_of
from transforms.judge.constants import FEW_SAMPLES
from transforms.judge.decisions import Checked, Decisions
from transforms.judge.errors import Errors
from transforms.judge.judge import Judge
from transforms.judge.reference import Reference
from transforms.judge.sample_roles import FIRST, checking
from transforms.judge.shape_watch import ShapeWatch
from transforms.model.copy_graph import copy_graph
from transforms.run.coded_caches import coded_caches
from transforms.run.failing_samples import failing
from transforms.run.two_steps import TwoSteps
from transforms.search.output_metrics import lost_rows

See = Callable[[Feed, Feed], None]
"""Told what is made of each feed."""


class UselessError(ValueError):
    """A language model whose probabilities are too far from those of the float model."""

    def __init__(self, outputs: Checked) -> None:
        """Say how far they are."""
        super().__init__(f"{outputs}, which is of no use")
        self.outputs = outputs


def check_outputs(
    float_graph: gs.Graph,
    quantized_graph: gs.Graph,
    data: CalibrationData,
    record: Decisions,
    *,
    are_random: bool = False,
) -> Checked | None:
    """Return the error of a model beside the float model as it was quantized; None without float outputs.

    It is put into the ``record`` of what decided. An output whose rows numbers choose counts as what is
    before that. Texts of a model with caches in few bits are read in two steps, so that what it has kept
    counts, if the float model makes the same of both. ``are_random``: whether the data are no samples. Raises
    ValueError for a model that fails on a sample, naming it.
    """
    first = list(islice(data.feeds(float_graph), FIRST))
    decides = bool(record.tried) or record.fitted or record.searched
    spared = checking(len(first), texts=decides and bool(logits_of(float_graph)))
    chosen = dict(first[spared.start :] if spared else first[:FEW_SAMPLES])
    judge = Judge(float_graph, list(chosen.values()), data.run, stays=True)
    reference = judge.reference
    steps = TwoSteps.agreeing(float_graph, coded_caches(quantized_graph), reference.run, reference.feeds)
    with failing(chosen, float_graph, data.run, "the quantized model"):
        if not judge.reference.outputs:
            return None
        answers, shapes = _Answers(class_output(float_graph), judge), ShapeWatch(reference)
        graph, shifts = copy_graph(quantized_graph), shifts_within(quantized_graph)
        found = judge.errors_of(graph, shifts=shifts, steps=steps, see=seen_by(answers.see, shapes.see))
    if not np.isfinite(found.signal).all():
        return None
    decided = not spared if decides else None
    tokens = judge.reference.tokens(judge.reference.outputs)
    checked = Checked(0.0, len(chosen), decided, through_caches=bool(steps), same=answers.same())
    checked = replace(checked, are_random=are_random)
    found, checked = _of_same_shapes(found, checked, shapes)
    record.outputs = _figures(*_of_worst_channels(found, checked, reference), tokens)
    return record.outputs


def seen_by(*watchers: See) -> See:
    """Return what tells each of some watchers."""

    def _see(feed: Feed, made: Feed) -> None:
        for see in watchers:
            see(feed, made)

    return _see


def _of_same_shapes(found: Errors, checked: Checked, shapes: ShapeWatch) -> tuple[Errors, Checked]:
    """Return errors of the samples in which outputs have the same shapes, of all where none has; and how many
    samples that are. Where others stand for an output, its shape tells nothing of their errors.
    """
    told = shapes.found()
    rows = np.array([not set(names) - told.judged.keys() for names in shapes.differing()])
    if rows.all() or not rows.any():
        return found, replace(checked, shapes=told)
    kept = Errors(found.errors[rows], found.signal[rows], found.count)
    return kept, replace(checked, samples=int(rows.sum()), shapes=told)


class _Answers:
    """What a classifier answers to each sample; ``name``: of its output, None for other models."""

    def __init__(self, name: str | None, judge: Judge) -> None:
        self._name = name if name in judge.reference.outputs else None
        self._judge, self._made = judge, dict[int, AnyArray]()

    def see(self, feed: Feed, made: Feed) -> None:
        """Keep what was made of a sample."""
        if self._name is not None and self._name in made:
            self._made[id(feed)] = made[self._name]

    def same(self) -> tuple[int, int] | None:
        """Return in how many rows both models have the same answer, and of how many."""
        if self._name is None:
            return None
        reference, counts = self._judge.reference, list[tuple[int, int]]()
        for feed, expected in zip(reference.feeds, reference.made([self._name]), strict=True):
            found = self._made.get(id(feed), np.zeros(0, np.float32))  # counts as another shape
            counts.append(lost_rows((expected, {self._name: found})))
        lost, rows = (sum(each) for each in zip(*counts, strict=True))
        return rows - lost, rows


def _of_worst_channels(found: Errors, checked: Checked, reference: Reference) -> tuple[Errors, Checked]:
    """Return errors with the worst group of channels alone of an output that has several, and which it is."""
    columns, kept, words = reference.columns, list[int](), list[str]()
    for name in dict.fromkeys(columns):
        places = [place for place, column in enumerate(columns) if column == name]
        worst = int(np.argmin(np.nan_to_num(found.decibels[places], nan=np.inf)))
        kept.append(places[worst])
        if name in reference.groups:
            words.append(f"worst channels of '{name}': {reference.groups[name].label(worst)}")
    if not words:
        return found, checked
    return found.of_outputs(kept), replace(checked, channels=", ".join(words))


def _figures(found: Errors, checked: Checked, tokens: Sequence[int]) -> Checked:
    """Return what is said of errors: of the logits where there are any, and of the other outputs apart."""
    if not tokens:
        return replace(checked, error=found.relative, decibels_error=found.decibels_error)
    others = [place for place in range(found.count) if place not in tokens]
    apart = found.of_outputs(others).relative if others else None
    error = found.of_outputs(tokens).relative
    return replace(checked, error=error, of_tokens=True, others=apart, others_count=len(others))
