"""Chains longer than Python's stack. Oracle: the limit itself, lowered; ONNX Runtime runs the result."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
import onnx
import pytest

from tests.helpers import build
from transforms import model_io
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.deploy.check_target import check_target
from transforms.deploy.low_precision import low_precision
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.run.run_model import open_model
from transforms.scheme.sources import preset
from transforms.scheme.targets import target

_LENGTH = 200
_DEPTH = 130  # frames beyond those of pytest: less than a frame for each node of a chain


@pytest.fixture
def shallow() -> Iterator[None]:
    depth, frame = 0, sys._getframe()
    while frame is not None:
        depth, frame = depth + 1, frame.f_back  # type: ignore[assignment]
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(depth + _DEPTH)
    yield
    sys.setrecursionlimit(before)


def _chain(op: str) -> onnx.ModelProto:
    random = np.random.default_rng(0)
    weights = {name: random.standard_normal((16, 16)).astype(np.float32) / 4 for name in "vw"}
    weights["small"] = np.full(16, 1e-3, np.float32)
    nodes = [onnx.helper.make_node("MatMul", ["x", "v"], ["t0"], "first")]
    for i in range(_LENGTH):
        more = ["small"] if op in ("Add", "Mul") else []
        nodes.append(onnx.helper.make_node(op, [f"t{i}", *more], [f"t{i + 1}"], f"n{i}"))
    nodes.append(onnx.helper.make_node("MatMul", [f"t{_LENGTH}", "w"], ["y"], "last"))
    ends = [build.value(name, [16, 16]) for name in "xy"]
    return build.model(nodes, ends[:1], ends[1:], weights)


@pytest.mark.parametrize("op", ["Transpose", "Relu", "Add", "Identity", "Softmax"])
@pytest.mark.parametrize("config", ["A8W8", "U8S8"])
def test_a_chain_longer_than_the_stack_is_quantized(op: str, config: str, shallow: None) -> None:
    feed = {"x": np.random.default_rng(1).standard_normal((16, 16)).astype(np.float32)}
    graph = model_io.load(_chain(op))
    scheme = preset(config).with_(optimize=False).by_rule()
    assert quantize_graph(graph, scheme, CalibrationData([feed, feed])).count
    row = target("ort-cpu")
    assert low_precision(graph, row) is not None and not check_target(graph, row)
    assert np.isfinite(open_model(graph).run(feed)["y"]).all()
