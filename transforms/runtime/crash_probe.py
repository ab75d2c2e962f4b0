"""A probe in another process: does opening a model crash the runtime?

ONNX Runtime's optimizer may abort on models whose bodies read what it moves, and an abort takes everything
with it: seen in 1.32 where a body reads dequantized numbers, reported of Loops that collect sequences. Other
models are not tried, which would take half a second.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import onnx

import ops
from transforms.files import cleanup
from transforms.graph.proto_graphs import each_graph, each_node

_RISKY = frozenset(
    {"DequantizeLinear", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert"}
    | {"SequenceMap", "SplitToSequence"}
)
_SECONDS = 60
_OPEN = """\
import sys
import onnxruntime as ort
from ops.registration import register_custom_ops
options = ort.SessionOptions()
options.log_severity_level = 4
options.graph_optimization_level = ort.GraphOptimizationLevel(int(sys.argv[2]))
register_custom_ops(options)
ort.InferenceSession(sys.argv[1], options, ["CPUExecutionProvider"], disabled_optimizers=sys.argv[3:])
"""


def may_crash(graph: onnx.GraphProto) -> bool:
    """Return whether opening a model may end the process."""
    has_bodies = next((True for inner in each_graph(graph) if inner is not graph), False)
    return has_bodies and any(node.op_type in _RISKY for node in each_node(graph))


def crash_of(model: onnx.ModelProto, level: int, disabled: Sequence[str] = ()) -> str:
    """Open a complete model in another process; return in words how it crashes, empty if it does not.

    ``level``: of optimization, as the runtime numbers it; ``disabled``: optimizers that are left out. Errors
    that the runtime raises do not end it: they are its answer here, too.
    """
    with cleanup.temporary_folder() as folder:
        path = folder / "model.onnx"
        path.write_bytes(model.SerializeToString())
        command = [sys.executable, "-c", _OPEN, str(path), str(level), *disabled]
        root = Path(ops.__file__).parents[1]
        try:
            done = subprocess.run(command, cwd=root, capture_output=True, timeout=_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            return f"it does not end within {_SECONDS} s"
    if done.returncode >= 0:
        return ""
    return f"its optimizer ends the process with {signal.Signals(-done.returncode).name}"
