"""What models are judged on. Oracle: the float model itself, in another form."""

from __future__ import annotations

from tests.helpers.judged_networks import network, samples
from transforms import model_io
from transforms.judge.errors import gain
from transforms.judge.judge import Judge
from transforms.model.copy_graph import copy_graph
from transforms.runtime.session import RunOptions


def test_another_form_is_judged_on_as_many_samples() -> None:
    """Also one whose views have other names: gains compare the same samples."""
    graph = model_io.load(network(0, 0.5, 1.0, softmax=True))
    judge = Judge(graph, samples(6, 3))
    judge.count = 4
    form = copy_graph(graph)
    next(node for node in form.nodes if node.op == "Gemm").outputs[0].name = "renamed"
    other = judge.rewritten(form)
    assert other is not judge and "renamed" in other.shown
    before, after = judge.errors_of(copy_graph(graph)), other.errors_of(copy_graph(form))
    assert before.errors.shape == after.errors.shape == (4, len(other.shown))
    assert gain(after, before).decibels == 0


def test_more_samples_than_judge_moves_are_judged_on_if_asked_for() -> None:
    graph, feeds = model_io.load(network(0, 0.5, 1.0)), samples(40, 3)
    few, judge = Judge(graph, feeds), Judge(graph, feeds, most=None)
    assert (few.count, judge.count) == (32, 40)
    assert len(judge.errors_of(copy_graph(graph)).errors) == 40
    form = copy_graph(graph)
    next(node for node in form.nodes if node.op == "Gemm").outputs[0].name = "renamed"
    assert judge.rewritten(form).count == len(judge.rewritten(form).reference.feeds) == 40


def test_models_run_as_users_run_them_or_as_they_say() -> None:
    """With kernels for integers, which may do something else with weights in the order that they like."""
    graph, feeds = model_io.load(network(0, 0.5, 1.0)), samples(2, 3)
    options = [
        Judge(graph, feeds, RunOptions(simulate=simulate)).reference.options for simulate in (True, False)
    ]
    assert [(one.simulate, one.prepack) for one in options] == [(True, False), (False, True)]
