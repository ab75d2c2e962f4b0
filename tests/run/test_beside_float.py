"""Time of a model beside its float model. Oracle: a processor with given times."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from transforms.run import beside_float, turns
from transforms.run.beside_float import BesideFloat, time_beside_float
from transforms.run.run_model import open_model
from transforms.runtime.session import OpenModel, RunOptions

FEED = {"x": np.random.default_rng(1).standard_normal((64, 256)).astype(np.float32)}


def path_of(folder: Path, name: str, nodes: str) -> Path:
    text = (
        f'<ir_version: 8, opset_import: ["": 17]> main (float[64,256] x) => (float[64,256] y) {{ {nodes} }}'
    )
    onnx.save(onnx.parser.parse_model(text), folder / name)
    return folder / name


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let only the clock of the processor count, however busy the machine is."""
    monkeypatch.setattr(turns, "_PATIENCE", math.inf)


@dataclass
class Work:
    """A processor that works for given seconds in each run of a model, by the name of its file."""

    seconds: Mapping[str, Sequence[float]]
    now: float = 0.0
    ran: list[str] = field(default_factory=list)

    def open(self, path: Path, options: RunOptions) -> OpenModel:
        """Stand in for :func:`open_model`; that a run takes no time is said by the clock alone."""
        opened = open_model(path, options)
        run = opened.run

        def _run(*given: Any) -> Any:
            self.now += next(left)
            self.ran.append(path.stem)
            return run(*given)

        left = cycle(self.seconds[path.stem])
        opened.run = _run  # type: ignore[method-assign]
        return opened

    def timed(self, made: Path, before: Path) -> BesideFloat:
        """Return the times by the clock of this processor."""
        openers = partial(self.open, made), partial(self.open, before)
        return time_beside_float(openers, (FEED, FEED), RunOptions(), lambda: self.now)


def test_a_slower_model_names_the_operators_that_it_has_more_of(tmp_path: Path) -> None:
    before = path_of(tmp_path, "a.onnx", "y = Relu(x)")
    chain = " ".join(f"e{i} = Erf({'x' if not i else f'e{i - 1}'})" for i in range(20))
    made = path_of(tmp_path, "b.onnx", f"{chain} y = Relu(e19)")
    found = Work({"a": [1e-3], "b": [2e-3]}).timed(made, before)
    assert found.is_slower and found.ratio.median == pytest.approx(2)
    (one,) = found.lost
    assert (one.op, one.nodes, one.before) == ("Erf", 20, 0) and one.seconds > 0


def test_a_model_that_is_not_slower_is_not_profiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside_float, "profiled", None)
    before, made = (path_of(tmp_path, f"{name}.onnx", "y = Relu(x)") for name in "ab")
    for seconds in ([1e-3], [1.9e-3], [1e-3, 4e-3]):  # of the last nothing can be said
        found = Work({"a": [2e-3], "b": seconds}).timed(made, before)
        assert not found.is_slower and found.lost == ()


def test_times_are_of_neighbours_in_turn_and_of_the_processor(tmp_path: Path) -> None:
    """Runs differ by far more than the models do, in rounds of both."""
    before, made = (path_of(tmp_path, f"{name}.onnx", "y = Relu(x)") for name in "ab")
    work = Work({"a": [1e-3, 1e-4, 5e-4], "b": [7e-4, 7e-5, 3.5e-4]})
    found = work.timed(made, before)
    assert "".join(work.ran) == "ab" * (1 + found.ratio.runs) and found.ratio.runs == 100
    assert (found.ratio.low, found.ratio.median, found.ratio.high) == pytest.approx((0.7, 0.7, 0.7))
    assert found.before.median == pytest.approx(5e-4) and found.made.median == pytest.approx(3.5e-4)


def test_a_third_of_a_second_is_enough_and_so_are_three_rounds(tmp_path: Path) -> None:
    before, made = (path_of(tmp_path, f"{name}.onnx", "y = Relu(x)") for name in "ab")
    for seconds, rounds in ((1e-3, 100), (0.006, 25), (0.5, 3)):
        found = Work({"a": [seconds], "b": [seconds]}).timed(made, before)
        assert abs(found.ratio.runs - rounds) <= 1


def test_kernels_of_the_optimizer_are_held_against_what_they_stand_for() -> None:
    made = {"QLinearConv": (2, 3e-3), "QuantizeLinear": (1, 1e-3), "Relu": (1, 1e-3)}
    before = {"FusedConv": (2, 2e-3), "Relu": (1, 2e-3)}
    first, second = beside_float._lost(made, before)
    assert (first.op, first.nodes, first.seconds) == ("QLinearConv", 2, 3e-3)
    assert first.before == pytest.approx(2e-3)
    assert (second.op, second.before) == ("QuantizeLinear", 0)
