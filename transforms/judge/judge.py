"""The judge of quantized models: samples, what the float model makes of them, and errors of other models.

Samples are the first of the data, at most ``MOST_SAMPLES``. They form two folds in turn, as calibration keeps
statistics of: a model with ranges from one fold is judged on the other, so that no sample judges ranges that
it has given (two-fold cross-validation).
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
    """Runs models on samples that the float model was run on.

    ``reference``: the runs of the float model; ``count``: how many of the feeds models are judged on;
    ``measured``: errors of candidates by what tells these apart, for a judge that remembers them.
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
        """Take a float model and feeds; nothing is run yet, and the graph may be changed afterwards.

        Unless it ``stays`` as it is: no copy is made then.

        ``most``: of the feeds, None for all, as a metric of the user's needs them. ``run``: as users open
        models by default; with ``simulate``, models compute as they say, and not as kernels of the runtime
        here do, which may round inputs of products to 8 bits. ``known``: names of the tensors by which
        outputs can be compared whose rows numbers choose; without it, all. ``remembers``: whether a candidate
        that is measured again is not run again.
        """
        self.measured: dict[Hashable, Errors] | None = {} if remembers else None
        self.reference = Reference(graph, feeds[:most], run, known=known, stays=stays)
        self.count = len(self.reference.feeds)
        self.run = run
        self._signal: dict[int, Float64Array] = {}

    def rewritten(self, graph: gs.Graph) -> Judge:
        """Return the judge of another form of the float model, on the same samples."""
        if self.reference.is_of(graph):
            same = copy(self)
            same.reference = self.reference.in_form(graph)
            return same
        found = Judge(graph, self.reference.feeds, self.run, most=None, known=self.reference.known)
        found.count = self.count
        return found

    def anew(self) -> Judge:
        """Return a judge by the same runs of the float model, on all of the feeds again."""
        same = copy(self)
        same.count = len(self.reference.feeds)
        return same

    def recalled(self, candidate: Hashable, measure: Callable[[], Errors]) -> Errors:
        """Return the errors that ``measure`` returns, or returned earlier for the same candidate."""
        if self.measured is None:
            return measure()
        if candidate not in self.measured:
            self.measured[candidate] = measure()
        return self.measured[candidate]

    @property
    def can_judge(self) -> bool:
        """Whether there are enough samples, and outputs of a floating type."""
        return self.count >= FEWEST and bool(self.reference.outputs)

    @property
    def shown(self) -> list[str]:
        """The names of the tensors that are compared; those that are not outputs have to be made outputs."""
        return self.reference.shown

    def errors(self, run_of_fold: Callable[[int], Run], places: Sequence[int] | None = None) -> Errors:
        """Return the errors over all samples, or some: those of a fold by what is made for that fold."""
        samples = self._samples() if places is None else self.reference.samples(max(places, default=0) + 1)
        places = range(len(samples)) if places is None else places
        taken = [samples[place] for place in places]
        runs = {fold: run_of_fold(fold) for fold in dict.fromkeys(sample.fold for sample in taken)}

        def _of(sample: Sample) -> Float64Array:
            return self._energies(runs[sample.fold], sample)

        return self._made(samples, places, list(run_each(_of, taken, self.run)))

    def errors_of(
        self,
        graph: gs.Graph,
        shifts: Mapping[str, float] | None = None,
        steps: Callable[[Run], Run] | None = None,
        see: Callable[[Feed, Feed], None] | None = None,
        places: Sequence[int] | None = None,
    ) -> Errors:
        """Return the errors of a quantized model, which may not be used afterwards.

        ``shifts``: by how much tensors are less than in the float model. ``steps``: returns
        what runs a model in steps. ``see``: told what is made of each feed. ``places``: of the samples,
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
        """Return the errors over all samples, of each by the model that is made for its fold.

        ``folds``: the fold of each sample. ``model_of``: returns the quantized model for a fold, which may
        not be used afterwards, with its shifts; one is open at a time. ``shifts``, ``steps``, ``see``: as of
        :meth:`errors_of`.
        """
        samples, found = self._samples(), dict[int, Float64Array]()
        for fold in sorted(set(folds)):
            run = _seen(self.opened(*model_of(fold)), steps, see)
            places = [place for place, other in enumerate(folds) if other == fold]
            errors = run_each(partial(self._energies, run), [samples[place] for place in places], self.run)
            found |= zip(places, errors, strict=True)
        every = range(len(samples))
        return self._made(samples, every, [found[place] for place in every])

    def opened(self, graph: gs.Graph, shifts: Mapping[str, float] | None = None) -> Run:
        """Return what runs a quantized model, which may not be used afterwards; it makes what is compared.

        Inputs and outputs of other forms than those of the float model are fed and compared as its numbers.
        """
        self.reference.show(graph)
        options = self.reference.options
        if any(node.op == MATMUL_NBITS for node in walk.nodes(graph)):
            options = replace(options, prepack=True)  # without, its kernel leaves inputs as they are
        model, shown = open_model(graph, options), self.shown
        back = {name: np.float32(shift) for name, shift in (shifts or {}).items() if name in shown}

        def _run(feed: Feed) -> Feed:
            made = model.run(feed)
            return {**made, **{name: made[name] + shift for name, shift in back.items() if name in made}}

        view = features.view_of(graph)
        return _run if view is None else view.in_float(_run)

    def _energies(self, run: Run, sample: Sample) -> Float64Array:
        groups = self.reference.groups
        expected, made = (split(outputs, groups) for outputs in (sample.expected, run(sample.feed)))
        return energies(expected, made, self.reference.logits)

    def _samples(self) -> list[Sample]:
        return self.reference.samples(self.count)

    def _made(
        self, samples: Sequence[Sample], places: Sequence[int], errors: Sequence[Float64Array]
    ) -> Errors:
        for place in places:
            if place not in self._signal:
                expected = split(samples[place].expected, self.reference.groups)
                self._signal[place] = signals(expected, self.reference.logits)
        signal = np.array([self._signal[place] for place in places])
        return Errors(np.array(errors), signal, len(self.reference.columns))


def _seen(run: Run, steps: Callable[[Run], Run] | None, see: Callable[[Feed, Feed], None] | None) -> Run:
    """Return what runs a model in steps, if there are any, and shows what it makes of each feed."""
    run = steps(run) if steps else run

    def _run(feed: Feed) -> Feed:
        made = run(feed)
        if see is not None:
            see(feed, made)
        return made

    return _run
