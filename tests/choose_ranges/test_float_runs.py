"""Runs of the float model that several steps share. Oracle: the runtime's own outputs."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.choose_ranges.test_choose_settings import network, samples
from transforms import model_io
from transforms.choose_ranges.float_runs import FloatRuns
from transforms.run.run_model import open_model
from transforms.runtime.session import OpenModel

FEEDS = samples(6, 3)


def test_samples_hold_outputs_and_what_these_saturate() -> None:
    graph = model_io.load(network(0, 0.5, 1.0, softmax=True))
    floats = FloatRuns(graph, FEEDS, None)
    made = floats.samples(6)
    assert (
        floats.outputs == ["y"]
        and floats.shown == ["y", "logits", "r3"]
        and set(floats.views) == {"logits", "r3"}
    )
    assert [sample.half for sample in made] == [0, 1] * 3
    model = open_model(graph)
    for sample, feed in zip(made, FEEDS, strict=True):
        assert sample.feed is feed
        np.testing.assert_allclose(sample.expected["y"], model.run(feed)["y"], rtol=1e-5)
        powers = np.exp(sample.expected["logits"])
        np.testing.assert_allclose(sample.expected["y"], powers / powers.sum(), rtol=1e-5)


@pytest.mark.parametrize("most", [0, 4, 8])
def test_a_sample_is_run_once(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    runs, run = list[int](), OpenModel.run
    monkeypatch.setattr(OpenModel, "run", lambda *given: (runs.append(1), run(*given))[1])
    graph = model_io.load(network(0, 0.5, 1.0))
    floats, seen = FloatRuns(graph, FEEDS, None), list[NDArray[np.float32]]()
    if most:
        floats.watch(["r1"], lambda name, array: seen.append(array.copy()), most)
    assert len(runs) == len(seen) == min(most, 6)
    first = floats.samples(3)
    assert floats.outputs == ["y"] and len(floats.samples(6)) == len(runs) == 6
    assert all(
        one.expected["y"] is other.expected["y"] for one, other in zip(first, floats.samples(3), strict=True)
    )
    assert all((array >= 0).all() and array.shape == (1, 16, 12, 12) for array in seen)


@pytest.mark.parametrize("step", [1, 2, 3])
def test_samples_that_were_run_are_not_run_again(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a source yields the second time may differ: outputs stay beside what they were made of."""
    runs, run = list[int](), OpenModel.run
    monkeypatch.setattr(OpenModel, "run", lambda *given: (runs.append(1), run(*given))[1])
    graph = model_io.load(network(0, 0.5, 1.0))
    floats, others = FloatRuns(graph, FEEDS[:3], None, step=step), samples(6, 8)
    assert len(floats.samples(2)) == 2 and floats.continued(others) is floats
    made = floats.samples(6)
    assert len(runs) == 6
    own = {place * step: feed for place, feed in enumerate(FEEDS[:3])}
    for place, sample in enumerate(made):
        feed = own.get(place, others[place])
        assert sample.feed is feed and sample.half == place % 2
        np.testing.assert_allclose(sample.expected["y"], open_model(graph).run(feed)["y"], rtol=1e-5)


def test_the_graph_may_be_changed_afterwards() -> None:
    graph = model_io.load(network(0, 0.5, 1.0))
    expected = FloatRuns(graph, FEEDS, None).samples(2)
    floats = FloatRuns(graph, FEEDS, None)
    next(node for node in graph.nodes if node.op == "Relu").op = "Neg"
    for one, other in zip(floats.samples(2), expected, strict=True):
        np.testing.assert_array_equal(one.expected["y"], other.expected["y"])
