"""Memory of calibration. Oracle: the peak of a plain run of the same sample, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from functools import cache

import numpy as np
import pytest

from tests.benchmarks.chain_models import chain
from transforms.calibrate.calibrate import CalibrationOptions, calibrate
from transforms.graph import walk
from transforms.model import graph_proto

LAYERS, NUMBERS = 20, 8_000_000  # 20 tensors of 32 MB
MB = 1_000_000

_CODE = """
import sys
import numpy as np
import onnx
from onnx import helper
from pathlib import Path
from transforms.calibrate.calibrate import CalibrationOptions, calibrate
from transforms.model import graph_proto
from transforms.runtime.session import open_session

method, layers, numbers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
names = [f"t{i}" for i in range(layers)]
read = ["x", *names]
nodes = [helper.make_node("Tanh" if i % 2 else "Neg", [read[i]], [read[i + 1]]) for i in range(layers)]
nodes.append(helper.make_node("ReduceMax", [names[-1]], ["y"], keepdims=0))
ends = [helper.make_tensor_value_info("x", 1, [1, 8, "n"]), helper.make_tensor_value_info("y", 1, [])]
opset = [helper.make_opsetid("", 17)]
graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
model = helper.make_model(graph, opset_imports=opset, ir_version=8)
graph = graph_proto.import_model(model)
feed = {"x": np.linspace(-1, 2, numbers, dtype=np.float32).reshape(1, 8, -1)}
if method == "plain":
    open_session(graph).run(feed)
else:
    channels = [(name, 1) for name in names[:3]] if method == "moments" else []
    options = CalibrationOptions("MinMax" if method == "moments" else method)
    found = calibrate(graph, ["x", *names], [("s", feed)], options, channels=channels)
    assert found.observed["t0"].low == -2
status = Path("/proc/self/status").read_text()
print(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))
"""


@cache
def peak(method: str) -> int:
    """Return the largest resident memory of a process, in bytes."""
    command = [sys.executable, "-c", _CODE, method, str(LAYERS), str(NUMBERS)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout) * 1024


@pytest.mark.heavy
@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
@pytest.mark.parametrize(
    "method",
    [
        "Percentile",
        pytest.param("MinMax", marks=pytest.mark.heavy),
        pytest.param("MSE", marks=pytest.mark.heavy),
        pytest.param("moments", marks=pytest.mark.heavy),
    ],
)
def test_statistics_take_little_memory_beside_the_run(method: str) -> None:
    """At most a fifth of the sample's activations and 200 MB."""
    activations = LAYERS * NUMBERS * 4
    assert peak(method) - peak("plain") <= activations / 5 + 200 * MB


@pytest.mark.heavy
def test_histograms_of_many_tensors_take_little_memory() -> None:
    """At most 4 kB for each tensor beside what its extremes take; 4,096 counts of 8 bytes are 33 kB."""
    graph = graph_proto.import_model(chain("shared", 600))
    names = [name for name, tensor in walk.tensors(graph).items() if tensor.inputs]
    random = np.random.default_rng(0)
    feeds = [(str(i), {"x": random.standard_normal((1, 4, 4, 4), np.float32)}) for i in range(3)]

    def _peak(method: str) -> int:
        tracemalloc.start()
        calibrate(graph, names, feeds, CalibrationOptions(method))
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size

    _peak("MSE")
    assert len(names) == 600 and _peak("MSE") - _peak("MinMax") < 4000 * len(names)


_CONVOLUTIONS = """
import sys
import numpy as np
import onnx
from onnx import helper, numpy_helper
from pathlib import Path
from transforms.calibrate.calibrate import CalibrationOptions, calibrate
from transforms.model import graph_proto
from transforms.runtime.session import open_session

how, sizes, layers, channels, side = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
first = np.ones((channels, 3, 1, 1), np.float32)
each = np.full((channels, 1, 1, 1), 0.5, np.float32)
weights = [numpy_helper.from_array(first, "first"), numpy_helper.from_array(each, "each")]
nodes = [helper.make_node("Conv", ["x", "first"], ["t0"])]
for i in range(layers - 1):
    nodes.append(helper.make_node("Conv", [f"t{i}", "each"], [f"t{i + 1}"], group=channels))
nodes.append(helper.make_node("GlobalAveragePool", [f"t{layers - 1}"], ["y"]))
if sizes == "from numbers":  # as many rows as there are numbers other than zero
    found = ["NonZero", "Transpose", "GatherND", "Reshape"]
    reads = [["x"], ["found0"], ["x", "found1"], ["found2", "shape"]]
    made = [helper.make_node(op, reads[i], [f"found{i}"]) for i, op in enumerate(found)]
    weights.append(numpy_helper.from_array(np.int64([1, 3, -1, side]), "shape"))
    nodes[0].input[0] = "found3"
    nodes[:0] = made
given = [1, 3, "rows", "columns"] if sizes == "free" else [1, 3, side, side]
ends = [helper.make_tensor_value_info("x", 1, given), helper.make_tensor_value_info("y", 1, None)]
opset = [helper.make_opsetid("", 17)]
graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
model = helper.make_model(graph, opset_imports=opset, ir_version=8)
graph = graph_proto.import_model(model)
feed = {"x": np.ones((1, 3, side, side), np.float32)}
if how == "plain":
    open_session(graph).run(feed)
else:
    calibrate(graph, ["x", *(f"t{i}" for i in range(layers))], [("s", feed)], CalibrationOptions("MSE"))
status = Path("/proc/self/status").read_text()
print(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))
"""


@pytest.mark.heavy
@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
@pytest.mark.parametrize(
    "sizes",
    [
        "free",
        pytest.param("fixed", marks=pytest.mark.heavy),
        pytest.param("from numbers", marks=pytest.mark.heavy),
    ],
)
def test_small_images_whose_convolutions_make_large_tensors(sizes: str) -> None:
    """At most a fifth of the sample's activations and 200 MB; the image has less than 1 MB."""
    layers, channels, side = 8, 256, 280

    def _peak(how: str) -> int:
        command = [sys.executable, "-c", _CONVOLUTIONS, how, sizes, *map(str, (layers, channels, side))]
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout) * 1024

    activations = layers * channels * side * side * 4
    assert _peak("calibrate") - _peak("plain") <= activations / 5 + 200 * MB
