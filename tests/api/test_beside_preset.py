"""Models for a target beside their preset. Oracle: both models on samples that chose nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest

import onnx_narrow
from onnx_narrow import Result
from tests.helpers import log_mel, origins, plans, tunable
from tests.helpers.judged_networks import network, ratio, samples
from tests.moves.test_channels import uneven
from transforms.judge.candidate_model import CandidateModel
from transforms.judge.errors import Errors
from transforms.judge.judge import Judge
from transforms.model import graph_proto
from transforms.pipelines import beside_preset as module
from transforms.pipelines.rebuild import _from_source, _from_undecided
from transforms.pipelines.work import Work
from transforms.precision.chosen import BesidePreset
from transforms.run.turns import Timing
from transforms.scheme import Scheme

UNSEEN = samples(28, 2)
IN_INTEGERS = {"keep_float": False}
"""A network with a gate then needs another Mul, which the target does not get."""


def made(model: onnx.ModelProto, **options: object) -> Result:
    return onnx_narrow.quantize(model, data=samples(8, 1), target="ort-cpu", **options)  # type: ignore[arg-type]


def line_of(result: Result, start: str = "Compared with the preset") -> str:
    return next((line for line in result.notes if line.startswith(start)), "")


def test_features_of_speech_are_as_good_as_those_of_the_preset() -> None:
    model, data, unseen = log_mel.model(), log_mel.sounds(8, 1), log_mel.sounds(16, 9)
    plain = onnx_narrow.quantize(model, data=data, config="U8S8", time=False)
    result = onnx_narrow.quantize(model, data=data, target="ort-cpu", time=False)
    assert ratio(model, result.model.SerializeToString(), unseen) > 15
    assert result.sqnr is not None and plain.sqnr is not None and result.sqnr > plain.sqnr - module.NEAR
    inputs = {node.name: node.input for node in result.model.graph.node}
    assert inputs["sums"][1] == "bands", "beside a float operand a kernel would round both"


def test_a_worse_model_names_the_command_for_the_other() -> None:
    model = uneven(1.5)
    result = made(model, time=False, assignments=IN_INTEGERS)
    line = line_of(result)
    assert line.endswith("config='U8S8' makes the latter")
    plain = onnx_narrow.quantize(
        model, data=samples(8, 1), config="U8S8", time=False, assignments=IN_INTEGERS
    )
    before, after = (ratio(model, one.model.SerializeToString(), UNSEEN) for one in (result, plain))
    assert after > before + module.NEAR
    assert any("1 tensor not scaled for a target" in note for note in result.notes)


@pytest.mark.parametrize("name", ["channels", "convolutions", "speech"])
def test_models_made_of_the_prepared_one_are_those_of_the_source(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Oracle: the file is read, prepared, measured and decided about again. Channels of the first move."""
    model, data = {
        "channels": (uneven(1.5), samples(8, 1)),
        "convolutions": (tunable.conv_net(), tunable.samples(tunable.conv_net(), 8)),
        "speech": (log_mel.model(), log_mel.sounds(8, 1)),
    }[name]
    forms = []

    def _both(work: Work, scheme: Scheme) -> Work:
        anew, source = (make(work, scheme, work.data) for make in (_from_undecided, _from_source))
        assert anew is not None and anew.scheme == source.scheme
        assert (anew.record.changes, anew.record.notes) == (source.record.changes, source.record.notes)
        files = [graph_proto.export_model(other.graph).SerializeToString() for other in (anew, source)]
        assert files[0] == files[1]
        forms.append(bool(scheme.outliers))
        return anew

    monkeypatch.setattr(module, "rebuilt", _both)
    monkeypatch.setattr(module, "FINE", 99.0)
    monkeypatch.setattr(BesidePreset, "is_far", True)
    onnx_narrow.quantize(model, data=data, target="ort-cpu", time=False, assignments=IN_INTEGERS)
    assert forms == [False, name == "channels"]


def test_candidates_that_both_decisions_have_are_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: a judge that recalls nothing, with the same decisions. Both models round the same tensors."""
    model, runs = network(3, 1.5, 4), list[str]()

    def _errors(self: CandidateModel, scheme: Scheme, places: Sequence[int], *, whole: bool) -> Errors:
        runs.append(repr((self._structure, scheme.with_(target=""), [*places], whole)))
        return measure(self, scheme, places, whole=whole)

    measure = CandidateModel._errors
    monkeypatch.setattr(CandidateModel, "_errors", _errors)
    monkeypatch.setattr(module, "FINE", 99.0)

    def _made() -> Result:
        data = samples(8, 1)
        return onnx_narrow.quantize(model, data=data, config="U8S8", target="ort-cpu", time=False)

    first, measured = _made(), [*runs]
    assert len(set(measured)) == len(measured) > 5
    runs.clear()
    forgetful = property(lambda self: {}, lambda self, errors: None)  # a new, empty memory at each look
    monkeypatch.setattr(Judge, "measured", forgetful, raising=False)
    second = _made()
    assert set(runs) == set(measured) and len(runs) > len(measured)
    assert first.model.graph == second.model.graph


@pytest.mark.parametrize(("time", "is_written"), [(0.98, True), (1.01, True), (1.2, False)])
def test_the_preset_is_written_where_it_is_no_slower(
    time: float, is_written: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_ratio", lambda *_: Timing(time, time, time, 8))
    result = made(uneven(1.5), time=False, assignments=IN_INTEGERS)
    assert bool(line_of(result)) != is_written and result.scheme is not None
    assert bool(result.scheme.outliers) == is_written


def test_a_model_of_no_use_is_not_written_where_the_preset_is_of_use() -> None:
    model = uneven(3.0)
    result = made(model, time=False, assignments=IN_INTEGERS)
    assert result.scheme is not None and result.scheme.outliers
    assert ratio(model, result.model.SerializeToString(), UNSEEN) > 20


def test_layers_are_searched_where_both_are_of_no_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """One scale for a weight of unlike channels leaves nothing of most of them."""
    model, options = origins.chain(1e4, 8), {"per_channel": False, "time": False, "moves": ()}

    def _made(**more: object) -> Result:
        return onnx_narrow.quantize(model, data=origins.feeds(16), target="ort-cpu", **options, **more)

    poor, found = _made(assignments=IN_INTEGERS), _made()
    unseen = origins.feeds(40)[16:]
    before, after = (ratio(model, one.model.SerializeToString(), unseen) for one in (poor, found))
    assert before < 10 < after
    assert "layers (" in line_of(found, "In float, for accuracy")


@pytest.mark.parametrize(
    "options",
    [{"target": "openvino"}, {"target": "ort-cpu", "fast": True}, {"target": "ort-cpu", "min_sqnr": 5}],
)
def test_nothing_else_is_built_twice(options: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_beside", lambda *_: pytest.fail("built twice"))
    result = onnx_narrow.quantize(uneven(1.0), data=samples(8, 1), time=False, **options)  # type: ignore[arg-type]
    assert not line_of(result)


def test_a_model_of_which_nothing_would_be_quantized_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small networks are best with all tensors in float, which the preset may leave so."""
    monkeypatch.setattr(module, "_ratio", lambda *_: Timing(0.9, 0.9, 0.9, 8))
    random = np.random.default_rng(0)
    weights = {"w": random.standard_normal((4, 3, 1, 1)), "w2": random.standard_normal((4, 4, 3, 3))}
    text = """(float[1, 3, 8, 8] x) => (float[1, 4, 4, 4] y) {
        a = Conv(x, w) q = AveragePool<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]>(a)
        y = Conv<pads = [1, 1, 1, 1]>(q, w2) }"""
    model = plans.model(text, {name: array.astype(np.float32) for name, array in weights.items()})
    data = [{"x": np.random.default_rng(i).standard_normal((1, 3, 8, 8), np.float32)} for i in range(8)]
    result = onnx_narrow.quantize(model, data=data, target="ort-cpu", time=False)
    assert onnx_narrow.check(result.model, target="ort-cpu") == []
