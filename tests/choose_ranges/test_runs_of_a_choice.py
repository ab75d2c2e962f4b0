"""What choosing settings costs, in numbers that are the same on every machine. Oracle: what has to be run.

Each sample is run once by the float model for its outputs and channels, once for statistics, those of scaled
channels among them (once more for each other form of the model), and once for each setting. Copies of graphs
come of no model, and a weight that several models share is rounded once. Means of layers take another run of
the float model, and three of one more quantized one: they are measured, and outputs are compared with and
without them in biases.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx
import pytest

from tests.choose_ranges.test_scaled_by_outputs import SCALED, samples, uneven
from tests.helpers.pre_norm import LENGTH, WORDS, pre_norm
from transforms import model_io
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.model import graph_proto
from transforms.pipelines.quantize_graph import Quantized, quantize_graph
from transforms.plan import qparams
from transforms.runtime import session
from transforms.runtime.session import OpenModel
from transforms.scheme import preset

MEANS = 8 * (1 + 3)

COUNTED = {
    "runs": (OpenModel, "run"),
    "sessions": (session, "_start"),
    "scales of weights": (qparams, "weight_scale"),
    "graphs made of models": (graph_proto, "_import_inferred"),
}


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Count calls while the block runs."""
    counts = Counter[str]()

    def _counting(name: str, called: Callable[..., Any]) -> Callable[..., Any]:
        def _call(*arguments: Any, **named: Any) -> Any:
            counts[name] += 1
            return called(*arguments, **named)

        return _call

    with monkeypatch.context() as patch:
        for name, (owner, function) in COUNTED.items():
            patch.setattr(owner, function, _counting(name, getattr(owner, function)))
        yield counts


def cost(
    monkeypatch: pytest.MonkeyPatch, model: onnx.ModelProto, feeds: list[dict[str, Any]], name: str
) -> tuple[Counter[str], Quantized]:
    """Return what a preset costs beyond its rules, and what it made."""
    found = []
    chosen = preset(name).with_(keep_float=False)
    for scheme in (preset(name).by_rule().with_(move_outliers=False), chosen):
        graph = model_io.load(model)
        with counted(monkeypatch) as counts:
            done = quantize_graph(graph, scheme, CalibrationData(feeds))
        found.append(counts)
    return found[1] - found[0], done


@pytest.mark.parametrize(("name", "settings", "codes"), [("U8S8", 8, 0), ("A8W8", 8, 3)])
def test_a_network_with_uneven_channels(
    name: str, settings: int, codes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The float model is run by the search for channels, which the outputs come of, too; codes on 4 samples.

    Weights per tensor and per channel are rounded once each, in the float model and the scaled one.
    """
    counts, done = cost(monkeypatch, uneven(3.0), samples(8, 1), name)
    assert f"8 held-out samples, {settings} settings" in done.choice and SCALED in done.changes
    assert counts["runs"] <= 8 + 8 * settings + 4 * codes + MEANS
    assert counts["sessions"] <= 1 + 1 + 2 + codes + 2
    assert counts["scales of weights"] <= 8
    assert counts["graphs made of models"] == 0


@pytest.mark.parametrize(("name", "codes"), [("U8S8", 0), ("A8W8", 2)])
@pytest.mark.parametrize(("factor", "halves", "scales"), [(1.0, 6, 57), (8.0, 6, 88)])
def test_a_transformer_whose_outliers_may_be_moved(
    name: str, codes: int, factor: float, halves: int, scales: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trials, two halves of up to three ways, measure ranges on half of the samples and run the other.

    What the float model makes of the samples that outliers are looked for in serves the comparison, too.
    Once no tensor of the moved form has ranges that reach beyond the samples: one setting less.
    """
    words = np.random.default_rng(9).integers(0, WORDS, (8, 1, LENGTH))
    model = pre_norm(factor=factor, width=32 if factor == 1 else 64)
    counts, done = cost(monkeypatch, model, [{"ids": one} for one in words], name)
    settings = 4 if (name, factor) == ("A8W8", 8.0) else 5
    assert f"8 held-out samples, {settings} settings" in done.choice
    assert counts["runs"] <= 8 + halves * (4 + 4) + 8 * settings + 4 * codes + MEANS
    assert counts["sessions"] <= 1 + halves * 2 + 1 + codes + 2
    assert counts["scales of weights"] <= scales
    assert counts["graphs made of models"] == 0
