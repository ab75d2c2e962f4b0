"""Oracles: the built-in ``map``; equality, bit for bit, of what is run on few threads and on many."""

from __future__ import annotations

import threading
import time

import numpy as np
import onnx
import pytest
from onnx import helper

from ops.metrics import Sums
from tests.helpers import build, tunable
from tests.helpers.output_error import OutputError
from transforms.model import graph_proto
from transforms.run.kept_arrays import ActivationStore
from transforms.run.run_each import run_each, with_fixed_threads
from transforms.run.run_model import open_model
from transforms.run.segmented_model import SegmentedRun
from transforms.runtime.session import RunOptions


def _wide_net() -> onnx.ModelProto:
    """Return x [1, 64, 8, 8] through a Conv whose sums ONNX Runtime splits by its number of threads, to y."""
    weight = np.random.default_rng(0).standard_normal((64, 64, 3, 3)).astype(np.float32)
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], "conv", pads=[1, 1, 1, 1])]
    ends = build.value("x", [1, 64, 8, 8]), build.value("y", [1, 64, 8, 8])
    return build.model(nodes, [ends[0]], [ends[1]], {"w": weight})


NET = _wide_net()
DATA = tunable.samples(NET, 3)


@pytest.mark.parametrize("threads", [1, 2, 5, 14])
def test_samples_come_in_order(threads: int) -> None:
    def run(sample: int) -> int:
        time.sleep(0.002 * (sample % 3))  # later ones are done first
        return 2 * sample

    assert list(run_each(run, range(20), RunOptions(threads=threads))) == [2 * i for i in range(20)]


@pytest.mark.parametrize("threads", [4, 5])
def test_half_as_many_run_at_once_as_there_are_threads(threads: int) -> None:
    """Both wait for each other: one at a time would wait for ever."""
    both = threading.Barrier(2, timeout=60)
    assert sorted(run_each(lambda _: both.wait(), range(2), RunOptions(threads=threads))) == [0, 1]


def test_samples_are_taken_one_ahead_of_those_that_run() -> None:
    taken = []
    found = run_each(lambda i: i, (taken.append(i) or i for i in range(50)), RunOptions(threads=6))
    assert next(found) == 0 and taken == [0, 1, 2, 3]
    found.close()


@pytest.mark.parametrize("threads", [1, 4])
def test_an_error_is_that_of_the_run(threads: int) -> None:
    with pytest.raises(ZeroDivisionError):
        list(run_each(lambda i: 1 // (2 - i), range(5), RunOptions(threads=threads)))


def test_a_model_in_steps_makes_the_same_on_any_number_of_threads() -> None:
    made = []
    for threads in (1, 2, 6):
        with ActivationStore() as store:
            stepped = SegmentedRun(
                graph_proto.import_model(NET), DATA, ["y"], store, RunOptions(threads=threads, optimize=False)
            )
            made.append([one["y"] for one in stepped.advance(["y"])])
    assert np.array_equal(made[0], made[1]) and np.array_equal(made[0], made[2])


def test_errors_of_outputs_are_the_same_on_any_number_of_threads() -> None:
    """Both sides are the same model, opened alike: errors are 0 only if each run is the same, too."""
    graph = graph_proto.import_model(NET)
    wanted = open_model(graph, with_fixed_threads(RunOptions(optimize=False)))
    sums = [Sums() for _ in DATA]
    for one, feed in zip(sums, DATA, strict=True):
        one.add(array := wanted.run(feed)["y"], array)
    powers = [one.baseline_energy for one in sums]
    for threads in (1, 2, 6):
        found = OutputError(graph, DATA, RunOptions(threads=threads, optimize=False)).each(graph)
        assert not found.errors.any() and np.array_equal(found.powers[:, 0], powers)
