"""What models are judged on. Oracle: the float model itself, in another form."""

from __future__ import annotations

from tests.helpers.judged_networks import network, samples
from transforms import model_io
from transforms.judge.errors import gain
from transforms.judge.judge import Judge
from transforms.model.copy_graph import copy_graph


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
