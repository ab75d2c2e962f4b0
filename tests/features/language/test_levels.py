"""The accuracy level of products in 4 bits, chosen by its cost. Oracle: ONNX Runtime with either."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper
from scipy.special import log_softmax

import onnx_narrow
from tests.helpers.decoder import NAMES, decoder
from tests.rewrites.test_store_embeddings import _language
from transforms.model import graph_proto
from transforms.run.lifelike_feeds import LENGTH, lifelike_feeds

CACHES = [name for name in NAMES.values() if name.startswith("past")]
ROWS, WIDTH = 500, 128


def _saved(folder: Path, *, loud: float = 1, head: str = "tied") -> Path:
    """Write a model whose states have, in each block, a loud channel of which the product makes nothing."""
    model = _language(ROWS, WIDTH, head)
    del model.graph.output[:-1]
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor).copy()
        if tensor.name == "table":
            values /= np.float32(WIDTH**0.25)
        elif tensor.name == "w" and loud != 1:
            values[::16] = 0
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    if loud != 1:
        factors = np.where(np.arange(WIDTH) % 16, 1, loud).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(factors, "factors"))
        model.graph.node[1].input[0] = "louder"
        model.graph.node.insert(1, onnx.helper.make_node("Mul", ["states", "factors"], ["louder"]))
    onnx.save(model, folder / "m.onnx")
    return folder / "m.onnx"


def _made(source: Path, **options: object) -> tuple[onnx.ModelProto, str]:
    target = source.with_name("q.onnx")
    given = {"config": "W4", "matmul_nbits": True, "embeddings": "float", "force": True, "time": False}
    result = onnx_narrow.quantize(source, target, **{**given, **options})
    return onnx.load(target), str(result)


def _level(model: onnx.ModelProto) -> int:
    (node,) = (node for node in model.graph.node if node.op_type == "MatMulNBits")
    return next(one.i for one in node.attribute if one.name == "accuracy_level")


def _outputs(model: onnx.ModelProto) -> np.ndarray:
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return session.run(None, {"tokens": np.random.default_rng(5).integers(0, ROWS, (2, 24))})[0]


def _cost(source: Path) -> float:
    before, after = (
        log_softmax(_outputs(_made(source, accuracy_level=level)[0]).astype(np.float64), -1)
        for level in (1, 4)
    )
    return float((np.exp(before) * (before - after)).sum(-1).mean())


def test_the_quick_level_is_taken_where_it_costs_little(tmp_path: Path) -> None:
    source = _saved(tmp_path)
    model, said = _made(source)
    assert 0 < _cost(source) < 0.005
    assert _level(model) == 4 and "1 product in 4 bits with accuracy_level 4: " in said
    given, _ = _made(source, accuracy_level=4)
    assert model.graph.SerializeToString() == given.graph.SerializeToString()


def test_the_exact_level_stays_where_rounding_costs_more(tmp_path: Path) -> None:
    source = _saved(tmp_path, loud=200)
    model, said = _made(source)
    assert _cost(source) > 0.005
    assert _level(model) == 1 and "1 product in 4 bits with accuracy_level 1: 4 would cost" in said


@pytest.mark.parametrize("level", [1, 4])
def test_a_level_that_is_given_is_taken(level: int, tmp_path: Path) -> None:
    model, said = _made(_saved(tmp_path), accuracy_level=level)
    assert _level(model) == level and "accuracy_level" not in said


def test_outputs_that_are_no_logits_decide_by_their_error(tmp_path: Path) -> None:
    """Oracle: 33 dB."""
    for loud, level in ((1, 4), (200, 1)):
        source = _saved(tmp_path, head="none", loud=loud)
        exact, rounded = (_outputs(_made(source, accuracy_level=one)[0]) for one in (1, 4))
        noise = np.square(rounded - exact).sum() / np.square(exact).sum()
        assert (noise < 10**-3.3) == (level == 4)
        assert _level(_made(source)[0]) == level


def test_a_head_in_4_bits_behind_caches_makes_tokens(tmp_path: Path) -> None:
    """Oracle: the divergence on texts of random tokens with nothing before them."""
    onnx.save(decoder(), tmp_path / "m.onnx")
    models = [_made(tmp_path / "m.onnx", accuracy_level=level)[0] for level in (1, 4)]
    feeds = list(lifelike_feeds(graph_proto.import_model(decoder()), 2))
    assert {feeds[0][name].shape[2] for name in CACHES} == {0}
    assert {feeds[0][name].shape for name in ("input_ids", "attention_mask")} == {(1, LENGTH)}
    runs = [onnxruntime.InferenceSession(one.SerializeToString()) for one in models]
    before, after = (
        log_softmax([run.run(["logits"], feed)[0].astype(np.float64) for feed in feeds], -1) for run in runs
    )
    cost = float((np.exp(before) * (before - after)).sum(-1).mean())
    assert f"accuracy_level 4: {cost:.2g} nats on random tokens" in _made(tmp_path / "m.onnx")[1]


def test_time_is_said_where_it_is_measured(tmp_path: Path) -> None:
    _, said = _made(_saved(tmp_path), time=True)
    assert "times as long as with 1; accuracy_level=1 keeps" in said or "would take" in said


@pytest.mark.parametrize("loud", [1, 200])
def test_weights_that_stay_as_they_were_have_it_where_it_costs_nothing(loud: float, tmp_path: Path) -> None:
    """Oracle: a tenth of that error, 43 dB."""
    model = onnx.load(_saved(tmp_path, head="none", loud=loud))
    for tensor in model.graph.initializer:
        if tensor.name == "w":
            values = numpy_helper.to_array(tensor)
            step = np.abs(values).max() / np.float32(127)
            tensor.CopyFrom(numpy_helper.from_array(np.rint(values / step) * step, "w"))
    onnx.save(model, tmp_path / "m.onnx")
    found, said = _made(tmp_path / "m.onnx", config="W8", matmul_nbits=False)
    assert "1 of 2 weights were in 8 bits: stored as they are, no loss" in said
    exact, rounded = _outputs(onnx.load(tmp_path / "m.onnx")), _outputs(_set_level(found, 4))
    noise = np.square(rounded - exact).sum() / np.square(exact).sum()
    assert _level(found) == (4 if noise < 10**-4.3 else 1) == (4 if loud == 1 else 1)


def _set_level(model: onnx.ModelProto, level: int) -> onnx.ModelProto:
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for node in changed.graph.node:
        for attribute in node.attribute:
            attribute.i = level if attribute.name == "accuracy_level" else attribute.i
    return changed
