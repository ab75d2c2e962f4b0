"""Codes of caches. Oracle: those that ONNX Runtime keeps itself, and that a float model keeps, rounded."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

from tests.helpers.cached_decoder import CACHES, cached_decoder, feed_of
from tests.helpers.decoder import HEADS, WORDS, decoder
from transforms import model_io
from transforms.features.caches.cache_view import CacheView
from transforms.features.caches.coded_caches import coded_caches
from transforms.model.graph_proto import export_model
from transforms.quantize_caches import find_caches, quantize_caches
from transforms.run.samples import token_feed
from transforms.runtime.inputs import model_inputs

PRESENT = ["present.0.key", "present.0.value"]


@pytest.mark.parametrize("bits", (8, 4))
def test_codes_of_numbers_are_those_that_an_attention_keeps(bits: int) -> None:
    graph = model_io.load(decoder())
    random = np.random.default_rng(1)
    scales = {name: random.uniform(0.02, 0.5, (HEADS, 32)).astype(np.float32) for name in PRESENT}
    float_graph = model_io.load(decoder())
    quantize_caches(graph, scales, bits=bits)
    caches = coded_caches(graph)
    assert [(one.past, one.present, one.tokens) for one in caches] == [
        ("past.0.key", "present.0.key", 2),
        ("past.0.value", "present.0.value", 2),
    ]
    feed = token_feed(random.integers(0, WORDS, 9), model_inputs(float_graph))
    made = onnxruntime.InferenceSession(export_model(graph).SerializeToString())
    wanted = onnxruntime.InferenceSession(decoder().SerializeToString())
    kept = dict(zip(PRESENT, wanted.run(PRESENT, feed), strict=True))
    codes = dict(zip(PRESENT, made.run(PRESENT, CacheView(caches).fed(feed)), strict=True))
    for one in caches:
        mine = one.encode(kept[one.present])
        assert mine.dtype == codes[one.present].dtype and mine.shape == codes[one.present].shape
        numbers, theirs = one.decode(mine), one.decode(codes[one.present])
        assert (np.abs(numbers - theirs) <= one.scale * 1.001).all()
        assert (numbers == theirs).mean() > 0.99
        assert np.array_equal(one.encode(theirs), codes[one.present])  # so that both ways are one


def test_a_concat_takes_codes_in_the_scale_of_its_axis() -> None:
    built = cached_decoder("BHCT")
    graph = model_io.load(built)
    scales = {}
    for one in find_caches(graph):
        shape = [one.past.shape[axis] for axis in one.channels]
        scales[str(one.present.name)] = np.random.default_rng(3).uniform(0.01, 0.1, shape).astype(np.float32)
    quantize_caches(graph, scales)
    keys, values = coded_caches(graph)
    assert keys.past == CACHES[0] and (keys.tokens, values.tokens) == (3, 2)
    feed = feed_of(built, np.arange(6))
    for one in (keys, values):
        shape = np.where(np.arange(4) == one.tokens, 5, feed[one.past].shape)
        feed[one.past] = np.full(shape, 0.25, np.float32)
    feed["mask"] = np.zeros((1, 1, 6, 11), np.float32)
    names = ["logits", "present.0.key"]
    made = onnxruntime.InferenceSession(export_model(graph).SerializeToString())
    view = CacheView([keys, values])
    run = view.in_float(lambda fed: dict(zip(names, made.run(names, fed), strict=True)))
    found = run(feed)["present.0.key"]
    wanted = onnxruntime.InferenceSession(built.SerializeToString()).run(names, feed)[1]
    inside = np.clip(wanted, -128 * keys.scale, 127 * keys.scale)
    assert (np.abs(found - inside) <= keys.scale * 0.501).all()
