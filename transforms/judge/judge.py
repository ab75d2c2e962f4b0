"""The judge: measures errors of quantized models against the float model on samples.

Samples are the first of the data, at most ``MOST_SAMPLES``. They alternate between two folds, of which
calibration keeps statistics: a model with ranges from one fold is judged on the other, so that no sample
judges ranges that it has given (two-fold cross-validation).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import Feed, Float64Array
from transforms import features
from transforms.graph import walk
from transforms.graph.qdq import MATMUL_NBITS
from transforms.judge.channel_groups import split
from transforms.judge.constants import FEWEST, MOST_SAMPLES
from transforms.judge.errors import Errors, energies, signals
from transforms.judge.reference import KnownNames, Reference, Sample
from transforms.run.run_each import run_each
from transforms.run.run_model import Run, open_model
from transforms.runtime.session import RunOptions


class Judge:
    """Runs models on samples and compares their outputs with those of the float model.

    ``reference``: the runs of the float model. ``count``: the number of feeds that judge.
    ``measured``: errors of candidates, by keys that identify them, of a judge that remembers them.
    """

    def __init__(
        self,
        graph: gs.Graph,
        feeds: Sequence[Feed],
        run: RunOptions | None = None,
        *,
        most: int | None = MOST_SAMPLES,
        known: KnownNames | None = None,
        stays: bool = False,
        remembers: bool = False,
    ) -> None:
        """Take a float model and feeds, without running the model.

        ``most``: of the feeds, None for all, as a user's metric needs them. ``run``: by default as users open
        models; with ``simulate``, models compute as written, and not as kernels of the runtime here, which
        may round inputs of products to 8 bits. ``known``: returns the names of tensors that all compared
        models have, for outputs whose rows depend on values; by default all tensors. ``stays``: the caller
        does not change the graph afterwards, so that no copy is made. ``remembers``: whether a candidate that
        is measured again is not run again.
        """
        self.measured: dict[Hashable, Errors] | None = {} if remembers else None
        self.reference = Reference(graph, feeds[:most], run, known=known, stays=stays)
        self.count = len(self.reference.feeds)
        self.run = run
        self._signal: dict[int, Float64Array] = {}

    def rewritten(self, graph: gs.Graph) -> Judge:
        """Return a judge of a rewritten float model, on the same samples."""
        if self.reference.is_of(graph):
            same = copy(self)
            same.reference = self.reference.in_form(graph)
            return same
        judge = Judge(graph, self.reference.feeds, self.run, most=None, known=self.reference.known)
        judge.count = self.count
        return judge

    def anew(self) -> Judge:
        """Return a judge by the same runs of the float model, on all of the feeds again."""
        same = copy(self)
        same.count = len(self.reference.feeds)
        return same

    @property
    def can_judge(self) -> bool:
        """Whether there are enough samples, and outputs of a floating type."""
        return self.count >= FEWEST and bool(self.reference.outputs)

    @property
    def shown(self) -> list[str]:
        """The names of the tensors that are compared; a model has to have all of them as outputs."""
        return self.reference.shown

    def errors(self, run_of_fold: Callable[[int], Run], places: Sequence[int] | None = None) -> Errors:
        """Return the errors over all samples, or some; ``run_of_fold``: returns what runs those of a fold."""
        samples = self._samples() if places is None else self.reference.samples(max(places, default=0) + 1)
        places = range(len(samples)) if places is None else places
        chosen = [samples[place] for place in places]
        runs = {fold: run_of_fold(fold) for fold in dict.fromkeys(sample.fold for sample in chosen)}

        def _of(sample: Sample) -> Float64Array:
            return self._energies(runs[sample.fold], sample)

        return self._with_signal(samples, places, list(run_each(_of, chosen, self.run)))

    def errors_of(
        self,
        graph: gs.Graph,
        shifts: Mapping[str, float] | None = None,
        steps: Callable[[Run], Run] | None = None,
        see: Callable[[Feed, Feed], None] | None = None,
        places: Sequence[int] | None = None,
    ) -> Errors:
        """Return the errors of a quantized model; the graph may not be used afterwards.

        ``shifts``: the amounts by which tensors are less than in the float model. ``steps``: wraps a run so
        that it is in steps. ``see``: called with each feed and its outputs. ``places``: of the samples,
        instead of all.
        """
        self._samples()  # closes the float model: large weights are in memory once
        run = _seen(self.opened(graph, shifts), steps, see)
        return self.errors(lambda _: run, places)

    def errors_in_folds(
        self,
        model_of: Callable[[int], tuple[gs.Graph, Mapping[str, float]]],
        folds: Sequence[int],
        steps: Callable[[Run], Run] | None = None,
        see: Callable[[Feed, Feed], None] | None = None,
    ) -> Errors:
        """Return the errors over all samples, each by the model for its fold.

        ``folds``: the fold of each sample. ``model_of``: returns the quantized model for a fold, which may
        not be used afterwards, with its shifts; one is open at a time. ``steps``, ``see``: as of
        :meth:`errors_of`.
        """
        samples, by_place = self._samples(), dict[int, Float64Array]()
        for fold in sorted(set(folds)):
            run = _seen(self.opened(*model_of(fold)), steps, see)
            places = [place for place, other in enumerate(folds) if other == fold]
            errors = run_each(partial(self._energies, run), [samples[place] for place in places], self.run)
            by_place |= zip(places, errors, strict=True)
        every = range(len(samples))
        return self._with_signal(samples, every, [by_place[place] for place in every])

    def opened(self, graph: gs.Graph, shifts: Mapping[str, float] | None = None) -> Run:
        """Open a quantized model, whose graph may not be used afterwards, and return its run.

        The run returns the compared tensors. Inputs and outputs in other forms than those of the float model
        are converted.
        """
        self.reference.show(graph)
        options = self.reference.options
        if any(node.op == MATMUL_NBITS for node in walk.nodes(graph)):
            options = replace(options, prepack=True)  # without, its kernel leaves inputs as they are
        model, shown = open_model(graph, options), self.shown
        back = {name: np.float32(shift) for name, shift in (shifts or {}).items() if name in shown}

        def _run(feed: Feed) -> Feed:
            computed = model.run(feed)
            return {
                **computed,
                **{name: computed[name] + shift for name, shift in back.items() if name in computed},
            }

        view = features.view_of(graph)
        return _run if view is None else view.in_float(_run)

    def _energies(self, run: Run, sample: Sample) -> Float64Array:
        groups = self.reference.groups
        expected, quantized = (split(outputs, groups) for outputs in (sample.expected, run(sample.feed)))
        return energies(expected, quantized, self.reference.logits)

    def _samples(self) -> list[Sample]:
        return self.reference.samples(self.count)

    def _with_signal(
        self, samples: Sequence[Sample], places: Sequence[int], errors: Sequence[Float64Array]
    ) -> Errors:
        for place in places:
            if place not in self._signal:
                expected = split(samples[place].expected, self.reference.groups)
                self._signal[place] = signals(expected, self.reference.logits)
        signal = np.array([self._signal[place] for place in places])
        return Errors(np.array(errors), signal, len(self.reference.columns))


def _seen(run: Run, steps: Callable[[Run], Run] | None, see: Callable[[Feed, Feed], None] | None) -> Run:
    """Return the run, in steps if there are any, that calls ``see`` with each feed and its outputs."""
    run = steps(run) if steps else run

    def _run(feed: Feed) -> Feed:
        outputs = run(feed)
        if see is not None:
            see(feed, outputs)
        return outputs

    return _run
