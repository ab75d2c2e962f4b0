"""Texts in two steps. Oracle: a float decoder makes the same of a text in one step."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

from ops.array_types import Feed
from tests.helpers.cached_decoder import WORDS, cached_decoder, feed_of
from tests.helpers.decoder import decoder
from transforms import model_io
from transforms.features.caches.coded_caches import CodedCache
from transforms.features.caches.two_steps import TwoSteps
from transforms.run.run_model import Run
from transforms.run.samples import token_feed
from transforms.runtime.inputs import model_inputs

ONE = np.ones(1, np.float32)
TOKENS = np.random.default_rng(4).integers(0, WORDS, 9)


def caches(axis: int) -> list[CodedCache]:
    """Return caches of which names and the axis that grows are known."""
    return [
        CodedCache(f"past.0.{name}", f"present.0.{name}", axis if name == "key" else 2, ONE, 8)
        for name in ("key", "value")
    ]


def runner(model: onnxruntime.InferenceSession, lengths: list[int]) -> Run:
    names = [one.name for one in model.get_outputs()]

    def _run(feed: Feed) -> Feed:
        lengths.append(feed["input_ids"].shape[1])
        return dict(zip(names, model.run(names, dict(feed)), strict=True))

    return _run


@pytest.mark.parametrize("layout", ("", "BHTC", "BHCT", "BTD"))
def test_a_decoder_reads_the_second_half_with_the_caches_of_the_first(layout: str) -> None:
    built = cached_decoder(layout) if layout else decoder()
    graph = model_io.load(built)
    feed = feed_of(built, TOKENS) if layout else token_feed(TOKENS, model_inputs(graph))
    model, lengths = onnxruntime.InferenceSession(built.SerializeToString()), list[int]()
    steps = TwoSteps.of(graph, caches(layout.index("T") if layout else 2))
    assert steps is not None and steps.agrees(runner(model, []), feed)
    run = runner(model, lengths)
    found, wanted = steps.through(run)(feed), run(feed)
    assert lengths == [4, 5, 9]
    assert all(np.allclose(found[name], wanted[name], atol=1e-5) for name in wanted)


def test_a_sample_with_a_cache_is_cut_behind_it() -> None:
    built = cached_decoder()
    model = onnxruntime.InferenceSession(built.SerializeToString())
    run = runner(model, [])
    feed = feed_of(built, TOKENS[4:], run(feed_of(built, TOKENS[:4])))
    steps = TwoSteps.of(model_io.load(built), caches(2))
    assert steps is not None and steps.agrees(run, feed)


def test_what_cannot_be_cut_does_not_agree() -> None:
    """One token; a mask whose first axis nothing tells to be that of new tokens; a model without tokens."""
    built = cached_decoder()
    model = onnxruntime.InferenceSession(built.SerializeToString())
    graph = model_io.load(built)
    steps = TwoSteps.of(graph, caches(2))
    assert steps is not None and not steps.agrees(runner(model, []), feed_of(built, TOKENS[:1]))
    graph.inputs[1].shape = [1, 1, None, None]
    unnamed = TwoSteps.of(graph, caches(2))
    assert unnamed is not None and not unnamed.agrees(runner(model, []), feed_of(built, TOKENS))
    graph.inputs = graph.inputs[1:]
    assert TwoSteps.of(graph, caches(2)) is None and TwoSteps.of(graph, []) is None
