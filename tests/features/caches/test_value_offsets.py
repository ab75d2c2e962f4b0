"""Offsets of values. Oracle: the float model's logits and caches, in two steps, and codes made in NumPy."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnxruntime
import pytest

from tests.helpers.decoder import HEADS, WORDS, decoder
from transforms import model_io
from transforms.features.caches.cache_scales import first_tokens
from transforms.features.caches.cache_view import CacheView
from transforms.features.caches.coded_caches import coded_caches
from transforms.features.caches.two_steps import TwoSteps
from transforms.features.caches.value_offsets import takes_offset
from transforms.model.graph_proto import export_model
from transforms.quantize_caches import find_caches, quantize_caches
from transforms.run.run_model import Run, open_model
from transforms.run.samples import token_feed
from transforms.runtime.inputs import model_inputs

SIZE, NAME, KEYS = 32, "present.0.value", "present.0.key"
OFFSET = np.random.default_rng(4).uniform(-9, 9, (HEADS, SIZE)).astype(np.float32)


def in_groups(*, packed: bool) -> onnx.ModelProto:
    """Return the decoder with twice as many heads of queries, which may come in one with keys and values."""
    model = decoder()
    for one in model.graph.initializer:
        array = onnx.numpy_helper.to_array(one)
        if one.name in ("wq", "wo"):
            twice = np.concatenate([array, 0.5 * array], int(one.name == "wq"))
            one.CopyFrom(onnx.numpy_helper.from_array(twice, one.name))
    attention = next(node for node in model.graph.node if node.op_type == "GroupQueryAttention")
    next(one for one in attention.attribute if one.name == "num_heads").i = 2 * HEADS
    if packed:
        whole = onnx.helper.make_node("Concat", list(attention.input[:3]), ["qkv"], axis=-1)
        model.graph.node.insert(list(model.graph.node).index(attention), whole)
        attention.input[:3] = ["qkv", "", ""]
    return model


def stored(graph: gs.Graph) -> Run:
    """Return what runs a model with caches in few bits as a float model."""
    session, caches = (
        onnxruntime.InferenceSession(export_model(graph).SerializeToString()),
        coded_caches(graph),
    )
    names = [one.name for one in session.get_outputs()]
    return CacheView(caches).in_float(lambda fed: dict(zip(names, session.run(names, fed), strict=True)))


@pytest.mark.parametrize("packed", (False, True))
@pytest.mark.parametrize("bits", (8, 4))
def test_codes_are_of_values_less_the_offset(packed: bool, bits: int) -> None:
    model = in_groups(packed=packed)
    graph, scale = model_io.load(model), np.full((HEADS, SIZE), 0.25, np.float32)
    quantize_caches(graph, {NAME: scale, KEYS: scale}, bits=bits, offsets={NAME: OFFSET})
    _, cache = coded_caches(graph)
    assert cache.offset is not None and np.array_equal(cache.offset[0, :, 0], OFFSET)
    weights = {one.name: onnx.numpy_helper.to_array(one) for one in model.graph.initializer}
    ids = np.random.default_rng(7).integers(0, WORDS, 10)
    values = (weights["embedding"][ids] @ weights["wv"]).reshape(1, 10, HEADS, SIZE).transpose(0, 2, 1, 3)
    offset, lowest = OFFSET[:, None], -(1 << bits - 1)
    wanted = np.clip(np.rint((values - offset) / 0.25), lowest, -lowest - 1) * 0.25 + offset
    feed = token_feed(ids, model_inputs(model_io.load(model)))
    found = stored(graph)(feed)[NAME]
    assert (np.abs(found - wanted) < 0.251).all() and np.isclose(found, wanted, atol=1e-5).mean() > 0.99
    assert np.allclose(cache.decode(cache.encode(found)), found, atol=1e-6)  # so that both ways are one


@pytest.mark.parametrize("packed", (False, True))
def test_outputs_stay_in_one_step_and_in_two(packed: bool) -> None:
    """Both are as far from the float model's as steps of 1/32 let them be, beside an offset of 1."""
    model = in_groups(packed=packed)
    float_graph, graph = model_io.load(model), model_io.load(model)
    near = np.sign(OFFSET)
    quantize_caches(graph, dict.fromkeys((KEYS, NAME), np.full((HEADS, SIZE), 2**-5)), offsets={NAME: near})
    steps = TwoSteps.of(float_graph, coded_caches(graph))
    assert steps is not None
    feed = token_feed(np.arange(9), model_inputs(float_graph))
    wanted = open_model(float_graph).run(feed)["logits"]
    for run in (stored(graph), steps.through(stored(graph))):
        assert np.abs(run(feed)["logits"] - wanted).max() < 0.1 < np.abs(wanted).max()


def test_shares_that_do_not_add_up_to_1_take_none() -> None:
    model = decoder()
    attention = next(node for node in model.graph.node if node.op_type == "GroupQueryAttention")
    attention.attribute.append(onnx.helper.make_attribute("smooth_softmax", -1))
    assert [one.takes_offset for one in find_caches(model_io.load(model))] == [False, True]
    attention.attribute[-1].i = 1
    assert [one.takes_offset for one in find_caches(model_io.load(decoder()))] == [False, True]
    assert not any(one.takes_offset for one in find_caches(model_io.load(model)))
    node = gs.Node("GroupQueryAttention", inputs=[gs.Variable(str(i)) for i in range(12)])
    assert not takes_offset(node)


def test_a_model_s_own_subtraction_is_no_offset() -> None:
    graph = model_io.load(decoder())
    quantize_caches(graph, {NAME: np.ones((HEADS, SIZE), np.float32)}, offsets={NAME: OFFSET})
    add = next(node for node in graph.nodes if node.name.endswith("add") or node.op == "Add")
    add.inputs[1] = gs.Constant("other", np.zeros(HEADS * SIZE, np.float32))
    assert [one.offset for one in coded_caches(graph)] == [None]


def test_an_offset_is_the_mean_of_first_tokens() -> None:
    model = open_model(model_io.load(decoder()))
    feeds = [token_feed(np.arange(i, i + 5), model.inputs) for i in (0, 3, 9)]
    found = first_tokens(model, {NAME: (1, 3)}, feeds, 2)[NAME]
    wanted = np.mean([model.run(feed)[NAME][0, :, 0] for feed in feeds], 0)
    assert np.allclose(found, wanted, atol=1e-6)
