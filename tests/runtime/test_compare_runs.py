"""Oracle: models made to differ, or not, by hand."""

from __future__ import annotations

import logging
import math
import re
import time

import numpy as np
import onnx
import onnx.parser
import onnx.version_converter
import pytest

from tests.helpers import build
from transforms import model_io
from transforms.convert_opset import convert_opset
from transforms.runtime import compare_runs as module
from transforms.runtime.compare_runs import compare_runs
from transforms.runtime.inputs import ModelInput, random_array


def _parse(text: str, opset: int = 13) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> main {text}')


def _changed(ends: str, old: str, new: str) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    return _parse(f"{ends} {{ {old} }}"), _parse(f"{ends} {{ {new} }}", 17)


@pytest.mark.parametrize(("ends", "old", "new", "reason"), [
    ("(float[N] x) => (float[N] z, float[N] y)", "y = Abs(x) z = Neg(x)", "y = Neg(x) z = Neg(x)", "relati"),
    ("(float[N,3] x) => (float[A,B] y)", "y = Abs(x)", "y = Concat <axis = 0> (x, x)", r"\[4, 3\] instead"),
    ("(float[3] x) => (int64[A] y)", "y = ArgMax(x)", "y = ArgMin(x)", "100.0% of the numbers"),
    ("(float[3] x) => (float[3] y)", "y = Abs(x)", "a = Abs(x) b = Neg(a) y = Log(b)", "100.0% of the inf"),
    ("(float[3] x) => (seq(float[3]) y)", "y = SequenceConstruct(x, x)", "y = SequenceConstruct(x)", "1 el"),
])  # fmt: skip
def test_another_meaning_is_an_error_that_names_the_output(
    ends: str, old: str, new: str, reason: str
) -> None:
    with pytest.raises(model_io.ModelError, match=f"output 'y' differs on random input: .*{reason}"):
        compare_runs(*_changed(ends, old, new), {})


@pytest.mark.parametrize(("new", "reason"), [
    ("Abs(x) y = ai.onnx.ml.ZipMap <classlabels_int64s = [0, 1]> (a)", ""),
    ("Neg(x) y = ai.onnx.ml.ZipMap <classlabels_int64s = [0, 1]> (a)", "relative error"),
    ("Abs(x) y = ai.onnx.ml.ZipMap <classlabels_int64s = [0, 7]> (a)", "other keys"),
])  # fmt: skip
def test_numbers_of_classes_are_compared_by_their_names(new: str, reason: str) -> None:
    text = (
        '<ir_version: 8, opset_import: ["": {}, "ai.onnx.ml": 3]> main '
        "(float[N,2] x) => (seq(map(int64, float)) y) {{ a = {} }}"
    )
    old = onnx.parser.parse_model(
        text.format(13, "Abs(x) y = ai.onnx.ml.ZipMap <classlabels_int64s = [0, 1]> (a)")
    )
    raised = onnx.parser.parse_model(text.format(17, new))
    if not reason:
        assert compare_runs(old, raised, {})
        return
    with pytest.raises(model_io.ModelError, match=f"output 'y' differs on random input: {reason}"):
        compare_runs(old, raised, {})


def test_rounding_is_none() -> None:
    old, new = "a = Mul(x, x) b = Mul(a, x) y = ReduceSum(b)", "a = Mul(x, x) b = Mul(x, a) y = ReduceSum(b)"
    assert compare_runs(*_changed("(float[N,999] x) => (float[A,B] y)", old, new), {})
    assert compare_runs(*_changed("(float[0] x) => (float[0] y)", "y = Abs(x)", "y = Neg(x)"), {})


def test_a_changed_model_that_does_not_run_is_an_error() -> None:
    old, new = "a = Reshape(x, s) y = Abs(a)", "a = Reshape(x, t) y = Abs(a)"
    ends = "(float[4] x) => (float[A,B] y) <int64[2] s = {2, 2}, int64[2] t = {3, 2}>"
    with pytest.raises(model_io.ModelError, match=r"^the changed model does not run: [^\n]*$"):
        compare_runs(*_changed(ends, old, new), {})


@pytest.mark.parametrize("ends", ["(float[N,3,H,W] x)", "(float[1,3,H,W] x)"])
def test_free_sizes_are_made_up(ends: str) -> None:
    """A kernel of 5 x 5 takes no image of 2 x 2; 16 x 16 does."""
    text = f"{ends} => (float[A,B,C,D] y) {{ y = %s <kernel_shape = [5,5]> (x) }}"
    assert compare_runs(_parse(text % "MaxPool"), _parse(text % "MaxPool", 17), {})
    with pytest.raises(model_io.ModelError, match="output 'y' differs"):
        compare_runs(_parse(text % "MaxPool"), _parse(text % "AveragePool", 17), {})


def test_an_image_of_224_is_tried_with_a_batch_of_one() -> None:
    """A classifier that takes no other size: 3 x 224 x 224 numbers, flattened."""
    ends = "(float[N,3,H,W] x) => (float[A,B] y) <int64[2] s = {1, 150528}>"
    old, new = _changed(ends, "a = Reshape(x, s) y = Abs(a)", "a = Reshape(x, s) y = Neg(a)")
    with pytest.raises(model_io.ModelError, match="output 'y' differs"):
        compare_runs(old, new, {})


def test_sizes_that_never_fit_cost_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four free dimensions of which none may be equal to another: 64 ** 4 numbers once took a second."""
    drawn: list[int] = []

    def _random(one: ModelInput, random: np.random.Generator) -> np.ndarray:
        drawn.append(math.prod(one.shape))  # type: ignore[arg-type]
        return random_array(one, random)

    monkeypatch.setattr(module, "random_array", _random)
    text = "(float[A,B,C,D] x) => (float[E] y) <int64[1] s = {24}> { a = Reshape(x, s) y = Abs(a) }"
    assert not compare_runs(_parse(text), _parse(text, 17), {})
    assert len(drawn) >= 4 and sum(drawn) < 1_000_000


@pytest.mark.parametrize(("old", "reason"), [
    ("(float[3] x) => (float[2,3] y) { y = RandomNormal <shape = [2,3]> () }", "draws other numbers"),
    ("(seq(float[3]) s) => (float[3] y) <int64 i = {0}> { y = SequenceAt(s, i) }", "cannot be fed"),
    ("(float[3] x) => (float[3] y) <int64[1] w = {5}> { y = Gather(x, w) }", "out of data bounds"),
    ("(float[99999,99999] x) => (float[99999,99999] y) { y = Abs(x) }", r"tensor 'x' of \[99999, 99999\]"),
    ("(float[N,K] x) => (float[A,B] y) <float[2,0] w = {}> { y = Concat <axis = 1> (x, w) }", "no elements"),
])  # fmt: skip
def test_what_can_not_be_compared_is_passed_over(
    old: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """And said in the log of --verbose."""
    with caplog.at_level(logging.DEBUG):
        compare_runs(_parse(old), _parse(old, 17), {})
    assert re.search(reason, caplog.text)


def test_large_weights_are_not_run(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_WEIGHTS", 1000)
    with caplog.at_level(logging.DEBUG):
        assert convert_opset(model_io.load(build.dense(256, opset=11)), 13) == 1
    assert "not compared: 262,144 bytes of weights, more than 1,000" in caplog.text


def test_weights_beside_the_model_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[dict[str, np.ndarray]] = []
    run = module.run_in_time
    monkeypatch.setattr(
        module, "run_in_time", lambda model, feed: (found.append(dict(feed)), run(model, feed))[1]
    )
    graph = model_io.load(build.dense(256, opset=11))
    (weight,) = [t.values for t in graph.tensors().values() if t.name == "weight0"]
    convert_opset(graph, 13)
    assert len(found) == 2
    assert all(feed["weight0"] is weight for feed in found)


def test_a_run_ends_when_its_time_is_up(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop of 2^60 rounds would never."""
    monkeypatch.setattr(module, "_SECONDS", 0.2)
    text = """(float[2] x) => (float[2] y) <int64 n = {1152921504606846976}, bool on = {1}> {
        y = Loop (n, on, x) <body = b (int64 i, bool g, float[2] s) => (bool m, float[2] r) {
            m = Identity(g) r = Neg(s) }> }"""
    start = time.monotonic()
    with caplog.at_level(logging.DEBUG):
        assert not compare_runs(_parse(text), _parse(text, 17), {})
    assert time.monotonic() - start < 10
    assert "a run takes more than 0.2 s" in caplog.text


def test_a_raise_gone_wrong_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The converter is made to turn one operator into another."""
    convert = onnx.version_converter.convert_version

    def _wrong(model: onnx.ModelProto, version: int) -> onnx.ModelProto:
        raised = convert(model, version)
        raised.graph.node[0].op_type = "Neg"
        return raised

    monkeypatch.setattr(onnx.version_converter, "convert_version", _wrong)
    graph = model_io.load(_parse("(float[2] x) => (float[2] y) { y = Abs(x) }", 11))
    with pytest.raises(model_io.ModelError, match=r"from opset 11 to 13: output 'y' differs on random input"):
        convert_opset(graph, 13)
    assert (graph.opset, graph.nodes[0].op) == (11, "Abs")


def test_random_sizes_leave_a_normalization_elements(caplog: pytest.LogCaptureFixture) -> None:
    """A window of three on a row of one leaves none, for which ONNX Runtime ends the process."""
    text = """(float[A,B,C,D] x) => (float[E,F,G,H] y) <float[1] s = {2}, float[1] b = {1}> {
        p = AveragePool <kernel_shape = [2, 3], pads = [1, 0, 1, 1]> (x)
        y = InstanceNormalization(p, s, b) }"""
    with caplog.at_level(logging.DEBUG):
        assert not compare_runs(_parse(text), _parse(text, 17), {})
    assert "ONNX Runtime does not run the original on random numbers" in caplog.text
