"""Explain why no choice of layers reaches a target, with the figures of the models that were tried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from transforms.files.spelling import spelled
from transforms.graph.some_names import counted
from transforms.judge.constants import GOAL_EVERY, MOST_SAMPLES
from transforms.judge.sample_roles import given_for_goal
from transforms.precision.held_out import GATE_EVERY, MOST_OF_GATES
from transforms.search.gate import Gate, GateError
from transforms.search.target import FloatAloneError, Scored, Target, TargetError

LARGEST = 0.9
"""Largest share of the bytes of the float model at which a quantized file is worth writing."""


@dataclass(frozen=True)
class Try:
    """A model that was tried: its score, and whether anything in it is in low precision.

    ``kept``: indices of its finer layers; ``size``: bytes of its numbers.
    """

    scored: Scored
    kept: Sequence[int] = ()
    is_low: bool = True
    size: int = 0


def beyond_float(target: Gate, before: Scored, best: Scored) -> GateError | None:
    """Return the error if not even the outputs of the float model show the gate, else None."""
    if target.is_shown(best):
        return None
    without, itself = target.text(before.value, before.error), "with the float model itself"
    if target.holds(best.value):
        return GateError(f"{without}; {too_few_samples(target, best, itself)}; no layer is at fault")
    both = f"{without}, {target.text(best.value, best.error)} {itself} on {counted(best.samples, 'sample')}"
    return GateError(f"{both}: the target is {target.bound}, and no layer is at fault")


def unreached(target: Target, before: Scored, tried: Sequence[Try], parts: int, fallback: str) -> TargetError:
    """Return the error for a target that no model reaches; the last one tried has all layers finer."""
    last = tried[-1]
    unmet = target.unmet if last.is_low else FloatAloneError
    every = f"only with every layer in {fallback}"
    unsure = [
        trial for trial in tried if target.holds(trial.scored.value) and not target.is_shown(trial.scored)
    ]
    if unsure:
        share = f"with {len(unsure[-1].kept)} of {parts} layers in {fallback}"
        error = too_few_samples(target, unsure[-1].scored, share)
        return unmet(f"{every} is the target shown: {error}") if target.is_shown(last.scored) else error
    none, after = f"{target.text(before.value, before.error)} with none", last.scored
    if target.is_shown(after):
        return unmet(f"{every} the target of {target.bound} is met: {none}")
    return target.unmet(
        f"the target of {target.bound} cannot be met by layers in {fallback}: {none}, "
        f"{target.text(after.value, after.error)} with {len(last.kept)} of {parts}"
    )


def too_few_samples(target: Target, scored: Scored, what: str) -> TargetError:
    """Return the error for a metric within the target but not its standard error, with the samples needed.

    ``what``: the model, in words.
    """
    judge = counted(scored.samples, "sample")
    verdict = (
        f"{judge} cannot show the target of {target.bound}: {target.text(scored.value, scored.error)} {what}"
    )
    needed = target.samples_needed(scored)
    of_gate = isinstance(target, Gate)
    every, most = (GATE_EVERY, MOST_OF_GATES) if of_gate else (GOAL_EVERY, MOST_SAMPLES)
    samples = None if needed is None else given_for_goal(needed, every, most)
    if needed is None or samples is None:
        shown = target.text(target.worse_end(scored))
        return target.unmet(f"{verdict}: {shown} is shown, and no more than {most} samples judge")
    more, samples = needed - scored.samples, needed if scored.in_folds else samples
    return target.unmet(f"{verdict}; about {more} more that judge would: give {samples} samples or more")


def too_large(
    target: Target, before: Scored, tried: Sequence[Try], float_bytes: float, fallback: str
) -> TargetError:
    """Return the error for a target that only models of nearly the size of the float model meet."""
    sign = 1 if target.larger_is_better else -1
    low, figures = [Try(before), *(trial for trial in tried if trial.is_low)], []
    for most in (0.5, LARGEST):
        small = [trial for trial in low if trial.size <= most * float_bytes]
        best = max(small, key=lambda trial: sign * trial.scored.value)
        reached = target.text(best.scored.value, best.scored.error)
        figures.append(f"{reached} in {most:g} of them ({counted(len(best.kept), 'layer')})")
    return FloatAloneError(
        f"the target of {target.bound} is not met in {LARGEST:g} of the bytes of the float model, by layers"
        f" in {fallback}: {', '.join(figures)}; {spelled('{allow_large}')} takes more"
    )
