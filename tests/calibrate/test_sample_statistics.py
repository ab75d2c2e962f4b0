"""How a model is opened for the statistics of a sample. Oracle: what the runtime is asked for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest

from tests.helpers import build
from transforms.calibrate import sample_statistics
from transforms.calibrate.methods import CalibrationOptions
from transforms.calibrate.range_statistics import RangeStats
from transforms.calibrate.sample_statistics import SampleStatistics, no_statistics
from transforms.graph.typed import Graph
from transforms.model import graph_proto
from transforms.run.instrumented_model import InstrumentedModel
from transforms.runtime.session import RunOptions

NAMES = ["x", "matmul0_out", "y"]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return a list that gets, of each model that is opened, whether it may compute on blocks of channels."""
    found = []

    def _open(graph: Graph, shown: list[str], run: RunOptions, watched: list[str]) -> InstrumentedModel[str]:
        found.append(run.blocked)
        return InstrumentedModel(graph, shown, run, watched=watched)

    monkeypatch.setattr(sample_statistics, "InstrumentedModel", _open)
    return found


def test_threads_rest_while_a_tensor_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that look for work then take the time of a core for each, and of those that work."""
    asked = list[tuple[int, bool]]()

    def _open(graph: Graph, shown: list[str], run: RunOptions, watched: list[str]) -> InstrumentedModel[str]:
        asked.append((run.threads, run.spin))
        return InstrumentedModel(graph, shown, run, watched=watched)

    monkeypatch.setattr(sample_statistics, "InstrumentedModel", _open)
    graph = graph_proto.import_model(build.dense(layers=2))
    for run in (None, RunOptions(threads=2)):
        statistics = SampleStatistics(
            graph, no_statistics(NAMES, (), histogram=True), CalibrationOptions(), run
        )
        statistics.of("sample", {"x": np.ones((2, 16), np.float32)}, lambda *_: [])
    assert asked == [(0, False), (2, False)]


@pytest.mark.parametrize(("few", "rows", "blocked"), [(2, 2, True), (1, 2, False), (2, 1 << 15, False)])
def test_blocks_of_channels_are_for_small_samples_and_models(
    few: int, rows: int, blocked: bool, asked: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runtime takes seconds to bring ten thousand nodes into blocks, a time in the square of them."""
    monkeypatch.setattr(sample_statistics, "_FEW", few)
    _see(["Conv"], rows)
    assert asked == [blocked]


@pytest.mark.parametrize(
    ("operators", "blocked"),
    [(["Conv"], True), (["Conv", "MatMul"], False), (["MatMul"], False), (["Conv", "Relu", "Conv"], True)],
)
def test_blocks_of_channels_are_for_models_of_convolutions(
    operators: list[str], blocked: bool, asked: list[bool]
) -> None:
    """Sizes that blocks ask for can take a run of the model: seconds for a transformer with one of them."""
    _see(operators, 2)
    assert asked == [blocked]


def _see(operators: Sequence[str], rows: int) -> None:
    """Make statistics of a chain of operators, for a sample of so many rows."""
    names = ["x", *(f"t{i}" for i in range(1, len(operators))), "y"]
    weights = {"Conv": ", w", "MatMul": ", m"}
    nodes = [
        f"{made} = {op}({read}{weights.get(op, '')})"
        for op, read, made in zip(operators, names, names[1:], strict=False)
    ]
    text = f"""<ir_version: 8, opset_import: ["": 17]> main (float[1, 1, N, 16] x) => (float[1, 1, N, 16] y)
        <float[1, 1, 1, 1] w = {{2.0}}, float[1, 1, 16, 16] m = {{{", ".join(["1.0"] * 256)}}}> {{
        {" ".join(nodes)}
    }}"""
    graph = graph_proto.import_model(onnx.parser.parse_model(text))
    wanted = no_statistics(names, (), histogram=False)
    statistics = SampleStatistics(graph, wanted, CalibrationOptions(), None)
    statistics.of("sample", {"x": np.ones((1, 1, rows, 16), np.float32)}, lambda *_: [])


def test_sizes_that_no_shape_tells_are_measured_once_for_samples_of_one_shape(asked: list[bool]) -> None:
    """The numbers of the first say how large the result of NonZero is; shapes come twice."""
    text = """<ir_version: 8, opset_import: ["": 17]> main (float[1, 1, N, 3] x) => (float[R, C] y)
        <float[1, 1, 1, 1] w = {2.0}> {
        a = Conv(x, w)
        i = NonZero(a)
        y = Cast<to: int = 1>(i)
    }"""
    graph = graph_proto.import_model(onnx.parser.parse_model(text))
    wanted = no_statistics(["x", "a", "y"], (), histogram=False)
    statistics = SampleStatistics(graph, wanted, CalibrationOptions(), None)
    found: list[RangeStats] = []

    def _into(sample: str, name: str) -> list[RangeStats]:
        one = statistics.nothing_of(name)
        found.extend([one] * (name == "a"))
        return [one]

    for number, rows in enumerate((2, 2, 5, 2, 5)):
        feed = {"x": np.full((1, 1, rows, 3), number, np.float32)}
        statistics.of(str(number), feed, _into)
    assert asked.count(False) == 2 and asked.count(True) == 1
    assert [one.high for one in found] == [0, 2, 4, 6, 8]
