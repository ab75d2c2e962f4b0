"""Which outputs are logits of tokens, and how they are compared. Oracle: the models below, and arithmetic."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest

from ops.metrics import without_row_means
from tests.helpers.mixing import prepared
from transforms import model_io
from transforms.compare.compare_models import compare_models
from transforms.compare.compare_results import ResultPair, compare
from transforms.compare.measure_run import Data
from transforms.conversion.convert_bf16 import Bf16Options, convert_bf16
from transforms.graph.embeddings import logits_of
from transforms.graph.output_view import OutputView, output_view
from transforms.judge.errors import energies, signals
from transforms.judge.judge import Judge
from transforms.model.copy_graph import copy_graph
from transforms.precision.bench import mixing_bench
from transforms.precision.bf16 import keep_float
from transforms.precision.switch_worker import SwitchTask, measure, write_folder
from transforms.run.image_options import ImageOptions
from transforms.run.run_model import open_model
from transforms.runtime.session import RunOptions
from transforms.scheme import Scheme
from transforms.scheme.mixing_rule import MixingRule
from transforms.search.target import Target

TOKENS, SIZE = 64, 8
RANDOM = np.random.default_rng(5)


def decoder(head: str, *, width: int = TOKENS) -> onnx.ModelProto:
    """Return a model of token ids, with states beside its logits."""
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
        main (int64[N,S] ids) => (float[N,S,{width}] y, float[N,S,{SIZE}] state) {{
        e = Gather(table, ids) state = Tanh(e) {head} }}""")
    for name, shape in (("table", (TOKENS, SIZE)), ("w", (SIZE, width)), ("b", (width,))):
        weight = RANDOM.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    return model


@pytest.mark.parametrize(
    "head",
    (
        "y = MatMul(state, w)",
        "p = MatMul(state, w) y = Add(p, b)",
        "t = Transpose <perm = [1, 0]> (table) y = MatMul(state, t)",
        "p = MatMul(state, w) q = Tanh(p) y = Add(q, b)",
    ),
)
def test_what_a_head_makes_of_each_token(head: str) -> None:
    assert logits_of(model_io.load(decoder(head))) == {"y"}


@pytest.mark.parametrize(
    ("head", "width"),
    (("y = MatMul(state, w)", 2 * TOKENS), ("p = MatMul(state, w) y = Softmax(p)", TOKENS)),
)
def test_other_outputs(head: str, width: int) -> None:
    assert logits_of(model_io.load(decoder(head, width=width))) == set()


def test_errors_of_logits_are_divergences_of_their_probabilities() -> None:
    exact = {"y": RANDOM.standard_normal((2, 3, 5)), "z": RANDOM.standard_normal(4)}
    moved = {"y": exact["y"] + RANDOM.standard_normal((2, 3, 1)), "z": exact["z"] + 1}
    assert np.allclose(energies(exact, moved, {"y"}), [0, 4]) and energies(exact, moved)[0] > 1
    assert np.allclose(signals(exact, {"y"}), [6, (exact["z"] ** 2).sum()])
    other = {"y": exact["y"] + RANDOM.standard_normal((2, 3, 5)), "z": exact["z"]}
    p, q = (np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in (exact["y"], other["y"]))
    assert np.allclose(energies(exact, other, {"y"}), [(p * np.log(p / q)).sum(), 0])


@pytest.mark.parametrize("number", (np.nan, np.inf))
def test_logits_that_are_no_numbers_are_an_error(number: float) -> None:
    exact = {"y": RANDOM.standard_normal((2, 5)).astype(np.float32)}
    found = exact["y"].copy()
    found[1, 2] = number
    assert energies(exact, {"y": found}, {"y"})[0] > 1e20


def test_a_judge_compares_what_chooses_tokens() -> None:
    model = decoder("p = MatMul(state, w) y = Add(p, b)")
    graph = model_io.load(model)
    judge = Judge(graph, [{"ids": np.arange(6).reshape(1, 6)}, {"ids": np.arange(6, 12).reshape(1, 6)}])
    moved = onnx.ModelProto()
    moved.CopyFrom(model)
    (bias,) = [one for one in moved.graph.initializer if one.name == "b"]
    bias.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(bias) + np.float32(3), "b"))
    errors = judge.errors_of(model_io.load(moved))
    assert judge.reference.logits == {"y"} and (errors.decibels > 100).all()


SHIFT, LOSS = 3.0, 0.5


def cached(shift: float = 0.0, loss: float = 0.0) -> onnx.ModelProto:
    """Return a decoder with a cache; ``shift`` is added to all logits, ``loss`` to what goes to the cache."""
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
        main (int64[N,S] ids, float[N,P,{SIZE}] past_key)
            => (float[N,S,{TOKENS}] y, float[N,T,{SIZE}] present_key)
            <float[1] shift = {{{shift}}}, float[1] loss = {{{loss}}}, float[1] zero = {{0}}> {{
        e = Gather(table, ids) kept = Add(e, loss)
        present_key = Concat <axis = 1> (past_key, kept)
        read = Mul(kept, zero) f = Tanh(e) state = Sum(f, read)
        p = MatMul(state, w) y = Add(p, shift) }}""")
    random = np.random.default_rng(6)
    for name, shape in (("table", (TOKENS, SIZE)), ("w", (SIZE, TOKENS))):
        weight = random.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    return model


EMPTY = np.zeros((1, 0, SIZE), np.float32)
FEEDS = [{"ids": np.arange(6).reshape(1, 6) + 6 * i, "past_key": EMPTY} for i in range(3)]


def test_caches_beside_logits_do_not_count() -> None:
    assert output_view(model_io.load(cached())) == OutputView(frozenset({"y"}), frozenset({"present_key"}))
    judge = Judge(model_io.load(cached()), FEEDS)
    assert judge.reference.outputs == ["y"]
    assert judge.errors_of(model_io.load(cached(SHIFT, LOSS))).relative < 1e-9


def test_mixed_precision_compares_what_chooses_tokens(tmp_path: Path) -> None:
    mixed, _ = prepared(cached(), Scheme("int16", "int8"), ["int8"], FEEDS)
    bench = mixing_bench(mixed.graph, FEEDS, MixingRule(target=("int8",)), RunOptions())
    assert bench.score(model_io.load(cached(SHIFT, LOSS))) > 100
    switches = [["plain", "moved"]]  # of one layer
    samples = list(zip(bench.feeds, bench.expected, strict=True))
    write_folder(tmp_path, switched(), switches, samples, bench.run, bench.view)
    value, error = measure(SwitchTask(str(tmp_path), 0, "sqnr"))
    assert value > 100 and error < 1e-9


def test_a_function_of_the_users_gets_logits_and_caches_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "metric.py").write_text(
        "def total(outputs):\n"
        "    return float(sum(one['y'].sum() + one['present_key'].sum() for one in outputs))\n"
    )
    rule = MixingRule(target=("int8",), evaluate=f"{tmp_path / 'metric.py'}:total", evaluate_target=1.0)
    bench = mixing_bench(model_io.load(cached()), FEEDS, rule, RunOptions())
    made = [open_model(model_io.load(cached())).run(feed) for feed in FEEDS]
    expected = sum(float(one["y"].sum() + one["present_key"].sum()) for one in made)
    assert bench.float_score() == pytest.approx(expected, rel=1e-4)
    assert abs(bench.score(model_io.load(cached(SHIFT, LOSS))) - expected) > 1


def switched() -> gs.Graph:
    """Return the decoder whose switch ``moved`` changes the mean of its logits, and its cache."""
    graph = model_io.load(cached(SHIFT, LOSS))
    plain, moved = (gs.Variable(name, np.bool_, []) for name in ("plain", "moved"))
    graph.inputs += [plain, moved]
    for node in [node for node in graph.nodes if node.op == "Add"]:
        known, added = node.inputs
        zero = gs.Constant(f"{added.name}_zero", np.zeros(1, np.float32))
        chosen = gs.Variable(f"{added.name}_chosen", np.float32, [1])
        graph.nodes.append(gs.Node("Where", f"{added.name}_where", {}, [moved, added, zero], [chosen]))
        node.inputs = [known, chosen]
    return graph.toposort()


def test_bf16_is_held_to_what_chooses_tokens() -> None:
    """Of logits around 1000, BF16 keeps few bits beside their mean."""
    graph = model_io.load(cached(1000.0))
    found = keep_float(graph, Bf16Options(), FEEDS, FEEDS, Target("sqnr", 0)).before
    converted = copy_graph(graph)
    convert_bf16(converted, Bf16Options())
    models = open_model(graph), open_model(converted)
    exact, made = (np.concatenate([model.run(feed)["y"] for feed in FEEDS]) for model in models)
    exact, made = (array - array.mean(-1, keepdims=True) for array in (exact, made))
    expected = 10 * np.log10((exact**2).sum() / ((exact - made) ** 2).sum())
    assert found == pytest.approx(expected, abs=0.05) and expected < 20


def test_a_report_tells_caches_apart(tmp_path: Path) -> None:
    (tmp_path / "samples").mkdir()
    for i, feed in enumerate(FEEDS):
        np.savez(tmp_path / "samples" / f"{i}.npz", **feed)
    onnx.save(cached(), tmp_path / "m.onnx")
    onnx.save(cached(SHIFT, LOSS), tmp_path / "q.onnx")
    data = Data(tmp_path / "samples", ImageOptions(), RunOptions())
    found = compare_models(tmp_path / "m.onnx", tmp_path / "q.onnx", data)
    assert {one.output for one in found.counted} == {"y"} and all(one.sqnr > 100 for one in found.counted)
    assert all(one.sqnr < 20 for one in found.results if one.output == "present_key")


def test_results_of_logits_are_compared_without_the_mean_of_each_row(tmp_path: Path) -> None:
    exact = RANDOM.standard_normal((2, 5)).astype("f")
    np.save(tmp_path / "a.npy", exact)
    np.save(tmp_path / "b.npy", exact + np.float32(SHIFT))
    pairs = [ResultPair("a", "", tmp_path / "a.npy", tmp_path / "b.npy")]
    assert next(compare(pairs)).sqnr < 10 < 100 < next(compare(pairs, logits="y")).sqnr


def test_what_is_ruled_out_stays_out_of_the_mean() -> None:
    exact = np.array([[1, -np.inf, 3]], np.float16)
    made = without_row_means({"y": exact, "z": exact}, {"y"})
    assert made["y"].dtype == np.float32 and np.array_equal(made["y"], [[-1, -np.inf, 1]])
    assert made["z"] is exact
