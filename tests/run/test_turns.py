"""Models that take turns. Oracles: quartiles by hand, and sessions that write down who ran when.

Clocks are made up, so that nothing depends on how fast or how busy the machine is.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, cast

import numpy as np
import onnx_graphsurgeon as gs
import pytest

from tests.helpers import tunable
from transforms import model_io
from transforms.run import turns as module
from transforms.run.turns import (
    Timing,
    clock_for,
    is_clear,
    ratio,
    take_turns,
    timed_options,
)
from transforms.runtime.session import OpenModel, RunOptions, open_session


class Runner:
    """Writes its name and what it is fed into a common list."""

    def __init__(self, name: str, log: list[tuple[str, Any]]) -> None:
        self._name, self._log = name, log

    def run(self, feed: Mapping[str, Any]) -> None:
        self._log.append((self._name, feed["x"]))


def turns(count: int, runs: int, seconds: float, samples: int = 1, fewest: int = 1) -> list[tuple[str, Any]]:
    log: list[tuple[str, Any]] = []
    models = cast("list[OpenModel]", [Runner("abc"[i], log) for i in range(count)])
    feeds = [[{"x": number}] * count for number in range(samples)]
    clock = iter(range(10**6)).__next__
    found = take_turns(models, lambda: cast("Any", feeds), runs, seconds, clock=clock, fewest=fewest)
    assert {one for model in found for one in model} == {1}
    assert [len(one) for one in found] == [(len(log) - count) // count] * count
    return log


def test_models_take_turns_after_a_run_that_is_not_timed() -> None:
    names = "".join(name for name, _ in turns(3, 4, 1e9))
    assert names == "abc" * 5


def test_all_models_run_each_sample_and_passes_are_whole() -> None:
    fed = [number for _, number in turns(2, 3, 1e9, samples=2)]
    assert fed == [0, 0] + [0, 0, 1, 1] * 2


def test_seconds_of_inferences_end_the_runs_after_the_fewest() -> None:
    """Each takes a second by the clock, and nothing on the wall."""
    assert len(turns(2, 99, 0.0)) == 2 + 2
    assert len(turns(2, 99, 0.0, fewest=5)) == 2 + 5 * 2
    assert len(turns(2, 99, 11.0)) == 2 + 6 * 2


def test_what_was_timed_may_be_enough_after_the_fewest() -> None:
    log: list[tuple[str, Any]] = []
    models = cast("list[OpenModel]", [Runner(name, log) for name in "ab"])
    found = take_turns(
        models,
        lambda: [[{"x": 0}] * 2],
        99,
        1e9,
        clock=iter(range(10**6)).__next__,
        fewest=3,
        until=lambda seconds: len(seconds[0]) >= 2,
    )
    assert [len(one) for one in found] == [3, 3]


@pytest.mark.parametrize(("bound", "clear"), [(1.03, True), (1.01, False), (0.99, True), (1.0, False)])
def test_a_lead_of_rounds_on_one_side_of_a_bound_is_clear(bound: float, clear: bool) -> None:
    """Of eleven rounds, eight are below 1.03, seven below 1.01, six below 1, and three below 0.99."""
    made = [0.98] * 3 + [0.995] * 3 + [1.005, 1.02, 1.2, 1.2, 1.2]
    assert is_clear(bound, (made, [1.0] * 11)) == clear


@pytest.mark.parametrize("odds", [Fraction(1, 4), Fraction(3, 4)])
def test_one_in_244_is_wrong_of_three_in_four_rounds(odds: Fraction) -> None:
    """The lead is a walk that goes up with these odds; oracle: the chance that a gambler is ruined."""
    ends = [lead for lead in range(100) if is_clear(1.0, ([0.5] * lead, [1.0] * lead))]
    end, step = ends[0], (1 - odds) / odds
    up = (1 - step**end) / (1 - step ** (2 * end))
    assert min(up, 1 - up) == Fraction(1, 244)


def test_on_a_busy_machine_the_wall_ends_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a second passes at each look at the wall, of which the processor works for nothing."""
    wall = iter(range(10**6))
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(wall) / 2)
    log: list[tuple[str, Any]] = []
    models = cast("list[OpenModel]", [Runner(name, log) for name in "ab"])
    found = take_turns(models, lambda: [[{"x": 0}] * 2], 99, 1.0, clock=lambda: 0.0, fewest=2)
    assert [len(one) for one in found] == [6, 6]


def test_quartiles() -> None:
    assert Timing.of([4.0, 1.0, 3.0, 2.0, 5.0]) == Timing(3.0, 2.0, 4.0, 5)
    assert Timing.of([7.0]) == Timing(7.0, 7.0, 7.0, 1)


def test_ratios_are_of_neighbours() -> None:
    """Rounds take 1 to 1000 seconds, one model always half as much again as the other."""
    seconds = [10.0**i for i in range(4)]
    found = ratio([1.5 * one for one in seconds], seconds)
    assert (found.low, found.median, found.high, found.runs) == (1.5, 1.5, 1.5, 4)
    assert ratio([1.0, 2.0, 3.0], [1.0, 1.0, 1.0]) == Timing(2.0, 1.5, 2.5, 3)


def test_the_clock_counts_what_the_processor_does_for_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """On one thread, unless more are asked for; of another device, or if it is coarse, the wall tells."""
    plain = timed_options(RunOptions())
    assert plain == RunOptions(threads=1, spin=False)
    several = timed_options(RunOptions(threads=4))
    assert several == RunOptions(threads=4, spin=False)
    monkeypatch.setattr(module, "_step", {time.thread_time: 1e-6, time.process_time: 0.016}.__getitem__)
    assert clock_for(plain) is time.thread_time and clock_for(several) is time.perf_counter
    monkeypatch.setattr(module, "_step", lambda _: 1e-9)
    assert clock_for(plain) is time.thread_time and clock_for(several) is time.process_time
    monkeypatch.setattr(module, "provider_name", lambda _: "CUDAExecutionProvider")
    assert clock_for(plain) is time.perf_counter


def test_a_step_of_a_clock_is_between_times_that_differ() -> None:
    assert module._step(iter([3.0, 3.0, 3.0, 3.5, 9.0]).__next__) == 0.5


def test_a_thread_that_waits_takes_no_time() -> None:
    start = clock_for(timed_options(RunOptions()))()
    time.sleep(0.2)
    assert clock_for(timed_options(RunOptions()))() - start < 0.1


def test_graphs_are_run_on_what_they_read_of_the_feeds() -> None:
    """Two models of which one reads a tensor more; five runs of each if there is no time."""
    model = tunable.conv_net()
    graphs: list[gs.Graph] = [model_io.load(model), model_io.load(model)]
    feed = dict(tunable.samples(model, 1)[0])
    found = module.Turns()(graphs, [feed | {"other": np.zeros(3)}], RunOptions(threads=1), 0.0)
    assert [len(one) for one in found] == [5, 5] and all(second > 0 for one in found for second in one)


def test_graphs_take_turns_until_it_is_clear_which_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock on which all runs take the same time: less than 2 times as long, not less than 0.9 times."""
    model = tunable.conv_net()
    graphs: list[gs.Graph] = [model_io.load(model), model_io.load(model)]
    monkeypatch.setattr(module, "clock_for", lambda _: iter(range(10**6)).__next__)
    for bound, rounds in ((None, 100), (0.9, 5), (2.0, 5)):
        found = module.Turns()(graphs, tunable.samples(model, 1), RunOptions(threads=1), 1e9, bound)
        assert [len(one) for one in found] == [rounds] * 2


def test_a_graph_that_takes_turns_again_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    model, opened = tunable.conv_net(), list[gs.Graph]()
    first, second, third = (model_io.load(model) for _ in range(3))

    def _open(graph: gs.Graph, options: RunOptions) -> OpenModel:
        opened.append(graph)
        return open_session(graph, options)

    monkeypatch.setattr(module, "open_session", _open)
    turns, feeds = module.Turns(), tunable.samples(model, 1)
    for pair in ((first, second), (third, second), (first, second)):
        turns(pair, feeds, RunOptions(threads=1), 0.0)
    turns((first, second), feeds, RunOptions(threads=2), 0.0)
    assert list(map(id, opened)) == list(map(id, (first, second, third, first, first, second)))
