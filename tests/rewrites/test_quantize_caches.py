"""Caches in few bits. Oracle: the float model's caches rounded in NumPy, and the float model's logits."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.helpers.cached_decoder import CACHES, cached_decoder, feed_of
from tests.helpers.decoder import HEADS, WORDS, decoder
from tools import infer, quantize, report
from transforms import model_io
from transforms.features.caches.cache_scales import cache_scales
from transforms.model.graph_proto import export_model
from transforms.model.model_error import ModelError
from transforms.quantize_caches import find_caches, quantize_caches
from transforms.run.run_model import open_model
from transforms.run.samples import token_feed
from transforms.widen_float16 import widen_float16

RANDOM = np.random.default_rng(2)
LARGEST = 127
PRESENT = ("present.0.key", "present.0.value")
WIDTH = 32
JOINED = """<ir_version: 8, opset_import: ["": 17]>
main (float[1,2,S,3] new, float[1,2,P,3] past) => (float[1,2,T,3] present, float[1,2,1,3] y, int64[4] size)
<int64[1] axis = {2}> {
    present = Concat <axis = 2> (past, new)  size = Shape (past)  y = ReduceSum (present, axis)
}"""


def decibels(exact: np.ndarray, found: np.ndarray) -> float:
    return float(10 * np.log10((exact**2).sum() / ((exact - found) ** 2).sum()))


def stepped(
    model: onnxruntime.InferenceSession, tokens: np.ndarray, dtype: type, width: int = WIDTH
) -> list[np.ndarray]:
    """Return logits and caches after a text, and after one more token."""
    empty = np.zeros((1, HEADS, 0, width), dtype)
    names = ["logits", *PRESENT]
    ids = tokens[None, :-1]
    feed = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    first = model.run(names, {**feed, "past.0.key": empty, "past.0.value": empty})
    feed = {"input_ids": tokens[None, -1:], "attention_mask": np.ones_like(tokens[None])}
    second = model.run(names, {**feed, "past.0.key": first[1], "past.0.value": first[2]})
    return [*first, *second]


def test_an_attention_keeps_them_with_a_scale_for_each_channel_of_each_head() -> None:
    graph = model_io.load(decoder())
    caches = find_caches(graph)
    assert [one.present.name for one in caches] == [*PRESENT]
    exact = onnxruntime.InferenceSession(decoder().SerializeToString())
    tokens = RANDOM.integers(0, WORDS, 12)
    wanted = stepped(exact, tokens, np.float32)
    scales = {
        name: np.abs(cache).max((0, 2)) / LARGEST for name, cache in zip(PRESENT, wanted[4:], strict=True)
    }
    assert quantize_caches(graph, scales) == 2
    assert quantize_caches(graph, scales) == 0 and not find_caches(graph)
    found = onnxruntime.InferenceSession(export_model(graph).SerializeToString())
    made = stepped(found, tokens, np.int8)
    for name, cache, codes in zip(PRESENT, wanted[4:], made[4:], strict=True):
        assert codes.dtype == np.int8 and codes.shape == cache.shape
        assert np.abs(codes - cache / scales[name][None, :, None]).max() < 0.51
    assert decibels(wanted[0], made[0]) > 35 and decibels(wanted[3], made[3]) > 35


def levels(packed: np.ndarray) -> np.ndarray:
    """Return the numbers in the halves of bytes: the low half first, 8 stands for 0."""
    return np.stack([packed & 15, packed >> 4], -1).reshape(*packed.shape[:-1], -1).astype(int) - 8


def test_in_4_bits_an_attention_computes_with_the_rounded_caches() -> None:
    graph = model_io.load(decoder())
    exact = onnxruntime.InferenceSession(decoder().SerializeToString())
    tokens = RANDOM.integers(0, WORDS, 12)
    wanted = stepped(exact, tokens, np.float32)
    scales = {
        name: np.abs(cache).max((0, 2)) / 9 for name, cache in zip(PRESENT, wanted[4:], strict=True)
    }  # so that numbers are cut off
    assert quantize_caches(graph, scales, bits=4) == 2 and not find_caches(graph, 4)
    found = onnxruntime.InferenceSession(export_model(graph).SerializeToString())
    made = stepped(found, tokens, np.uint8, WIDTH // 2)
    rounded = []
    for name, cache, packed in zip(PRESENT, wanted[4:], made[4:], strict=True):
        steps = scales[name][None, :, None]
        assert packed.dtype == np.uint8
        codes = np.clip(np.rint(cache / steps), -8, 7)
        assert np.abs(levels(packed) - codes).max() <= 1 and (levels(packed) == codes).mean() > 0.99
        rounded.append((levels(packed) * steps)[0].astype(np.float32))
    weights = {one.name: onnx.numpy_helper.to_array(one) for one in decoder().graph.initializer}
    x = weights["embedding"][tokens[-1]]
    query = (x @ weights["wq"]).reshape(HEADS, WIDTH, 1)
    scores = (rounded[0] @ query)[..., 0] / WIDTH**0.5
    shares = np.exp(scores - scores.max(1, keepdims=True))
    heads = (shares / shares.sum(1, keepdims=True))[:, None] @ rounded[1]
    logits = (x + heads.reshape(-1) @ weights["wo"]) @ weights["head"]
    assert np.allclose(made[3][0, 0], logits, atol=1e-5)
    assert decibels(wanted[0], made[0]) > 20 and decibels(wanted[3], made[3]) > 20


def test_in_4_bits_scales_have_the_least_squared_error(tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(JOINED), tmp_path / "m.onnx")
    new = RANDOM.laplace(size=(4, 1, 2, 40, 3)).astype("f")
    feeds = [{"new": one, "past": np.zeros((1, 2, 0, 3), "f")} for one in new]
    scale = cache_scales(open_model(tmp_path / "m.onnx"), {"present": (1, 3)}, feeds, bits=4)["present"]
    largest = np.abs(new).max((0, 1, 3))

    def errors(steps: np.ndarray) -> np.ndarray:
        steps = steps[:, None]
        return np.square(new - np.clip(np.rint(new / steps), -8, 7) * steps).sum((0, 1, 3))

    least = np.min([errors(largest / 7 * part / 100) for part in range(100, 30, -2)], 0)
    assert np.allclose(errors(scale), least, rtol=1e-4) and (least < 0.9 * errors(largest / 7)).any()


def test_in_4_bits_a_concat_is_refused() -> None:
    graph = model_io.load(onnx.parser.parse_model(JOINED))
    with pytest.raises(ModelError, match=r"Concat '.*': only GroupQueryAttention takes caches in int4"):
        quantize_caches(graph, {"present": np.ones((2, 3), np.float32)}, bits=4)


@pytest.mark.parametrize(("large", "axis"), (((1, slice(None)), 1), ((slice(None), 1), 3)))
def test_a_concat_joins_them_and_its_readers_get_what_they_stand_for(large: tuple, axis: int) -> None:
    """The scale is along the heads where one head is large, along the channels where one channel is."""
    size = np.full((2, 3), 0.1, np.float32)
    size[large] = 10
    graph = model_io.load(onnx.parser.parse_model(JOINED))
    assert quantize_caches(graph, {"present": size / LARGEST}) == 1
    model = onnxruntime.InferenceSession(export_model(graph).SerializeToString())
    new = (RANDOM.uniform(-1, 1, (1, 2, 4, 3)) * size[None, :, None]).astype(np.float32)
    past = RANDOM.integers(-LARGEST, LARGEST, (1, 2, 5, 3)).astype(np.int8)
    present, y, shape = model.run(["present", "y", "size"], {"new": new, "past": past})
    steps = np.abs(size).max(1 if axis == 1 else 0) / LARGEST
    steps = steps.reshape([-1 if i == axis else 1 for i in range(4)]).astype(np.float32)
    codes = np.concatenate([past, np.rint(new / steps).astype(np.int8)], 2)
    assert np.array_equal(present, codes) and shape.tolist() == [1, 2, 5, 3]
    assert np.allclose(y, (codes * steps).sum(2, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize("dtype", (np.float32, np.float16))
@pytest.mark.parametrize("layout", ("BHTC", "BHCT", "BTHC", "BTD", "TBHC"))
def test_tokens_are_the_axis_that_a_concat_joins(layout: str, dtype: type) -> None:
    """A text is read at lengths that no sample has, step by step, with caches fed back."""
    built = cached_decoder(layout, dtype=dtype)
    graph = model_io.load(built)
    widen_float16(graph)
    caches = find_caches(graph)
    assert [one.tokens for one in caches] == [layout.index("T"), 2]
    scales = {}
    for one in caches:
        channels = [one.past.shape[axis] for axis in one.channels]
        scales[str(one.present.name)] = np.full(channels, 4 / LARGEST, np.float32)
    assert quantize_caches(graph, scales) == 2 and not find_caches(graph)
    made, wanted = (
        onnxruntime.InferenceSession(one.SerializeToString()) for one in (export_model(graph), built)
    )
    before: list[dict[str, np.ndarray] | None] = [None, None]
    errors = []
    for count in (5, 1, 1, 3):
        tokens = RANDOM.integers(0, WORDS, count)
        for place, model in enumerate((made, wanted)):
            feed = feed_of(built, tokens, before[place])
            if place == 0 and before[0] is None:
                feed |= {name: feed[name].astype(np.int8) for name in CACHES}
            names = [one.name for one in model.get_outputs()]
            before[place] = dict(zip(names, model.run(names, feed), strict=True))
        one, other = before
        assert one is not None and other is not None
        assert all(one[name].dtype == np.int8 and one[name].shape == other[name].shape for name in PRESENT)
        errors.append(decibels(other["logits"].astype("d"), one["logits"].astype("d")))
    assert min(errors) > 30


def test_scales_reach_a_little_further_than_the_samples(tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(JOINED), tmp_path / "m.onnx")
    model = open_model(tmp_path / "m.onnx")
    feeds = [
        {"new": RANDOM.standard_normal((1, 2, 4, 3)).astype("f"), "past": np.zeros((1, 2, 0, 3), "f")}
        for _ in range(3)
    ]
    feeds = [{**one, "new": one["new"] * np.float32([1, 1, 0])} for one in feeds]
    scale = cache_scales(model, {"present": (1, 3)}, feeds)["present"]
    largest = np.abs(np.concatenate([one["new"] for one in feeds], 2)).max((0, 2))
    largest[:, 2] = largest[:, :2].mean()  # of channels that are 0 on the samples
    assert np.allclose(scale, 1.25 * largest / LARGEST)
    empty = [{"new": one["past"], "past": one["past"]} for one in feeds]
    with pytest.raises(ValueError, match="cache 'present' has no range: it is empty on all samples"):
        cache_scales(model, {"present": (1, 3)}, empty)
    feeds[0]["new"][0, 0, 0, 0] = np.inf
    with pytest.raises(ValueError, match="cache 'present' has no range: it is not finite on the samples"):
        cache_scales(model, {"present": (1, 3)}, feeds)


@pytest.mark.parametrize(
    ("kind", "stored", "count", "least"), [("int8", "int8", 128, 25), ("int4", "uint8", 64, 15)]
)
def test_the_tool_writes_them_and_runs_them_on_the_same_samples(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, stored: str, count: int, least: int
) -> None:
    onnx.save(decoder(), tmp_path / "m.onnx")
    inputs = open_model(tmp_path / "m.onnx").inputs
    (tmp_path / "data").mkdir()
    for i in range(4):  # caches of these samples are empty, and float32
        feed = token_feed(RANDOM.integers(0, WORDS, 9 + i), inputs)
        np.savez(tmp_path / "data" / f"{i}.npz", **feed)  # type: ignore[arg-type]
    data = ["--data", f"{tmp_path}/data"]
    made = ["--input", f"{tmp_path}/m.onnx", "--output", f"{tmp_path}/q.onnx", "--kv-cache", kind, *data]
    assert quantize.main([*made, "--config", "W8"]) == 0
    how = f"2 caches, {count} bytes a token instead of 512, scales of 4 samples"
    assert f"Stored in {kind}: {how}\n" in capsys.readouterr().out
    onnx.checker.check_model(tmp_path / "q.onnx", full_check=True)
    texts = []
    for name in "mq":
        words = ["--input", f"{tmp_path}/{name}.onnx", *data, "--output", f"{tmp_path}/{name}"]
        assert infer.main([*words, "--output-names", "logits", "--generate", "3"]) == 0
        texts.append(np.load(tmp_path / name / "logits" / "0.npy"))
        assert np.load(tmp_path / name / "generated_tokens" / "0.npy").shape == (1, 3)
    assert least < decibels(*texts) < 60
    pair = ["--float", f"{tmp_path}/m.onnx", "--quantized", f"{tmp_path}/q.onnx"]
    assert report.main([*pair, *data, "--output", f"{tmp_path}/r.html"]) == 1
    said = capsys.readouterr().err
    assert f"input 'past.0.key' is float32 in the float model, {stored} in the other" in said


def test_in_4_bits_a_sample_with_a_cache_is_run_with_its_codes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(decoder(), tmp_path / "m.onnx")
    past = RANDOM.standard_normal((2, 1, HEADS, 4, WIDTH)).astype("f")
    (tmp_path / "data").mkdir()
    np.savez(
        tmp_path / "data" / "0.npz",
        **{"input_ids": RANDOM.integers(0, WORDS, (1, 5)), "attention_mask": np.ones((1, 9), np.int64)},
        **{"past.0.key": past[0], "past.0.value": past[1]},
    )
    made = ["--input", f"{tmp_path}/m.onnx", "--output", f"{tmp_path}/q.onnx", "--kv-cache", "int4"]
    assert quantize.main([*made, "--config", "W8", "--data", f"{tmp_path}/data"]) == 0
    said = capsys.readouterr().out
    assert "Runs on ONNX Runtime CPU: yes" in said
    figure = re.search(r"Outputs: KL divergence of (\S+) nats a token on 1 sample, read in two steps", said)
    assert figure and 1e-4 < float(figure[1]) < 0.05


def test_a_model_without_caches_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (
        '<ir_version: 8, opset_import: ["": 17]> main (float[1,8] x) => (float[1,8] y) { y = MatMul (x, w) }'
    )
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.eye(8, dtype=np.float32), "w"))
    onnx.save(model, tmp_path / "m.onnx")
    (tmp_path / "data").mkdir()
    np.save(tmp_path / "data" / "0.npy", np.ones((1, 8), np.float32))
    made = ["--input", f"{tmp_path}/m.onnx", "--output", f"{tmp_path}/q.onnx", "--kv-cache", "int8"]
    assert quantize.main([*made, "--config", "W8", "--data", f"{tmp_path}/data"]) == 1
    assert (
        "--kv-cache int8: there is no cache: caches are those of float32 or float16 that a Group"
        in capsys.readouterr().err
    )
    assert not (tmp_path / "q.onnx").exists()
