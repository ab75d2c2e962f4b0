"""A recurrent model as it is used: what it makes comes back as its state with the next sample.

Samples hold states of the float model, so that every error ends with its sample. In use it does not: a small
error that always has the same sign adds up from step to step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import AnyArray, Feed, Float64Array
from transforms.finetune.output_error import compare
from transforms.run.instrumented_model import InstrumentedModel
from transforms.run.kept_arrays import KeptArrays
from transforms.run.run_each import with_fixed_threads
from transforms.runtime.session import RunOptions

_PASSES = 2
"""How often a model runs through the samples, for errors take steps to add up."""

_HELD = 2  # steps


class ClosedLoop:
    """Errors of models that run through samples one after another with their own states."""

    def __init__(
        self,
        float_graph: gs.Graph,
        feeds: Sequence[Feed],
        states: Mapping[str, str],
        names: Sequence[str],
        options: RunOptions | None = None,
        *,
        held: bool = False,
    ) -> None:
        """Run the float model. ``states``: outputs by input; ``names``: the outputs that are compared.

        ``held``: whether each sample is held for some steps, too, after all of them were run in turn.
        """
        self._states, self._names = states, names
        self._loops = [[*feeds] * _PASSES]
        self._loops += [[feed for feed in feeds for _ in range(_HELD)] * _PASSES] if held else []
        self._options = with_fixed_threads(options)
        kept = KeptArrays()
        self._wanted = [[kept.keep(made) for made in steps] for steps in self._steps(float_graph)]

    def errors(self, graph: gs.Graph) -> Float64Array:
        """Return the error of each output, over all steps, as a share of the power of the float model's.

        One row for each loop: samples in turn, and each held.
        """
        loops = zip(self._wanted, self._steps(graph), strict=True)
        return np.array([self._errors(wanted, steps) for wanted, steps in loops])

    def _errors(
        self, wanted: Iterable[Mapping[str, AnyArray]], steps: Iterable[Mapping[str, AnyArray]]
    ) -> Float64Array:
        pairs = [
            [compare(want[n], made[n]) for n in self._names] for want, made in zip(wanted, steps, strict=True)
        ]
        errors, powers = np.array(pairs).sum(0).T
        with np.errstate(all="ignore"):
            return np.where(errors == 0, 0.0, errors / powers)

    def _steps(self, graph: gs.Graph) -> Iterator[Iterator[dict[str, AnyArray]]]:
        """Yield what a model makes in each of the loops."""
        shown = list(dict.fromkeys([*self._names, *self._states.values()]))
        run = partial(InstrumentedModel(graph, shown, self._options).run, shown=shown)
        for feeds in self._loops:
            yield self._loop(run, feeds)

    def _loop(
        self, run: Callable[[Feed], dict[str, AnyArray]], feeds: Iterable[Feed]
    ) -> Iterator[dict[str, AnyArray]]:
        state: dict[str, AnyArray] = {}
        for feed in feeds:
            made = run({**feed, **state})
            state = {fed: made[back] for fed, back in self._states.items()}
            yield made
