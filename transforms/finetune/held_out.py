"""Errors of tuned models on samples to which their layers were not fitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from ops.array_types import Feed
from transforms.finetune.find_states import find_states
from transforms.finetune.options import FinetuneOptions
from transforms.full_range.recorded_shifts import shifts_within
from transforms.graph.number_shapes import in_words
from transforms.judge.channel_groups import split
from transforms.judge.constants import MOST_SAMPLES, PASSES, WORTH
from transforms.judge.errors import Errors, Gain, changes, energies, gain, signals
from transforms.judge.judge import Judge
from transforms.judge.sample_roles import tuning_judged
from transforms.model.copy_graph import copy_graph
from transforms.run.kept_arrays import KeptArrays
from transforms.run.run_model import Run


@dataclass(frozen=True)
class Judged:
    """Errors of a model on all compared samples, and on the held-out ones."""

    every: Errors
    held: Errors

    @property
    def relative(self) -> float:
        """The error on held-out samples relative to the power, averaged over outputs."""
        return self.held.relative


class HeldOutJudge:
    """Runs models on held-out samples, and on a few others.

    A recurrent model is run in a loop: its states are fed back with the next sample, since an error of
    constant sign accumulates from step to step. ``notes``: lines on outputs that are not compared directly.
    """

    def __init__(
        self,
        float_graph: gs.Graph,
        quantized_graph: gs.Graph,
        feeds: Sequence[Feed],
        options: FinetuneOptions,
        output_index: int | None = None,
    ) -> None:
        """Run the float model and the quantized one; ValueError for an output index out of range."""
        places, held = tuning_judged(len(feeds), options.held_out)
        self._feeds, self._is_held = [feeds[i] for i in places], np.isin(places, held)
        self._judge = Judge(float_graph, self._feeds, options.run)
        compared = self._judge.reference.judged_by(-1 if output_index is None else output_index)
        self.notes = in_words(compared)
        self._names = [name for names in compared.values() for name in names]
        self._states = find_states(float_graph, feeds[:MOST_SAMPLES], options.run)
        self._expected = list[Feed]()
        if self._states:
            store, run = KeptArrays(), self._judge.opened(copy_graph(float_graph))
            self._expected = [store.keep(outputs) for outputs in self._loop(run)]
        self.before = self.errors(quantized_graph)

    @property
    def of_tokens(self) -> bool:
        """Whether :meth:`figure` is a divergence of token probabilities, in nats per token."""
        return bool(self._judge.reference.tokens(self._outputs)) if self.can_judge else False

    @property
    def can_judge(self) -> bool:
        """Whether there are floating-point outputs to judge by."""
        return bool(self._outputs)

    def errors(self, graph: gs.Graph) -> Judged:
        """Return the errors of a model."""
        if not self.can_judge:
            nothing = np.zeros((len(self._feeds), 0))
            return Judged(Errors(nothing, nothing, 0), Errors(nothing, nothing, 0))
        shifts = shifts_within(graph)
        if self._states:
            every = self._errors_in_loop(self._judge.opened(copy_graph(graph), shifts))
        else:
            every = self._judge.errors_of(copy_graph(graph), shifts=shifts)
        outputs = self._judge.reference.columns
        if len(self._outputs) < len(outputs):
            columns = [place for place, name in enumerate(outputs) if name in self._names]
            every = Errors(every.errors[:, columns], every.signal[:, columns], len(columns))
        return Judged(every, _of(every, np.tile(self._is_held, len(every.errors) // len(self._is_held))))

    def figure(self, found: Judged) -> float:
        """Return the error of the logits on held-out samples, or of all outputs of a model without logits."""
        tokens = self._judge.reference.tokens(self._outputs) if self.can_judge else []
        return found.held.of_outputs(tokens).relative if tokens else found.relative

    def compare(self, new: Judged, old: Judged | None = None) -> Gain:
        """Return the gain of a model over another, or over the quantized one, on held-out samples.

        Its standard error is that of as many samples with the scatter of all samples: those held out may be
        few. ``worst`` is the least gain of an output, on held-out samples or on all.
        """
        old = old or self.before
        held, every = gain(new.held, old.held), gain(new.every, old.every)
        wider = float(np.sqrt(len(new.every.errors) / len(new.held.errors)))
        return Gain(
            *(held.decibels, wider * every.error),
            *(held.view, wider * every.view_error),
            min(held.worst, every.worst),
            wider * every.worst_error,
        )

    def accepts(self, gain: Gain, cost: float = WORTH) -> bool:
        """Return whether a gain is worth a cost in dB, by the one rule for all changes."""
        return self.can_judge and gain.is_accepted(cost)

    def regressed(self, new: Judged) -> str:
        """Return the name of the output that improved least."""
        pairs = (new.held, self.before.held), (new.every, self.before.every)
        return self._outputs[int(np.argmin(np.minimum(*(changes(*pair) for pair in pairs))))]

    @property
    def _outputs(self) -> list[str]:
        return [name for name in self._judge.reference.columns if name in self._names]

    def _errors_in_loop(self, run: Run) -> Errors:
        pairs = zip(self._expected, self._loop(run), strict=True)
        reference = self._judge.reference
        logits, groups = reference.logits, reference.groups
        errors = np.array(
            [energies(split(exact, groups), split(computed, groups), logits) for exact, computed in pairs]
        )
        signal = np.array([signals(split(expected, groups), logits) for expected in self._expected])
        return Errors(errors, signal, len(reference.columns))

    def _loop(self, run: Run) -> list[Feed]:
        """Return the outputs for the samples in sequence, each with the states of the previous one."""
        state: Feed = {}
        results = list[Feed]()
        for feed in [*self._feeds] * PASSES:
            outputs = run({**feed, **state})
            state = {fed: outputs[back] for fed, back in self._states.items()}
            results.append({name: outputs[name] for name in self._judge.shown if name in outputs})
        return results


def _of(errors: Errors, rows: NDArray[np.bool_]) -> Errors:
    return Errors(errors.errors[rows], errors.signal[rows], errors.count)
