"""What a conversion does grows with the number of nodes, not with its square.

Oracle: the number of calls, of Python's and of native functions, on chains of which one has four times the
nodes of the other. Unlike a time it is the same at every run. Loops over all nodes, or over all users
of a tensor, for each node show in it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import FrameType

import onnx_graphsurgeon as gs
import pytest

from tests.benchmarks.chain_models import chain
from transforms import model_io
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.conversion.convert_bf16 import Bf16Options, convert_bf16
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.run.feeds import random_feeds
from transforms.runtime.inputs import model_inputs
from transforms.runtime.session import why_not_on_cpu
from transforms.scheme.sources import preset

FEW, MANY = 240, 960


def _calls(work: Callable[[], object]) -> int:
    count = 0

    def _see(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(_see)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def _convert(form: str, nodes: int, kind: str) -> None:
    graph = model_io.load(chain(form, nodes))
    _rewrite(graph, kind)
    assert why_not_on_cpu(*model_io.export(graph)) is None


def _rewrite(graph: gs.Graph, kind: str) -> None:
    if kind in ("with_cast", "customqdq"):
        convert_bf16(graph, Bf16Options(format=kind))
        return
    data = CalibrationData(random_feeds(model_inputs(graph), 1)) if kind == "U8S8" else None
    quantize_graph(graph, preset(kind), data)


@pytest.mark.heavy
@pytest.mark.parametrize("form", ("residual", pytest.param("shared", marks=pytest.mark.heavy)))
@pytest.mark.parametrize(
    "kind",
    ("with_cast", "U8S8", *(pytest.param(name, marks=pytest.mark.heavy) for name in ("customqdq", "MX6"))),
)
def test_four_times_the_nodes_take_four_times_the_calls(form: str, kind: str) -> None:
    _convert(form, 12, kind)  # fills what is remembered of operators
    few, many = (_calls(partial(_convert, form, nodes, kind)) for nodes in (FEW, MANY))
    assert many <= 4.5 * few, f"{many / few:.2f}"
