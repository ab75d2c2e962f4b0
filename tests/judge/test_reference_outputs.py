"""Runs of the float model that several steps share. Oracle: the runtime's own outputs."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.helpers import corpus
from tests.helpers.judged_networks import network, samples
from transforms import model_io
from transforms.judge.reference import Reference
from transforms.run.run_model import open_model
from transforms.runtime.session import OpenModel

FEEDS = samples(6, 3)


def test_samples_hold_outputs_and_what_these_saturate() -> None:
    graph = model_io.load(network(0, 0.5, 1.0, softmax=True))
    reference = Reference(graph, FEEDS, None)
    made = reference.samples(6)
    assert (
        reference.outputs == ["y"]
        and reference.shown == ["y", "logits", "r3"]
        and set(reference.views) == {"logits", "r3"}
    )
    assert [sample.fold for sample in made] == [0, 1] * 3
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
    reference, seen = Reference(graph, FEEDS, None), list[NDArray[np.float32]]()
    if most:
        reference.watch(["r1"], lambda name, array: seen.append(array.copy()), most)
    assert len(runs) == len(seen) == min(most, 6)
    first = reference.samples(3)
    assert reference.outputs == ["y"] and len(reference.samples(6)) == len(runs) == 6
    assert all(
        one.expected["y"] is other.expected["y"]
        for one, other in zip(first, reference.samples(3), strict=True)
    )
    assert all((array >= 0).all() and array.shape == (1, 16, 12, 12) for array in seen)


def test_another_feed_is_run_before_samples_and_after_them() -> None:
    graph, other = model_io.load(network(0, 0.5, 1.0)), samples(1, 4)[0]
    reference, expected = Reference(graph, FEEDS, None), open_model(graph).run(other)
    for _ in range(2):
        made = reference.run(other)
        assert list(made) == ["y"]
        np.testing.assert_allclose(made["y"], expected["y"], rtol=1e-5)
        assert len(reference.samples(2)) == 2


def test_the_graph_may_be_changed_afterwards() -> None:
    graph = model_io.load(network(0, 0.5, 1.0))
    expected = Reference(graph, FEEDS, None).samples(2)
    reference = Reference(graph, FEEDS, None)
    next(node for node in graph.nodes if node.op == "Relu").op = "Neg"
    for one, other in zip(reference.samples(2), expected, strict=True):
        np.testing.assert_array_equal(one.expected["y"], other.expected["y"])


def test_of_a_graph_that_stays_no_copy_is_made() -> None:
    """What is done to it all the same shows: the promise is the caller's."""
    graph = model_io.load(network(0, 0.5, 1.0))
    expected = Reference(graph, FEEDS, None).samples(2)
    assert np.array_equal(
        Reference(graph, FEEDS, None, stays=True).samples(2)[1].expected["y"], expected[1].expected["y"]
    )
    reference = Reference(graph, FEEDS, None, stays=True)
    next(node for node in graph.nodes if node.op == "Relu").op = "Neg"
    assert not np.array_equal(reference.samples(2)[1].expected["y"], expected[1].expected["y"])


COUNTED = """(float[8] x) => (float[n] y, float[8] z) {
    a = Tanh(x) zero = Sub(a, a) over = Greater(a, zero) places = NonZero(over) rows = Transpose(places)
    y = GatherND(a, rows) z = Sin(a) }"""


def test_other_tensors_stand_for_an_output_whose_rows_numbers_choose() -> None:
    graph = model_io.load(corpus.parse(COUNTED))
    feeds = [{"x": np.random.default_rng(i).standard_normal(8).astype(np.float32)} for i in range(3)]
    asked: list[int] = []
    reference = Reference(graph, feeds, None, known=lambda: asked.append(1) or {"a", "z"})
    assert asked == [1] and reference.judged == {"y": ["a"], "z": ["z"]} and reference.outputs == ["z", "a"]
    assert Reference(graph, feeds, None, known=set).judged["y"] == []
    assert reference.judged_by(1) == {"z": ["z"]} and reference.judged_by(-1) is reference.judged
    assert reference.outputs_of(reference.judged_by(0)) == ["a"]
    with pytest.raises(ValueError, match=r"^output 2 is not there, the model has 2, the first is 0$"):
        reference.judged_by(2)


def test_all_that_the_float_model_makes_is_there_as_it_is() -> None:
    graph = model_io.load(network(0, 0.5, 1.0, softmax=True))
    reference, model = Reference(graph, FEEDS, None), open_model(graph)
    made = reference.made(["y"])
    assert len(made) == len(FEEDS) and all(one.keys() == {"y"} for one in made)
    for one, feed in zip(made, FEEDS, strict=True):
        np.testing.assert_allclose(one["y"], model.run(feed)["y"], rtol=1e-5)
