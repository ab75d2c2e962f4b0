"""What a Softmax is made of counts on held-out samples. Oracle: the gain of the same errors by the judge."""

from __future__ import annotations

import pytest

from tests.helpers.judged_networks import network, samples
from transforms import model_io
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.conversion.prepare import prepare_for
from transforms.finetune.held_out import HeldOutJudge
from transforms.finetune.options import FinetuneOptions
from transforms.judge.errors import gain
from transforms.model.copy_graph import copy_graph
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.scheme import preset


def test_views_are_compared_apart_from_probabilities() -> None:
    model, feeds = network(0, 0.5, 1.0, softmax=True), samples(20, 3)
    reference = model_io.load(model)
    prepare_for(reference, preset("W4A8").by_rule())
    graphs = [model_io.load(model) for _ in range(2)]
    for graph, config in zip(graphs, ("W4A8", "A8W8"), strict=True):
        quantize_graph(graph, preset(config).by_rule(), CalibrationData(feeds))
    judge = HeldOutJudge(reference, graphs[0], feeds, FinetuneOptions())
    found = judge.errors(copy_graph(graphs[1]))
    compared, held = judge.compare(found), gain(found.held, judge.before.held)
    assert (compared.decibels, compared.view) == pytest.approx((held.decibels, held.view))
    assert compared.view != compared.decibels
    assert judge.accepts(compared)
