"""An attempt that leads to a model that was tried is not made. Oracle: the model that it would lead to."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_graphsurgeon as gs
import pytest

from ops.array_types import Feed
from tests.helpers import tunable
from transforms.finetune import finetune_model as module
from transforms.finetune.finetune_model import TunedModel, finetune_model
from transforms.finetune.finetune_weights import finetune_weights
from transforms.finetune.judged_samples import JudgedSamples
from transforms.finetune.options import FinetuneOptions, LayerwiseOptions
from transforms.finetune.output_error import Errors
from transforms.finetune.tune_layer import AS_IT_WAS, BIAS, LEARNED, is_offered
from transforms.finetune.tuned_layers import LayerReport, TunedLayers
from transforms.model import graph_proto
from transforms.model.copy_graph import copy_graph

NET = tunable.conv_net()
DATA = tunable.samples(NET, 40)

ALL = LayerwiseOptions()
PRESENT = dataclasses.replace(ALL, rescale=False)
BIASES = dataclasses.replace(ALL, weights=False)


@pytest.mark.parametrize("name", ["A8W8", "W4A8", "MX6", "MXFP4E2M1", "BF16"])
@pytest.mark.parametrize("fewer", [PRESENT, BIASES], ids=["present", "biases"])
@pytest.mark.parametrize("count", [8, 40])
def test_options_that_offer_what_was_chosen_lead_to_the_same_model(
    name: str, fewer: LayerwiseOptions, count: int
) -> None:
    """Some of these cases do, others do not; those that are said to do make the same bytes."""
    float_graph, quantized = tunable.pair(NET, name, DATA[:count])

    def _tuned(options: LayerwiseOptions) -> tuple[bytes, TunedLayers]:
        graph = copy_graph(quantized)
        walked = finetune_weights(float_graph, graph, DATA[:count], options)
        return graph_proto.export_model(graph).SerializeToString(deterministic=True), walked

    first, walked = _tuned(ALL)
    if walked.are_those_of(fewer):
        assert _tuned(fewer)[0] == first
    else:
        assert [layer.best for layer in _tuned(fewer)[1].layers] != [layer.best for layer in walked.layers]


def test_formats_without_stored_scales_offer_the_same() -> None:
    float_graph, quantized = tunable.pair(NET, "BF16", DATA)
    walked = finetune_weights(float_graph, quantized, DATA, ALL)
    assert walked.are_those_of(PRESENT) and not walked.are_those_of(BIASES)


def fits(
    monkeypatch: pytest.MonkeyPatch, best: Sequence[str], *, gained: float, passes: bool = True
) -> tuple[TunedModel, list[str], list[int]]:
    """Return what becomes of a model whose layers choose, the fits in order, and how many were tried."""
    found: list[str] = []
    counts: list[int] = []
    names = {(True, True): "all", (True, False): "present", (False, True): "biases"}

    def _tune(
        _: gs.Graph, graph: gs.Graph, _feeds: Sequence[Feed], options: FinetuneOptions, **__: object
    ) -> TunedLayers:
        graph.name = names[options.weights, options.rescale]
        found.append(graph.name)
        chosen = [what if is_offered(what, options) else BIAS for what in best]
        return TunedLayers([LayerReport("a", "Conv", 1.0, 0.5, 1.0, what, 0.0, best=what) for what in chosen])

    def _passes(_: JudgedSamples, fitted: Sequence[Errors], tried: int, *, clearly: bool = False) -> bool:
        counts.append(tried)
        return passes

    monkeypatch.setattr(module, "finetune_weights", _tune)
    monkeypatch.setattr(JudgedSamples, "passes", _passes)
    monkeypatch.setattr(JudgedSamples, "gain", lambda *_: gained)
    monkeypatch.setattr(JudgedSamples, "is_hopeless", lambda *_: True)
    monkeypatch.setattr(JudgedSamples, "harmed", lambda *_: [])
    pair = tunable.pair(NET, "MX6", DATA)
    return finetune_model(*pair, DATA, FinetuneOptions(all_codes="off")), found, counts


SAME, OTHER = "same exponents", "other exponents, shifted by 0.1"


@pytest.mark.parametrize(
    ("best", "fitted"),
    [
        ([SAME, BIAS], ["all", "biases"]),
        ([SAME, OTHER], ["all", "present", "biases"]),
        ([BIAS, AS_IT_WAS], ["all"]),
        ([SAME + LEARNED], ["all", "biases"]),
        ([OTHER, BIAS], ["all", "present"]),
    ],
)
def test_what_no_layer_chose_is_not_left_out_again(
    best: list[str], fitted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gain of less than 1 dB: other attempts are made. The last has the threshold of as many models."""
    done, found, counts = fits(monkeypatch, best, gained=0.5)
    assert done.attempt == "weights, biases and scales"
    assert found == fitted
    assert counts[-1] == len(fitted) - 1


def test_all_layers_are_no_choice_of_some(monkeypatch: pytest.MonkeyPatch) -> None:
    """No output is harmed: there is nothing to put back, and no model of some layers is tried."""
    done, found, counts = fits(monkeypatch, [SAME, OTHER], gained=0.5, passes=False)
    assert done.attempt is None and found == ["all", "present", "biases"]
    assert sorted(set(counts)) == [0, 1, 2]
