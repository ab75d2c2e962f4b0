"""The bench of all choices of formats. Oracle: ONNX Runtime and NumPy on the same samples."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest

from tests.helpers import corpus
from tests.helpers.judged_networks import network, samples
from transforms import model_io
from transforms.judge import judge
from transforms.model.copy_graph import copy_graph
from transforms.precision.bench import Bench, goal_bench, goal_scored, mixing_bench
from transforms.run.run_model import open_model
from transforms.runtime.session import OpenModel, RunOptions
from transforms.scheme.mixing_rule import MixingRule
from transforms.search.target import LOST_TOP1, Target

COUNT = 40  # more than judge moves
FEEDS = [{"x": np.random.default_rng(i).standard_normal(6).astype(np.float32)} for i in range(COUNT)]
RULE = MixingRule(target=("int8",))


def model(shift: float = 0.0, loss: float = 0.0) -> onnx.ModelProto:
    """Return outputs ``large`` and ``small``, which a second model has less exactly, and integers."""
    return corpus.parse(
        f"""(float[6] x) => (float[6] large, float[6] small, int64[6] whole)
        <float s = {{{shift}}}, float t = {{{loss}}}, float many = {{100.0}}> {{
        a = Tanh(x) b = Add(a, s) c = Sin(x) small = Add(c, t)
        large = Mul(b, many) whole = Cast <to = 7> (large) }}"""
    )


def outputs(graph: gs.Graph) -> list[dict[str, np.ndarray]]:
    opened = open_model(graph)
    return [opened.run(feed) for feed in FEEDS]


def sqnr(names: list[str], count: int = COUNT) -> float:
    """Return the SQNR of the outputs of these names together."""
    exact, found = outputs(model_io.load(model())), outputs(other())
    arrays = [[one[n].astype(np.float64) for one in made[:count] for n in names] for made in (exact, found)]
    a, b = map(np.concatenate, arrays)
    return float(10 * np.log10((a**2).sum() / ((a - b) ** 2).sum()))


def other() -> gs.Graph:
    return model_io.load(model(0.01, 0.02))


def mixing(rule: MixingRule = RULE) -> Bench:
    return mixing_bench(model_io.load(model()), FEEDS, rule, RunOptions())


def test_mixed_precision_goes_by_all_samples_and_all_outputs_together() -> None:
    bench = mixing()
    assert len(bench.feeds) == COUNT and bench.names == ["large", "small"]
    assert bench.score(other()) == pytest.approx(sqnr(["large", "small"]), rel=1e-4)
    assert bench.float_score() == np.inf


def test_mixed_precision_and_goals_run_models_as_users_do(monkeypatch: pytest.MonkeyPatch) -> None:
    options, opened = list[RunOptions](), judge.open_model

    def _open(graph: gs.Graph, run: RunOptions) -> OpenModel:
        options.append(run)
        return opened(graph, run)

    monkeypatch.setattr(judge, "open_model", _open)
    mixing().score(other())
    goal_bench(model_io.load(model()), FEEDS, Target("sqnr", 30.0)).score(other())
    assert [one.simulate for one in options] == [False, False]


def test_one_output_may_count_alone() -> None:
    bench = mixing(MixingRule(target=("int8",), output_index=1))
    assert bench.score(other()) == pytest.approx(sqnr(["small"]), rel=1e-4)
    with pytest.raises(ValueError, match=r"^output 3 is not there, the model has 3, the first is 0$"):
        mixing(MixingRule(target=("int8",), output_index=3))
    with pytest.raises(ValueError, match=r"^the model has no output of a floating type"):
        mixing(MixingRule(target=("int8",), output_index=2))


def test_a_goal_holds_for_the_worst_output_on_the_samples_of_a_judge() -> None:
    told: list[tuple[int, str]] = []
    graph, goal = model_io.load(model()), Target("sqnr", 30.0)
    bench = goal_bench(graph, FEEDS, goal, progress=lambda *one: told.append(one))
    value = bench.score(other())
    assert value == pytest.approx(min(sqnr(["large"], 32), sqnr(["small"], 32)), rel=1e-4)
    assert len(bench.feeds) == 32 and told == [(1, goal.text(value))]


def test_a_goal_may_be_judged_before_a_softmax() -> None:
    """The reference is the network without it; a model that lacks the Softmax is none of the kind."""
    graphs = [model_io.load(network(seed, 0.5, 1.0, softmax=True)) for seed in (0, 0)]
    for tensor in graphs[1].tensors().values():
        if tensor.name == "w4":
            tensor.values = (tensor.values * np.linspace(0.9, 1.1, 10)[:, None]).astype(np.float32)
    before = [[open_model(_bare(graph)).run(feed)["logits"] for feed in samples(8, 1)] for graph in graphs]
    exact, found = (np.float64(made) for made in before)
    expected = 10 * np.log10(np.square(exact).sum() / np.square(exact - found).sum())
    goal = Target("sqnr", 20.0, before_softmax=True)
    bench = goal_bench(graphs[0], samples(8, 1), goal)
    assert bench.score(graphs[1]) == pytest.approx(expected, rel=1e-4)
    assert bench.score(_bare(graphs[1])) == -np.inf
    after = goal_bench(graphs[0], samples(8, 1), Target("sqnr", 20.0)).score(graphs[1])
    assert abs(after - expected) > 1
    assert goal.text(20.0) == "sqnr before the Softmax 20 dB"
    assert replace(goal, metric="top1").text(1.0) == "top1 1"  # which a Softmax does not change


def _bare(graph: gs.Graph) -> gs.Graph:
    """Return a network without its Softmax."""
    copy = copy_graph(graph)
    copy.outputs = [copy.outputs[0].inputs[0].inputs[0]]
    return copy.cleanup()


def test_a_function_of_the_users_gets_all_that_a_model_makes(tmp_path: Path) -> None:
    """Integers, too, of all samples in order, and as they are."""
    (tmp_path / "metric.py").write_text(
        "def last(outputs):\n    assert len(outputs) == 40\n"
        "    assert all(one['whole'].dtype == 'int64' for one in outputs)\n"
        "    return float(outputs[-1]['large'][0])\n"
    )
    place = f"{tmp_path / 'metric.py'}:last"
    bench = mixing(MixingRule(target=("int8",), evaluate=place, evaluate_target=1.0))
    assert bench.names == ["large", "small", "whole"]
    for graph, value in ((model_io.load(model()), bench.float_score()), (other(), bench.score(other()))):
        assert value == pytest.approx(float(outputs(graph)[-1]["large"][0]), rel=1e-6)


def test_an_output_that_a_model_lacks_counts_as_wrong() -> None:
    cut = other()
    cut.outputs = cut.outputs[:1]
    cut.cleanup()
    assert mixing().score(cut) == -np.inf


def test_the_model_that_is_measured_stays_as_it_is() -> None:
    """What is before a Softmax is shown in a copy."""
    graph = model_io.load(network(0, 0.5, 1.0, softmax=True))
    before = model_io.graph_proto.export_model(graph).SerializeToString(deterministic=True)
    bench = mixing_bench(copy_graph(graph), samples(4, 1), RULE, RunOptions())
    assert bench.score(graph) == bench.score(graph) > 100
    assert model_io.graph_proto.export_model(graph).SerializeToString(deterministic=True) == before


def test_the_error_of_a_goal_is_that_of_the_jackknife_over_samples() -> None:
    """Three samples by hand; the output that is worst without a sample may be another."""
    a, b = np.float64([[1, 1, 1], [0, 0, 0]])
    errors = {"p": [0.1, 0.2, 0.1], "q": [0.1, 0.1, 0.3]}
    pairs = [
        (dict.fromkeys(errors, a + b), {name: a + error[i] for name, error in errors.items()})
        for i in range(3)
    ]

    def _least(places: list[int]) -> float:
        powers = [np.mean([error[i] ** 2 for i in places]) for error in errors.values()]
        return float(min(-10 * np.log10(powers)))

    left = [_least(some) for some in ([1, 2], [0, 2], [0, 1])]
    found = goal_scored(Target("sqnr", 10.0), pairs)
    assert found.value == pytest.approx(_least([0, 1, 2])) and found.samples == 3
    assert found.error == pytest.approx(np.sqrt(2 / 3 * np.square(np.array(left) - np.mean(left)).sum()))
    assert goal_scored(Target("sqnr", 10.0), pairs[:1]).error == 0


def test_a_model_for_each_fold_runs_the_samples_of_that_fold() -> None:
    """Models of folds lose 1 to 4 of one output: so does each sample of the four folds in turn."""
    made = [model_io.load(model(0, loss)) for loss in (1.0, 2.0, 3.0, 4.0)]
    bench = goal_bench(model_io.load(model()), FEEDS, Target("sqnr", 1.0), of_fold=made.__getitem__)
    found = bench.scored(other())
    signal = sum(float(np.square(np.sin(feed["x"].astype(np.float64))).sum()) for feed in FEEDS[:32])
    assert found.in_folds and found.samples == 32 and found.error > 0.5
    pooled = 10 * np.log10(signal / (6 * 8 * (1 + 4 + 9 + 16)))
    assert pooled - 0.5 < found.value < pooled


def test_the_error_of_a_share_of_rows_is_that_of_the_jackknife_over_samples() -> None:
    """Of three samples with 2, 1 and 1 rows, one row of the first has another answer."""
    right, wrong = [1.0, 0.0], [0.0, 1.0]
    pairs = [
        ({"y": np.float32(expected)}, {"y": np.float32(found)})
        for expected, found in (([right, right], [right, wrong]), ([right], [right]), ([right], [right]))
    ]
    found = goal_scored(Target(LOST_TOP1, 0.1), pairs)
    left = np.array([0, 1 / 3, 1 / 3])
    assert found.value == 0.25
    assert found.error == pytest.approx(np.sqrt(2 / 3 * np.square(left - left.mean()).sum()))
