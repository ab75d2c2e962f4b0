"""How a model is opened for the statistics of a sample. Oracle: what the runtime is asked for."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers import build
from transforms.calibrate import sample_statistics
from transforms.calibrate.methods import CalibrationOptions
from transforms.calibrate.sample_statistics import SampleStatistics, no_statistics
from transforms.graph.typed import Graph
from transforms.model import graph_proto
from transforms.run.instrumented_model import InstrumentedModel
from transforms.runtime.session import RunOptions

NAMES = ["x", "matmul0_out", "y"]


@pytest.mark.parametrize(("few", "rows", "blocked"), [(3, 2, True), (2, 2, False), (3, 1 << 15, False)])
def test_blocks_of_channels_are_for_small_samples_and_models(
    few: int, rows: int, blocked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runtime takes seconds to bring ten thousand nodes into blocks, a time in the square of them."""
    asked = []

    def _open(graph: Graph, shown: list[str], run: RunOptions, watched: list[str]) -> InstrumentedModel[str]:
        asked.append(run.blocked)
        return InstrumentedModel(graph, shown, run, watched=watched)

    monkeypatch.setattr(sample_statistics, "InstrumentedModel", _open)
    monkeypatch.setattr(sample_statistics, "_FEW", few)
    graph = graph_proto.import_model(build.dense(layers=2))
    wanted = no_statistics(NAMES, (), histogram=False)
    SampleStatistics(graph, wanted, CalibrationOptions(), None)._model({"x": np.ones((rows, 16), np.float32)})
    assert asked == [blocked]
