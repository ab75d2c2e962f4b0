"""A float model step by step beside what the tools made of it: caches and states are fed back, sizes change.

Oracle: ONNX Runtime on the float model, and the same steps with every tensor disturbed by a part of its
largest number (``graphs/interpret.py``), which carries an error from step to step as roundings do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime

import ops
from tests.attack.graphs.distances import distance, largest, made_nan
from tests.attack.graphs.hooks import Noise
from tests.attack.graphs.interpret import Interpreter
from tests.attack.graphs.tool_runs import Fallen

Feeds = dict[str, np.ndarray]
Run = Callable[[Feeds], Feeds]

_DRAWS, _MARGIN, _CROSSED, _SUMS = 4, 12.0, 6.0, 1e-4
STEP_OF_INT8 = 2.0**-8
"""Half a step of 8 bits beside the largest number of a tensor: what two sessions may differ by, for one may
compute in integers what the other computes in float, and MatMulNBits rounds its inputs."""


@dataclass
class Story:
    """Steps of a float model: the feed of each without states, the output that each input takes back, and
    the states before the first step. With no states, steps are samples on their own."""

    model: onnx.ModelProto
    steps: Sequence[Feeds]
    pairs: Mapping[str, str] = field(default_factory=dict)
    first: Feeds = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.feeds: list[Feeds] = []  # of each step, with the states of the float model
        self.outputs = self.rolled(session_of(self.model, optimized=False), keep=self.feeds)
        self._moves: dict[float, list[dict[str, float]]] = {}

    @property
    def results(self) -> list[str]:
        """The outputs that no input takes back."""
        return [one.name for one in self.model.graph.output if one.name not in self.pairs.values()]

    def rolled(self, run: Run, *, first: Feeds | None = None, keep: list[Feeds] | None = None) -> list[Feeds]:
        """Return the outputs of each step of a run; ``keep`` takes the full feeds."""
        states, found = dict(self.first if first is None else first), []
        for step in self.steps:
            full = {**step, **states}
            if keep is not None:
                keep.append(full)
            found.append(run(full))
            states = {taken: found[-1][back] for taken, back in self.pairs.items()}
        return found

    def moves(self, part: float) -> list[dict[str, float]]:
        """Return how far outputs move at each step if every tensor is disturbed by a part."""
        if part not in self._moves:
            interpreter = Interpreter(self.model)
            most: list[dict[str, float]] = [{} for _ in self.steps]
            for draw in range(_DRAWS):
                noise = Noise(part, draw)
                disturbed = self.rolled(lambda feeds, noise=noise: interpreter.run(feeds, noise))
                for step, values in enumerate(disturbed):
                    for name, value in values.items():
                        gap = distance(value, self.outputs[step][name])
                        most[step][name] = max(most[step].get(name, 0.0), gap)
            self._moves[part] = most
        return self._moves[part]


def session_of(model: onnx.ModelProto, *, optimized: bool) -> Run:
    """Return a function that runs a model, with our operators; Fallen if it does not load or run."""
    levels = onnxruntime.GraphOptimizationLevel
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimized else levels.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    ops.register_custom_ops(options)
    where = f"in {'a default session' if optimized else 'a session without optimization'}"
    try:
        data = model.SerializeToString()
        session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise Fallen(f"does not load {where}: {_line(error)}") from None
    names = [output.name for output in session.get_outputs()]

    def _run(feeds: Feeds) -> Feeds:
        try:
            return dict(zip(names, map(np.asarray, session.run(names, feeds)), strict=True))
        except Exception as error:
            shapes = {name: list(array.shape) for name, array in feeds.items()}
            raise Fallen(f"does not run {where} on {shapes}: {_line(error)}") from None

    return _run


def in_both(model: onnx.ModelProto) -> tuple[Run, Run]:
    """Return functions that run a model in a default session, and in one without optimization."""
    return session_of(model, optimized=True), session_of(model, optimized=False)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def held(
    story: Story,
    made: onnx.ModelProto,
    part: float | None,
    *,
    first: Feeds | None = None,
    through: Callable[[Run], Run] = lambda run: run,
) -> tuple[list[Feeds], list[Feeds]]:
    """Run a result through a story in both sessions; return the outputs of the default one, and the other's.

    They agree up to steps of 8 bits, and are as near to the float model as disturbances of ``part`` leave
    it, unless None. ``through``: makes what runs the result one that takes and makes what the float model
    does. Raises Fallen with the step, the output and both figures.
    """
    _same_ends(story, made)
    default, plain = (story.rolled(through(run), first=first) for run in in_both(made))
    for step, (found, other) in enumerate(zip(default, plain, strict=True)):
        for name in story.results:
            right = story.outputs[step][name]
            for where, value in (("", other[name]), ("in a default session ", found[name])):
                _check_kind(f"{where}'{name}' of step {step}", value, right)
            bound = _CROSSED * story.moves(STEP_OF_INT8)[step][name] + _SUMS * largest(right)
            _hold(f"sessions differ: '{name}' of step {step}", found[name], other[name], bound, right)
            if part is not None:
                bound = _MARGIN * story.moves(part)[step][name] + _SUMS * largest(right)
                _hold(f"'{name}' of step {step}", other[name], right, bound, right)
    return default, plain


def _same_ends(story: Story, made: onnx.ModelProto) -> None:
    for what in ("input", "output"):
        right, found = ([one.name for one in getattr(model.graph, what)] for model in (story.model, made))
        if found != right:
            raise Fallen(f"{what}s {found} instead of {right}")


def _check_kind(what: str, found: np.ndarray, right: np.ndarray) -> None:
    if (found.dtype, found.shape) != (right.dtype, right.shape):
        raise Fallen(
            f"{what} is {found.dtype}{list(found.shape)} instead of {right.dtype}{list(right.shape)}"
        )
    if made_nan(found, right):
        raise Fallen(f"{what} is NaN where the float model has numbers")


def _hold(what: str, found: Any, other: Any, bound: float, right: np.ndarray) -> None:
    gap = distance(found, other)
    if gap > bound:
        raise Fallen(f"{what} is {gap:.3g} off, at most {bound:.3g} by rounding ({largest(right):.3g})")
