"""Models with the ranges of other folds. Oracle: the model that is written, and one made of other samples."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.helpers.judged_networks import network, samples
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.model import graph_proto
from transforms.pipelines.folds import FoldError, Folds, has_folds
from transforms.pipelines.in_memory import IN_MEMORY
from transforms.pipelines.options import Options
from transforms.pipelines.record import JobRecord
from transforms.pipelines.steps import run
from transforms.pipelines.work import Work
from transforms.scheme import Scheme, preset

FEEDS = samples(10, 1)
NETWORKS = {
    "plain": network(2, 0.3, 8.0),
    "channels": network(3, 1.5, 4),
    "softmax": network(1, 1.0, 3.0, True),
}


def _work(model: onnx.ModelProto, scheme: Scheme, places: list[int], *, may_compare: bool = True) -> Work:
    graph = graph_proto.import_model(model)
    data = CalibrationData([FEEDS[place] for place in places])
    options = Options(keeps_float=True, may_compare=may_compare)
    return run(Work(graph, scheme, data, options=options), IN_MEMORY)


def _bytes(graph: object) -> bytes:
    return graph_proto.export_model(graph).SerializeToString(deterministic=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("config", ["A8W8", "U8S8", "XINT8", "A16W8"])
@pytest.mark.parametrize("name", NETWORKS)
def test_with_all_ranges_it_is_the_model_that_is_written(name: str, config: str) -> None:
    work = _work(NETWORKS[name], preset(config), list(range(10)))
    assert has_folds(work) and work.statistics is not None
    assert _bytes(Folds(work, work.float_form()).written(work.statistics)) == _bytes(work.graph)


@pytest.mark.parametrize("config", ["A8W8", "U8S8", "XINT8"])
def test_a_fold_is_the_model_that_its_scheme_makes_of_other_samples(config: str) -> None:
    work = _work(NETWORKS["channels"], preset(config), list(range(10)))
    folds, written = Folds(work, work.float_form()), _bytes(work.graph)
    for fold in range(4):
        others = [place for place in range(10) if place % 4 != fold]
        other = _work(NETWORKS["channels"], work.scheme, others)
        made = folds(fold)
        assert _scales(made) == pytest.approx(_scales(other.graph), rel=1e-6)
    assert _bytes(work.graph) == written
    is_other = [_scales(folds(fold)) != _scales(work.graph) for fold in range(4)]
    assert any(is_other) or config == "XINT8"  # powers of two are the same


def _scales(graph: object) -> list[float]:
    model = graph_proto.export_model(graph)  # type: ignore[arg-type]
    numbers = {one.name: onnx.numpy_helper.to_array(one) for one in model.graph.initializer}
    scales = [node.input[1] for node in model.graph.node if node.op_type == "QuantizeLinear"]
    return [float(np.ravel(numbers[name])[0]) for name in scales]


def test_there_are_none_without_ranges_or_with_weights_that_samples_rounded() -> None:
    assert not has_folds(_work(NETWORKS["plain"], preset("W4A8"), list(range(10))))
    assert not has_folds(_work(NETWORKS["plain"], preset("MX6"), list(range(10))))
    assert not has_folds(_work(NETWORKS["plain"], preset("A8W8"), list(range(10)), may_compare=False))
    work = _work(NETWORKS["plain"], preset("A8W8"), list(range(10)))
    work.record = JobRecord(tuned=object())  # type: ignore[arg-type]
    assert not has_folds(work)


def test_ranges_that_do_not_suit_the_scheme_are_an_error_of_their_own() -> None:
    work = _work(NETWORKS["plain"], preset("A8W8"), list(range(10)))
    work.scheme = work.scheme.with_(full_range=("none",))
    with pytest.raises(FoldError, match="full_range names 'none', which cannot be shifted"):
        Folds(work, work.float_form())(0)
