"""Residual streams that are rotated if the outputs gain.

Oracle: ONNX Runtime on samples that gave neither moves nor ranges, with and without rotations.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from transforms.graph.residual_streams import StreamFinder
from transforms.outliers import outlying_streams
from transforms.outliers.confirm_moves import is_clear, is_worth_it_twice

from tests.helpers.pre_norm import LENGTH, NORMS, WORDS, pre_norm
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.finetune.output_error import OutputError
from transforms.model import graph_proto
from transforms.pipelines import quantize_graph as quantize_graph_module
from transforms.pipelines import settle_outliers
from transforms.pipelines.quantize_graph import Quantized, quantize_graph
from transforms.plan import integer_sites
from transforms.scheme import Scheme, preset

WIDTH = 64


def quantized(norm: str, factor: float, scheme: str | Scheme) -> tuple[float, Quantized, bytes]:
    """Return the SNR in dB on 20 new samples, what was done with 8 others, and the model."""
    random = np.random.default_rng(9)
    feeds = [{"ids": ids} for ids in random.integers(0, WORDS, (28, 1, LENGTH))]
    graph = graph_proto.import_model(pre_norm(norm, factor=factor, width=WIDTH, seed=2))
    if isinstance(scheme, str):
        scheme = preset(scheme).by_rule().with_(move_outliers=True)
    done = quantize_graph(graph, scheme, CalibrationData(feeds[:8]), keep_float=True)
    assert done.float_graph is not None
    error = OutputError(done.float_graph, feeds[8:]).each(graph).relative
    model = graph_proto.export_model(graph).SerializeToString(deterministic=True)
    return float(-10 * np.log10(error)), done, model


@pytest.mark.parametrize("norm", NORMS)
def test_a_stream_with_outliers_is_rotated(norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three of 64 channels are 8 times the others: 27.8, 27.6 and 20.4 dB without rotations, in the order of
    ``NORMS``; 29.1, 29.7 and 26.8 dB with them.
    """
    gained, done, model = quantized(norm, 8, "U8S8")
    assert done.scheme is not None
    assert done.scheme.outliers["sum"] == "rotated"
    assert quantized(norm, 8, done.scheme)[2] == model
    monkeypatch.setattr(StreamFinder, "streams", lambda self: [])
    other, plain, _ = quantized(norm, 8, "U8S8")
    assert plain.scheme is not None
    assert "sum" not in plain.scheme.outliers
    assert gained > other + 0.5


@pytest.mark.parametrize("norm", NORMS)
def test_a_stream_without_outliers_stays(norm: str) -> None:
    _, done, _ = quantized(norm, 1, "A8W8")
    assert done.scheme is not None
    assert "sum" not in done.scheme.outliers


@pytest.mark.parametrize(("norm", "tried"), [("LayerNormalization", False), ("parts", True)])
def test_large_models_rotate_what_is_rounded(norm: str, tried: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A norm that is one node leaves the stream before it in float; so does one in parts, left out here."""
    monkeypatch.setattr(outlying_streams, "_LARGE", 1)
    monkeypatch.setattr(integer_sites, "is_norm", lambda *_: False)
    _, done, _ = quantized(norm, 8, "U8S8")
    assert done.scheme is not None
    assert ("sum" in done.scheme.outliers) is tried


@pytest.mark.parametrize(("most", "rotated", "models"), [(1, False, 0), (2, False, 2), (3, True, 3)])
def test_models_are_as_many_as_there_is_time_for(
    most: int, rotated: bool, models: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One half of the samples: without moves, with those that layers ask for, and in a rotated graph."""
    searches = []

    def _settle(*arguments: Any, **named: Any) -> settle_outliers.Settled:
        searches.append(settle_outliers.settle_outliers(*arguments, **named))
        return searches[-1]

    monkeypatch.setattr(integer_sites, "is_norm", lambda *_: False)  # so that the stream is rounded
    monkeypatch.setattr(settle_outliers, "models_to_search", lambda *_: most)
    monkeypatch.setattr(quantize_graph_module, "settle_outliers", _settle)
    _, done, _ = quantized("parts", 40, "U8S8")
    assert done.scheme is not None
    assert ("sum" in done.scheme.outliers) is rotated
    assert [one.models for one in searches] == [models]


class Halves:
    """As Trial, with ratios of each half that are given."""

    def __init__(self, *ratios: list[float]) -> None:
        self._ratios = ratios

    def of_half(self, half: int) -> NDArray[np.float64]:
        return np.array(self._ratios[half])


@pytest.mark.parametrize(
    ("first", "second", "worth"),
    [
        ([21.0, 20.0], [20.0, 21.0], True),
        ([25.0, 25.0], [20.0, 20.3], False),  # too little in the second
        ([20.0, 20.0], [25.0, 25.0], False),
        ([25.0, 19.8], [25.0, 25.0], False),  # one output pays
    ],
)
def test_each_half_has_to_gain(first: list[float], second: list[float], worth: bool) -> None:
    old = Halves([20.0, 20.0], [20.0, 20.0])
    assert is_worth_it_twice(Halves(first, second), old) is worth  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("new", "clear"), [([24.0, 23.0], True), ([22.0, 23.0], False), ([29.0, 19.0], False), ([], False)]
)
def test_three_decibels_over_all_others_are_clear(new: list[float], clear: bool) -> None:
    others = [Halves([20.0] * len(new)), Halves([10.0] * len(new))]
    assert is_clear(Halves(new), others) is clear  # type: ignore[arg-type]
