"""The run before a model gets its name. Oracle: ONNX Runtime on the float model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.helpers import build, corpus, plans
from tools import convert_fp32_to_bf16, quantize
from transforms import model_io
from transforms.model.read_model import ModelError
from transforms.pipelines import first_run as runs
from transforms.pipelines import one_step
from transforms.pipelines.first_result import FirstRun
from transforms.pipelines.first_run import FirstRunOptions, first_run
from transforms.pipelines.float_runs import Made
from transforms.pipelines.source import Source
from transforms.runtime.inputs import model_inputs
from transforms.runtime.session import RunOptions, open_session
from transforms.runtime.trial import Trial, try_model

_POOL = "kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1, count_include_pad = 1"
"""What ONNX Runtime 1.32 computes wrongly between integers: it divides sums at the border by 9."""

_FLOAT = f"(float[1,1,8,8] x) => (float[1,1,4,4] y) {{ a = Abs(x) p = AveragePool <{_POOL}> (a) y = Neg(p) }}"
_INTEGERS = f"""(float[1,1,8,8] x) => (float[1,1,4,4] y) <float s = {{0.03}}, uint8 z = {{0}}> {{
    a = Abs(x) qa = QuantizeLinear(a, s, z) da = DequantizeLinear(qa, s, z)
    p = AveragePool <{_POOL}> (da)
    qp = QuantizeLinear(p, s, z) dp = DequantizeLinear(qp, s, z)
    y = Neg(dp) }}"""

_TURNED = """(float[1,6,7,4] x) => (float[A,B,C,D] y)
    <int64[4] pads = {1, 2, 1, 0}, int64[2] axes = {2, 3}, float f = {0}> {
    a = Transpose <perm = [0, 3, 1, 2]> (x) p = Pad(a, pads, f, axes)
    y = Transpose <perm = [0, 2, 3, 1]> (p) }"""
"""What ONNX Runtime 1.32 moves Transposes over, forgetting the axes: the result does not run."""


def _files(folder: Path, text: str, integers: str | None = None) -> tuple[Path, onnx.ModelProto]:
    """Return the file of a float model, and the model to try."""
    model = corpus.parse(text, opset=19)
    onnx.save(model, folder / "float.onnx")
    return folder / "float.onnx", corpus.parse(integers, opset=19) if integers else model


def _tried(source: Path, model: onnx.ModelProto, **options: bool) -> FirstRun:
    return first_run(model_io.load(model), FirstRunOptions(Source(source), **options))


def test_a_node_that_the_runtime_computes_wrongly_is_left_in_float(tmp_path: Path) -> None:
    source, model = _files(tmp_path, _FLOAT, _INTEGERS)
    graph = model_io.load(model)
    found = first_run(graph, FirstRunOptions(Source(source)))
    assert [line.split(":")[0] for line in found.kept] == ["AveragePool 'p'"]
    feed = corpus.feeds(model)
    model_io.save(graph, tmp_path / "q.onnx")
    wanted, made = (open_session(path).run(feed)["y"] for path in (source, tmp_path / "q.onnx"))
    assert np.abs(made - wanted).max() <= 0.015 + 1e-6, "half a step of 0.03, for means round no further"
    assert found.trial is not None and not found.trial.wrong


_ONE_NAME = """(float[N,4] x, float[N,4] z) => (float[M,4] y) {
    a = MatMul(x, w) b = MatMul(z, v) c = Relu(b) y = Add(a, c) }"""


@pytest.mark.parametrize(
    "options", [["--config", "A8W8"], ["--config", "A8W8", "--fast"], ["--config", "BF16"]]
)
def test_sizes_that_a_model_has_one_name_for_are_refused_in_our_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    """ONNX Runtime runs the float model on these, and reuses the memory of one size for the other in ours."""
    model = plans.model(_ONE_NAME, {"w": (4, 4), "v": (4, 4)}, opset=17)
    onnx.save(model, tmp_path / "float.onnx")
    (tmp_path / "data").mkdir()
    for i in range(4):
        feed = {name: np.full((rows, 4), i + 0.5, np.float32) for name, rows in (("x", 3), ("z", 1))}
        np.savez(tmp_path / "data" / f"{i}.npz", **feed)  # type: ignore[arg-type]
    assert open_session(tmp_path / "float.onnx").run(feed)["y"].shape == (3, 4)
    words = ["--input", f"{tmp_path}/float.onnx", "--output", f"{tmp_path}/q.onnx", "--no-time"]
    assert quantize.main([*words, "--data", f"{tmp_path}/data", *options]) == 1
    said = capsys.readouterr().err
    assert "dimension 'N' of the model is 3 in input 'x' and 1 in 'z', which have to be one size" in said
    assert "buffer" not in said


def test_for_another_runtime_it_is_said(tmp_path: Path) -> None:
    found = _tried(*_files(tmp_path, _FLOAT, _INTEGERS), mends=False)
    assert not found.kept and "AveragePool 'p': ONNX Runtime" in found.wrong[0]


def test_what_runs_unoptimized_alone_is_refused_with_the_node(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"^\w+ '\w+': ONNX Runtime with its default optimization fails"):
        _tried(*_files(tmp_path, _TURNED))


def test_random_sizes_that_contradict_the_declared_ones_show_nothing(tmp_path: Path) -> None:
    """The optimization of ONNX Runtime takes what Shape makes from the declared sizes."""
    text = """(float[1,4] x, int64[4] pads) => (float[3,7] a, float[3,7] y) <float[1] one = {1}> {
        a = Pad(x, pads) s = Shape(a) y = Expand(one, s) }"""
    source, model = _files(tmp_path, text)
    found = _tried(source, model)
    assert found.not_run.startswith("'a' is declared as [3, 7], random numbers make [")
    assert found.trial is None and not found.sample
    feed = {"x": np.ones((1, 4), np.float32), "pads": np.array([1, 1, 1, 2])}
    given = FirstRunOptions(Source(source), samples=lambda _: [("one", feed)])
    found = first_run(model_io.load(model), given)
    assert found.has_sample and found.trial is not None and not found.trial.wrong
    with pytest.raises(ModelError, match="computes it wrongly"):
        given = FirstRunOptions(
            Source(source), samples=lambda _: [("one", feed | {"pads": np.array([1, 1, 0, 1])})]
        )
        first_run(model_io.load(model), given)


def test_a_right_model_is_exported_as_it_is(tmp_path: Path) -> None:
    found = _tried(*_files(tmp_path, _FLOAT))
    assert (found.why_not, found.not_run, found.kept, found.wrong) == (None, "", [], [])
    assert found.trial is not None and found.trial.error == 0


@pytest.mark.parametrize("form", ["loop", "plain"])
def test_an_optimizer_that_ends_the_process_is_survived(form: str, tmp_path: Path) -> None:
    """QDQPropagation aborts where a body reads what a Transpose makes of dequantized numbers (1.32)."""
    body = "body (int64 i, bool c, seq(float[N,M]) s0) => (bool more, seq(float[N,M]) s1)"
    loop = f"q = Loop <body = {body} {{ more = Identity(c) s1 = SequenceInsert(s0, t) }}> (n, go, e)"
    text = f"""(float[2,3] x) => (float[A,B] y)
        <int64 n = {{1}}, int64 last = {{-1}}, bool go = {{1}}, float s = {{0.1}}, int8 z = {{0}}> {{
        i = QuantizeLinear(x, s, z) d = DequantizeLinear(i, s, z) t = Transpose <perm = [1, 0]> (d)
        e = SequenceEmpty <dtype = 1> () {loop if form == "loop" else "q = SequenceInsert(e, t)"}
        y = SequenceAt(q, last) }}"""
    source, model = _files(tmp_path, text)
    if form == "plain":
        assert not _tried(source, model).kept
        return
    with pytest.raises(ModelError, match=r"Loop 'q': .*: its optimizer ends the process with SIG"):
        _tried(source, model)
    assert open_session(source, RunOptions()).run(corpus.feeds(model))["y"].shape == (3, 2)


_DECODER = """(int64[B,S] ids, float[B,P,4] past, float[B,T] mask) => (float[B,S,1] y, float[B,T,4] present)
    <float[5,4] table = {%s}> {
    h = Gather (table, ids) present = Concat <axis = 1> (past, h) t = Transpose <perm = [0, 2, 1]> (present)
    axes = Constant <value_ints = [2]> () m = Unsqueeze (mask, axes) s = MatMul (t, m) y = MatMul (h, s) }"""


def test_a_large_model_is_run_for_one_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The mask is as long as the cache and the token together, which nothing says but a run."""
    source, model = _files(tmp_path, _DECODER % ", ".join(map(str, range(20))))
    monkeypatch.setattr(one_step, "MOST_WEIGHTS", -1)
    found = _tried(source, model)
    assert (found.once, found.not_run) == ("B = 1, S = 1, P = 1, T = 2", "")
    assert found.trial is not None and set(found.trial.errors) == {"y", "present"}
    convert_fp32_to_bf16.main(["--input", str(source), "--output", str(tmp_path / "b.onnx")])
    line = "CPU: yes, one run at B = 1, S = 1, P = 1, T = 2; other sizes and its time were not tried."
    assert line in capsys.readouterr().out


def test_a_sample_is_cut_to_one_token(tmp_path: Path) -> None:
    _, model = _files(tmp_path, _DECODER % ", ".join(map(str, range(20))))
    graph = model_io.load(model)
    feed = {"ids": np.zeros((1, 6), int), "past": np.zeros((1, 0, 4), "f4"), "mask": np.zeros((1, 6), "f4")}
    exported = model_io.export(graph)[0].graph
    run = one_step.run_one_step(
        Source(model), lambda _: [("a", feed)], model_inputs(graph), Made(graph, exported), RunOptions()
    )
    assert (run.sample, run.sizes) == ("sample 'a'", "S = 1, T = 1")
    assert {name: array.shape for name, array in run.feed.items()} == {
        "ids": (1, 1), "past": (1, 0, 4), "mask": (1, 1)
    }  # fmt: skip


def test_a_session_that_takes_too_much_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source, model = _files(tmp_path, _FLOAT)
    monkeypatch.setattr(one_step, "MOST_WEIGHTS", -1)
    monkeypatch.setattr(one_step, "MEMORY", 1)
    needed = 2 * source.stat().st_size
    words = f"a session may take {needed:,} bytes, more than 1"
    assert _tried(source, model).not_run == words
    convert_fp32_to_bf16.main(["--input", str(source), "--output", str(tmp_path / "b.onnx")])
    assert f"CPU: opens; not run: {words}." in capsys.readouterr().out


def test_inputs_that_no_array_fits_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, _ = _files(tmp_path, _FLOAT)
    options = ["--input", str(source), "--output", str(tmp_path / "b.onnx"), "--no-keep-io-types"]
    assert convert_fp32_to_bf16.main(options) == 0
    assert "not run: input 'x' of type BFLOAT16 cannot be fed" in capsys.readouterr().out


def test_a_model_that_is_refused_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source, _ = _files(tmp_path, _FLOAT)
    ranges, output = tmp_path / "r.json", tmp_path / "q.onnx"

    def _refuse(*_: object) -> FirstRun:
        raise ModelError("AveragePool 'p': ONNX Runtime fails")

    monkeypatch.setattr("transforms.pipelines.try_out.first_run", _refuse)
    options = ["--input", str(source), "--output", str(output), "--config", "A8W8", "--random-data", "2"]
    options += ["--set", "quantize_all_op_types=true", "--export-ranges", str(ranges)]
    assert quantize.main(options) == 1
    assert "AveragePool 'p': ONNX Runtime fails" in capsys.readouterr().err
    assert not output.exists() and not ranges.exists()


@pytest.mark.parametrize("config", ["A8W8", "A8W8_ADAQUANT", "MX4"])
@pytest.mark.parametrize("fast", [True, False])
def test_little_that_is_left_of_the_outputs_is_a_warning(
    config: str, fast: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A channel 10^5 times as large as the others that the weights leave out: one range for all fails."""
    random = np.random.default_rng(0)
    weight = random.standard_normal((16, 4)).astype(np.float32)
    weight[0] = 0
    ends = build.value("x", [4, 16]), build.value("y", [4, 4])
    nodes = [onnx.helper.make_node("Relu", ["x"], ["a"]), onnx.helper.make_node("MatMul", ["a", "w"], ["y"])]
    build.save(build.model(nodes, ends[:1], ends[1:], {"w": weight}), tmp_path / "m.onnx")
    (tmp_path / "data").mkdir()
    for i in range(8):
        x = random.standard_normal((4, 16)).astype(np.float32)
        x[:, 0] = 1e5
        np.savez(tmp_path / "data" / f"{i}.npz", x=x)
    options = ["--input", str(tmp_path / "m.onnx"), "--output", str(tmp_path / "q.onnx"), "--config", config]
    options += ["--data", str(tmp_path / "data"), *(["--fast"] if fast else ["--set", "move_outliers=false"])]
    assert quantize.main(options) == 0
    printed = capsys.readouterr()
    assert "Warning: " in printed.err or "outputs at -0.0 dB instead of" in printed.out


def _nbits(scale: str) -> onnx.ModelProto:
    """Return a product with integers of 4 bits; ``scale``: where its float32 scales come from."""
    sizes = "K = 32, N = 2, bits = 4, block_size = 32, accuracy_level = 4"
    integers = ", ".join(str(17 * (i % 13)) for i in range(32))
    text = f"""(float[n,32] x) => (float[n,2] y) <uint8[2,1,16] w = {{{integers}}}, {scale}> {{
        {"s = Cast <to = 1> (h)" if "float16" in scale else ""}
        y = com.microsoft.MatMulNBits <{sizes}> (x, w, s) }}"""
    return corpus.parse(text, opset=19, domains=', "com.microsoft": 1')


def test_what_is_wrong_without_optimization_is_refused_with_the_node(tmp_path: Path) -> None:
    """ONNX Runtime 1.32 takes integers for 0 whose scales are no constants yet when it opens a model."""
    right, wrong = _nbits("float[2,1] s = {1, 2}"), _nbits("float16[2,1] h = {15360, 16384}")
    onnx.save(right, tmp_path / "float.onnx")
    assert _tried(tmp_path / "float.onnx", right).trial is not None
    words = (
        r"^MatMulNBits 'y': ONNX Runtime without optimization computes it wrongly: output 'y' at -?0\.0 dB, "
    )
    with pytest.raises(ModelError, match=words + r"(\d\d\.\d|inf) dB with it$"):
        _tried(tmp_path / "float.onnx", wrong)


_ROWS = "(float[n,4] x) => (float[n,4] y) { y = Neg(x) }"


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (
            "(float[n,4] x) => (float[n,4] y) <int64[2] s = {2, 4}> { f = Reshape(x, s) y = Neg(f) }",
            r"^it fails on random numbers at n = 3: Reshape: ",
        ),
        (
            "(float[n,4] x) => (float[n,4] y) <float[1,1] a = {-1}, float[1,1] b = {-1}> "
            "{ s = Shape <start = 0, end = 1> (x) two = Constant <value_ints = [2]> () g = Equal(s, two) "
            "f = Where(g, a, b) r = Mul(f, x) z = Mul(r, b) c = Where(g, r, z) y = Identity(c) }",
            r"^output 'y' is at -6\.0 dB on random numbers at n = 3, but inf dB at its first sizes",
        ),
    ],
    ids=["fails", "wrong"],
)
def test_what_is_right_at_one_size_alone_is_refused(made: str, words: str, tmp_path: Path) -> None:
    """An error of twice the output is 6 dB more than that."""
    with pytest.raises(ModelError, match=words):
        _tried(*_files(tmp_path, _ROWS, made))


def test_sizes_that_the_float_model_does_not_take_are_named(tmp_path: Path) -> None:
    text = "(float[n,4] x) => (float[m,4] y) <int64[2] s = {2, 4}> { f = Reshape(x, s) y = Neg(f) }"
    found = _tried(*_files(tmp_path, text))
    assert found.trial is not None and found.fixed == ["n"]
    assert not _tried(*_files(tmp_path, _ROWS)).fixed


def test_sizes_at_which_optimization_breaks_the_float_model_show_nothing(tmp_path: Path) -> None:
    """Optimization goes by the declared sizes of an inner tensor, those of a sample of two rows."""
    text = """(float[n,4] x) => (float[m,4] y) <float[1] one = {1}> {
        v = Neg(x) s = Shape(v) e = Expand(one, s) y = Concat <axis = 0> (e, x) }"""
    model = corpus.parse(text, opset=19)
    model.graph.value_info.append(build.value("v", [2, 4]))
    onnx.save(model, tmp_path / "float.onnx")
    graph = model_io.load(corpus.parse(text, opset=19))
    next(tensor for name, tensor in graph.tensors().items() if name == "v").shape = [2, 4]
    found = first_run(graph, FirstRunOptions(Source(tmp_path / "float.onnx")))
    assert found.trial is not None and found.fixed == ["n = 3"]


def _of_pairs(weights: str) -> str:
    """Return a product of integers with its weights."""
    return f"""(float[4,2] x) => (float[4,1] y)
        <float s = {{0.004}}, uint8 z = {{0}}, int8 i = {{0}}, int8[2,1] w = {{{weights}}}> {{
        qx = QuantizeLinear(x, s, z) dx = DequantizeLinear(qx, s, z) dw = DequantizeLinear(w, s, i)
        m = MatMul(dx, dw) qm = QuantizeLinear(m, s, z) y = DequantizeLinear(qm, s, z) }}"""


@pytest.mark.parametrize(
    ("weights", "saturates", "opens"),
    [("65, 65", True, True), ("65, 65", True, False), ("64, 64", False, True)],
)
def test_what_saturates_is_no_fault_of_a_node(
    weights: str, saturates: bool, opens: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a processor without VNNI, where a session with an option is exact, if it ``opens``.

    Oracle: 255 * (w[0] + w[1]) is beyond 32,767 for the first weights alone. ``tests/processors`` has runs on
    such a processor.
    """

    def _wrong(*arguments: Any) -> list[Trial]:
        (found,) = try_model(*arguments)
        wrong = {name: replace(one, made=1.0, between=1.0) for name, one in found.errors.items()}
        exact = found if opens else Trial({}, "it shares a weight")
        return [exact if arguments[-1].exact_sums else replace(found, errors=wrong)]

    monkeypatch.setattr(runs, "sums_saturate", lambda: True)
    monkeypatch.setattr(runs, "try_model", _wrong)
    source, model = _files(tmp_path, _of_pairs(weights))
    if not saturates:
        with pytest.raises(ModelError, match="with its default optimization computes it wrongly"):
            _tried(source, model)
        return
    found = _tried(source, model)
    assert not found.kept and found.trial is not None and bool(found.trial.wrong) is not opens
    assert found.saturated is not None and found.saturated.wrong and found.as_opened is found.saturated
