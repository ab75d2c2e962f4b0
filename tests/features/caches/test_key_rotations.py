"""Keys in other axes. Oracle: the logits of the decoder as it was, and its keys turned in NumPy."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.helpers.decoder import HEADS, WORDS, decoder
from transforms import model_io
from transforms.features.caches.coded_caches import coded_caches
from transforms.features.caches.fit_rotations import balancing, fit_rotations
from transforms.features.caches.key_rotations import Rotation, key_rotation, rotate_keys, takes_rotation
from transforms.model.graph_proto import export_model
from transforms.quantize_caches import find_caches, quantize_caches
from transforms.run.samples import token_feed
from transforms.runtime.inputs import model_inputs
from transforms.runtime.session import RunOptions

RANDOM = np.random.default_rng(11)
SIZE, LONGEST = 32, 64
KEY, VALUE = "present.0.key", "present.0.value"
ROTATION = Rotation(
    RANDOM.standard_normal((HEADS, SIZE)).astype("f"),
    RANDOM.standard_normal((HEADS, SIZE, SIZE)).astype("f") / 4 + np.eye(SIZE, dtype="f"),
)


def rotary(channels: int, **attributes: float) -> onnx.ModelProto:
    """Return the decoder with twice as many heads of queries, and a rotary embedding of some channels."""
    model = decoder()
    for one in model.graph.initializer:
        if one.name in ("wq", "wo"):
            array = onnx.numpy_helper.to_array(one)
            twice = np.concatenate([array, 0.5 * array], int(one.name == "wq"))
            one.CopyFrom(onnx.numpy_helper.from_array(twice, one.name))
    attention = next(node for node in model.graph.node if node.op_type == "GroupQueryAttention")
    next(one for one in attention.attribute if one.name == "num_heads").i = 2 * HEADS
    if channels:
        angles = np.arange(LONGEST)[:, None] * 10.0 ** -np.arange(channels // 2)
        for name, array in (("cos", np.cos(angles)), ("sin", np.sin(angles))):
            model.graph.initializer.append(onnx.numpy_helper.from_array(array.astype("f"), name))
        attention.input.extend(["cos", "sin"])
        attributes["do_rotary"] = 1
    attention.attribute.extend(onnx.helper.make_attribute(*one) for one in attributes.items())
    return model


def read(model: onnx.ModelProto, counts: tuple[int, ...], batch: int) -> list[dict[str, np.ndarray]]:
    """Return what is made of texts that are read in steps."""
    session, tokens = onnxruntime.InferenceSession(model.SerializeToString()), np.random.default_rng(3)
    names, made, total = [one.name for one in session.get_outputs()], list[dict[str, np.ndarray]](), 0
    caches = {f"past.0.{kind}": np.zeros((batch, HEADS, 0, SIZE), "f") for kind in ("key", "value")}
    for count in counts:
        total += count
        ids, mask = tokens.integers(0, WORDS, (batch, count)), np.ones((batch, total), np.int64)
        if batch > 1 and len(made) == 0:
            mask[1, -2:] = 0  # the second text is shorter
        fed = {"input_ids": ids, "attention_mask": mask, **caches}
        made.append(dict(zip(names, session.run(None, fed), strict=True)))
        caches = {f"past.0.{kind}": made[-1][f"present.0.{kind}"] for kind in ("key", "value")}
    return made


@pytest.mark.parametrize(
    ("channels", "attributes"), [(0, {}), (SIZE, {}), (SIZE, {"rotary_interleaved": 1}), (SIZE // 2, {})]
)
def test_keys_are_kept_turned_and_logits_stay(channels: int, attributes: dict[str, float]) -> None:
    """At once, and by one token and several behind what is kept; a text that is shorter than its row, too."""
    built = rotary(channels, **attributes)
    graph = model_io.load(built)
    (node,) = (one for one in graph.nodes if one.op == "GroupQueryAttention")
    assert takes_rotation(node) and key_rotation(node) is None
    rotate_keys(graph, [(node, ROTATION)])
    turned = key_rotation(node)
    assert turned is not None and np.array_equal(turned.matrix, ROTATION.matrix)
    made = export_model(graph)
    onnx.checker.check_model(made, full_check=True)
    for counts, batch in (((7, 1, 4), 1), ((6,), 2)):
        for one, other in zip(read(built, counts, batch), read(made, counts, batch), strict=True):
            rows = slice(None) if batch == 1 else slice(0, 4)  # that both texts have
            assert np.allclose(one["logits"][:, rows], other["logits"][:, rows], atol=2e-4)
            assert np.allclose(ROTATION.kept(one[KEY])[..., rows, :], other[KEY][..., rows, :], atol=1e-3)
            assert np.allclose(ROTATION.keys(other[KEY])[..., rows, :], one[KEY][..., rows, :], atol=1e-3)


def test_keys_and_values_of_float16_are_told_apart() -> None:
    text = """<ir_version: 10, opset_import: ["": 17, "com.microsoft": 1]>
    main (float[B,S,64] q, float[B,S,64] k, float[B,S,64] v, float16[B,2,P,32] pk, float16[B,2,P,32] pv,
          int32[B] lengths, int32 total) => (float[B,S,64] y, float16[B,2,T,32] ok, float16[B,2,T,32] ov) {
        wide_k = Cast <to = 1> (pk)  wide_v = Cast <to = 1> (pv)
        y, made_k, made_v = com.microsoft.GroupQueryAttention <num_heads = 2, kv_num_heads = 2>
            (q, k, v, wide_k, wide_v, lengths, total)
        ok = Cast <to = 10> (made_k)  ov = Cast <to = 10> (made_v)
    }"""
    keys, values = find_caches(model_io.load(onnx.parser.parse_model(text)))
    assert keys.takes_rotation and not keys.takes_offset
    assert values.takes_offset and not values.takes_rotation


@pytest.mark.parametrize("attributes", [{"softcap": 30.0}, {"smooth_softmax": 1}])
def test_scores_that_a_softmax_does_not_read_alone_are_left(attributes: dict[str, float]) -> None:
    (cache, _) = find_caches(model_io.load(rotary(SIZE, **attributes)))
    assert cache.is_of_keys and not cache.takes_rotation


def test_codes_are_of_turned_keys() -> None:
    graph = model_io.load(rotary(SIZE))
    cache, _ = find_caches(graph)
    rotate_keys(graph, [(cache.node, ROTATION)])
    scale = np.full((HEADS, SIZE), 0.2, "f")
    assert quantize_caches(graph, {KEY: scale, VALUE: scale}, bits=4) == 2
    coded, _ = coded_caches(graph)
    keys = RANDOM.standard_normal((1, HEADS, 5, SIZE)).astype("f")
    kept = (keys - ROTATION.offset[:, None]) @ ROTATION.matrix / 0.2
    halves = (np.clip(np.rint(kept), -8, 7) + 8).astype(np.uint8)
    assert np.array_equal(coded.encode(keys), halves[..., ::2] | halves[..., 1::2] << 4)
    inverse = np.linalg.inv(ROTATION.matrix)
    back = (halves.astype("f") - 8) * np.float32(0.2) @ inverse + ROTATION.offset[:, None]
    assert np.allclose(coded.decode(coded.encode(keys)), back, atol=1e-3)


@pytest.mark.parametrize("number", (np.inf, 0))
def test_keys_that_are_not_finite_or_0_on_samples(number: float) -> None:
    built = rotary(0)
    for one in built.graph.initializer:
        if one.name == "wk":
            array = np.full_like(onnx.numpy_helper.to_array(one), number)
            one.CopyFrom(onnx.numpy_helper.from_array(array, one.name))
    graph = model_io.load(built)
    feed = token_feed(RANDOM.integers(0, WORDS, 8), model_inputs(graph))
    rotations = fit_rotations(graph, [feed], RunOptions())
    assert (KEY in rotations) == (number == 0)
    assert all(np.abs(one.matrix).max() < 99 for one in rotations.values())


def test_the_matrix_makes_keys_and_queries_alike_in_all_axes() -> None:
    """Where channels have nothing in common: the products of which a part is left out are 0."""
    for size in (16, 12):
        keys, queries = (np.diag(RANDOM.uniform(0.1, 9, size)) for _ in range(2))
        matrix = balancing(keys, queries)
        inverse = np.linalg.inv(matrix).T
        kept, asked = matrix.T @ keys @ matrix, inverse.T @ queries @ inverse
        assert np.allclose(kept, asked, rtol=1e-4, atol=1e-4)
        share = np.diag(kept) / np.diag(kept).mean()
        assert share.max() < (1.001 if size == 16 else 2.1)


def test_a_rotation_is_fitted_to_first_tokens_and_lowers_the_error_of_scores() -> None:
    """Against steps of least error for each channel of the keys as they are, on other texts."""
    built = rotary(SIZE)
    for one in built.graph.initializer:
        if one.name == "wk":  # a few channels of keys are large
            sizes = np.where(np.arange(HEADS * SIZE) % SIZE < 3, 8, 1).astype("f")
            one.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(one) * sizes, "wk"))
    graph = model_io.load(built)
    texts = [RANDOM.integers(0, WORDS, 24) for _ in range(6)]
    feeds = [token_feed(text, model_inputs(graph)) for text in texts]
    rotation = fit_rotations(graph, feeds, RunOptions())[KEY]
    session = onnxruntime.InferenceSession(built.SerializeToString())
    keys = np.concatenate([session.run([KEY], feed)[0] for feed in feeds])
    assert np.allclose(rotation.offset, keys[:, :, 0].mean(0), atol=1e-5)
    queries = RANDOM.standard_normal((6, HEADS, 9, SIZE)).astype("f")

    def error(kept: np.ndarray, asked: np.ndarray) -> float:
        steps = np.abs(kept).max((0, 2), keepdims=True) / 7
        lost = np.rint(kept / steps) * steps - kept
        return float(np.square(asked @ lost.swapaxes(2, 3)).mean())

    assert error(rotation.kept(keys), queries @ rotation.of_queries) < 0.8 * error(keys, queries)
