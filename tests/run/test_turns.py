"""Models that take turns. Oracles: quartiles by hand, and sessions that write down who ran when."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import onnx_graphsurgeon as gs

from tests.helpers import tunable
from transforms import model_io
from transforms.run.turns import Timing, saving, take_turns, time_graphs
from transforms.runtime.session import OpenModel, RunOptions


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
    found = take_turns(models, lambda: cast("Any", feeds), runs, seconds, fewest=fewest)
    assert [len(one) for one in found] == [(len(log) - count) // count] * count
    return log


def test_models_take_turns_after_a_run_that_is_not_timed() -> None:
    names = "".join(name for name, _ in turns(3, 4, 1e9))
    assert names == "abc" + "abc" + "bca" + "cab" + "abc"


def test_all_models_run_each_sample_and_passes_are_whole() -> None:
    fed = [number for _, number in turns(2, 3, 1e9, samples=2)]
    assert fed == [0, 0] + [0, 0, 1, 1] * 2


def test_time_that_is_gone_ends_the_runs_after_the_fewest() -> None:
    assert len(turns(2, 99, 0.0)) == 2 + 2
    assert len(turns(2, 99, 0.0, fewest=5)) == 2 + 5 * 2


def test_quartiles() -> None:
    assert Timing.of([4.0, 1.0, 3.0, 2.0, 5.0]) == Timing(3.0, 2.0, 4.0, 5)
    assert Timing.of([7.0]) == Timing(7.0, 7.0, 7.0, 1)


def test_what_is_saved_counts_within_each_round() -> None:
    """Rounds differ by far more than what is saved, and that is still seen."""
    found = saving([1.0, 10.0, 100.0, 1000.0], [0.9, 9.9, 99.9, 999.9])
    assert np.allclose((found.low, found.median, found.high), 0.1)
    assert saving([1.0, 1.0, 1.0, 1.0], [0.5, 0.5, 1.5, 1.5]).low < 0


def test_graphs_are_run_on_what_they_read_of_the_feeds() -> None:
    """Two models of which one reads a tensor more; five runs of each if there is no time."""
    model = tunable.conv_net()
    graphs: list[gs.Graph] = [model_io.load(model), model_io.load(model)]
    feed = dict(tunable.samples(model, 1)[0])
    found = time_graphs(graphs, [feed | {"other": np.zeros(3)}], RunOptions(threads=1), 0.0)
    assert [len(one) for one in found] == [5, 5] and all(second > 0 for one in found for second in one)
