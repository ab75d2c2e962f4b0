"""A model with what its conversions are held against: noise of the size of their steps, and two sessions."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tests.attack.graphs.build import Built
from tests.attack.graphs.distances import difference, distance, largest, made_nan
from tests.attack.graphs.hooks import Huge, Noise, Rounded, rough
from tests.attack.graphs.interpret import Interpreter, Unsupported
from tests.attack.graphs.tool_runs import Fallen, Outcome, call, run

_RUNTIME_FAULTS = ("gemm_input_reshape", "gemm_output_reshape", "Shape mismatch attempting to re-use buffer")
"""Words of errors at run time that no model can help.

Its fusion of MatMul and Add reshapes a tensor without elements wrongly; its plan of memory follows onnx's
inference, which counts one element more than its MaxPool with ceil_mode if the last window is outside.
"""
FINE = 1e-4
"""The disturbance that stands for float32 sums in another order, and for biases in steps of int32."""
INTEGER_STEP = 2**-8
"""Half a step of 8 bits beside the largest number of a tensor, of both signs."""
COARSE = 2**-2
"""A step that no format's is above."""
PLAIN = ("--set", "correct_biases=false", "--set", "saturation='ignore'")
"""Options with which nodes make all the roundings that there are."""
_DRAWS, _MARGIN, _CROSSED = 6, 12.0, 4.0
_LEAST = {2**-10: 2.0**-24}
"""Formats that have a least number worth mentioning (FP16), by their step: what is smaller becomes 0."""


@dataclass
class Trial:
    """A graph with what its conversions are held against."""

    built: Built
    source: Path
    folder: Path
    notes: list[str] = field(default_factory=list)
    fallen: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rough = rough(self.built.model.graph)
        self.interpreter = Interpreter(self.built.model)
        self.expected: dict[str, Any] | None = None
        huge = Huge()
        try:
            self.expected = self.interpreter.run(self.built.feeds, huge)
        except Unsupported as reason:
            self.notes.append(f"no oracle: {reason}")
        self.meets_huge = huge.seen
        self.deviations: dict[float, dict[str, float]] = {}

    def rounded(self) -> dict[str, Any]:
        """Return the outputs of the float model with every value rounded between nodes."""
        ends = *self.built.model.graph.input, *self.built.model.graph.output
        halves = {end.name for end in ends if end.type.tensor_type.elem_type == onnx.TensorProto.FLOAT16}
        return self.interpreter.run(self.built.feeds, Rounded(self.interpreter.model, halves))

    @property
    def feedable(self) -> bool:
        """Whether a sample on disk can hold the feed."""
        return all("/" not in name for name in self.built.feeds)

    def deviation(self, part: float) -> dict[str, float]:
        """Return how far each output moves if every tensor is disturbed by a part of its largest number."""
        assert self.expected is not None
        if part not in self.deviations:
            found: dict[str, float] = {}
            for draw in range(_DRAWS):
                moved = self.interpreter.run(self.built.feeds, Noise(part, draw, _LEAST.get(part, 0.0)))
                for name, value in self.expected.items():
                    found[name] = max(found.get(name, 0.0), distance(moved[name], value))
            self.deviations[part] = found
        return self.deviations[part]

    def _moves(self, part: float) -> dict[str, float] | None:
        """Return the deviation, or None with a note: disturbed sizes or indices may not run at all."""
        try:
            return self.deviation(part)
        except Exception as error:
            self.notes.append(f"not disturbed: {type(error).__name__}")
            return None

    def attempt(self, what: str, step: Any, *arguments: Any) -> Any:
        """Return what a step returns; None, with a note, if a claim fell."""
        try:
            return step(*arguments)
        except Fallen as error:
            if "does not run" in str(error) and any(known in str(error) for known in _RUNTIME_FAULTS):
                self.notes.append(
                    f"a fault of ONNX Runtime: {next(k for k in _RUNTIME_FAULTS if k in str(error))}"
                )
            elif "does not run" in str(error) and not self._runs_optimized():
                self.notes.append("ONNX Runtime optimizes the float model to one that does not run, too")
            elif "does not run" in str(error) and self._rounds_do_not_run():
                self.notes.append("sizes that rounding changes: does not run either way")
            else:
                self.fallen.append(f"{what}: {error}")
        return None

    def _runs_optimized(self) -> bool:
        """Return whether the float model loads and runs in a session with its own optimization."""
        try:
            run(self.built.model, self.built.feeds, optimized=True)
        except Fallen:
            return False
        return True

    def _rounds_do_not_run(self) -> bool:
        """Return whether rounded numbers fail the evaluation, too: the size of a Unique is one of them."""
        if self.expected is None:
            return False
        try:
            self.rounded()
        except Exception:
            return True
        return False

    def convert(self, tool: str, *options: str) -> Outcome:
        """Return what a tool makes of the model; a refusal is noted without its names."""
        outcome = call(tool, self.source, self.folder / "out.onnx", *options)
        if outcome.refusal is not None:
            if "'" not in outcome.refusal:
                raise Fallen(f"a refusal that names nothing: {outcome.refusal}")
            self.notes.append("refused: " + re.sub(r"'.*?'", "'...'", outcome.refusal)[:110])
        return outcome

    def near(self, found: dict[str, Any], part: float, *, jumps: bool) -> None:
        """Raise Fallen if an output is farther from the float model than disturbed values carry it."""
        if self.expected is None:
            return
        moves = self._moves(part)
        for name, value in self.expected.items() if moves else ():
            if name in self.rough and not jumps:
                continue
            bound = _MARGIN * moves[name] + 1e-5 * largest(value)
            gap = distance(found[name], value)
            if gap > bound:
                raise Fallen(
                    f"'{name}' is {gap:.3g} off, at most {bound:.3g} by rounding ({largest(value):.3g})"
                )

    def opened(self, model: onnx.ModelProto, part: float) -> dict[str, Any]:
        """Return the outputs of a result without optimization; those of a default session are held to them.

        What such a session may change is a rounding here and there: sums in another order and kernels for
        integers carry a number across the border between two steps, ``part`` of a tensor's largest number.
        """
        found = run(model, self.built.feeds)
        self._plausible(found, "")
        users = run(model, self.built.feeds, optimized=True)
        self._plausible(users, "in a default session ")
        if difference(users, found) is None or self.expected is None:
            return found
        moves = self._moves(part)
        for name, value in found.items() if moves else ():
            if name in self.rough:
                continue
            bound = _CROSSED * moves[name] + 1e-5 * largest(value)
            gap = distance(users[name], value)
            if gap > bound:
                raise Fallen(
                    f"'{name}' is {gap:.3g} off in a default session, at most {bound:.3g} by rounding "
                    f"({largest(value):.3g})"
                )
        return found

    def _plausible(self, found: dict[str, Any], where: str) -> None:
        """Raise Fallen for another interface, and for NaN where the float model has numbers."""
        try:
            self.same_interface(found)
        except Fallen as error:
            raise Fallen(f"{where}{error}") from None
        for name, value in found.items():
            if made_nan(value, self.built.outputs[name]):
                raise Fallen(f"{where}'{name}' is NaN where the float model has numbers")

    def same_interface(self, found: dict[str, Any]) -> None:
        """Raise Fallen if outputs have other names, types or, if no number decides them, other shapes."""
        expected = self.built.outputs
        if list(found) != list(expected):
            raise Fallen(f"outputs {list(found)} instead of {list(expected)}")
        for name in expected:
            if name not in self.rough and not isinstance(expected[name], list):
                _check_kind(name, found[name], expected[name])


def _check_kind(name: str, found: np.ndarray, expected: np.ndarray) -> None:
    kinds = [f"{array.dtype}{list(array.shape)}" for array in (found, expected)]
    if kinds[0] != kinds[1]:
        raise Fallen(f"'{name}' is {kinds[0]} instead of {kinds[1]}")
    if expected.dtype.kind not in "fO" and not np.array_equal(found, expected):
        numbers = [str(array.reshape(-1)[:4]) for array in (found, expected)]
        raise Fallen(f"'{name}' is {numbers[0]} instead of {numbers[1]}")
