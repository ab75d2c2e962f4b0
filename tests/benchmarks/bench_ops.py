"""Speed of the native operators, as ratios: ``python tests/benchmarks/bench_ops.py``.

Each line compares one session.run on a 4096 x 4096 float32 tensor with numpy.copyto of that tensor,
measured in turns in the same process, best of several; then two threads with one, the other axes with the
last, the extra memory of a call, and the overhead on a tensor of 8 elements with that of ONNX Runtime's
Identity. Two threads that only copy show what the memory of the machine allows two threads to gain.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

import ops

SIZE = 4096
BFP, MX = "BFPQuantizeDequantize", "MXQuantizeDequantize"
PRIME = {"bfp_method": "to_bfp_prime", "block_size": 16, "rounding_mode": 2}
# name, operator (None: the bfloat16 pair), attributes, target ratio to the copy
FORMATS: list[tuple[str, str | None, dict[str, Any], float]] = [
    ("bfloat16", None, {}, 2),
    ("bfp16", BFP, {"bit_width": 16, "block_size": 8, "rounding_mode": 2}, 2),
    ("bfp16 half away", BFP, {"bit_width": 16, "block_size": 8}, 2),
    ("mxint8", MX, {"element_dtype": "int8", "rounding_mode": 2}, 2),
    ("mx9", BFP, {**PRIME, "bit_width": 16}, 3),
    ("mx6", BFP, {**PRIME, "bit_width": 13}, 3),
    ("mx4", BFP, {**PRIME, "bit_width": 11}, 3),
    ("mxfp8_e4m3", MX, {"element_dtype": "fp8_e4m3"}, 3),
    ("mxfp8_e5m2", MX, {"element_dtype": "fp8_e5m2"}, 3),
    ("mxfp6_e3m2", MX, {"element_dtype": "fp6_e3m2"}, 3),
    ("mxfp6_e2m3", MX, {"element_dtype": "fp6_e2m3"}, 3),
    ("mxfp4", MX, {"element_dtype": "fp4_e2m1"}, 3),
]


def make_session(
    nodes: list[onnx.NodeProto], threads: int, constants: list[onnx.TensorProto]
) -> onnxruntime.InferenceSession:
    """Return a session on a graph from x to y."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "xy"]
    graph = helper.make_graph(nodes, "bench", values[:1], values[1:], constants)
    imports = [helper.make_opsetid("", 21), helper.make_opsetid(ops.DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    ops.register_custom_ops(options)
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


def format_session(
    op: str | None, attributes: dict[str, Any], threads: int, axis: int = 1
) -> onnxruntime.InferenceSession:
    """Return a session that quantizes and dequantizes x."""
    if op:
        return make_session(
            [helper.make_node(op, ["x"], ["y"], domain=ops.DOMAIN, axis=axis, **attributes)], threads, []
        )
    constants = [
        helper.make_tensor("scale", TensorProto.FLOAT, [], [1.0]),
        helper.make_tensor("zero", TensorProto.BFLOAT16, [], [0.0]),
    ]
    nodes = [
        helper.make_node("ExtendedQuantizeLinear", ["x", "scale", "zero"], ["q"], domain=ops.DOMAIN),
        helper.make_node("ExtendedDequantizeLinear", ["q", "scale", "zero"], ["y"], domain=ops.DOMAIN),
    ]
    return make_session(nodes, threads, constants)


def best_times(works: list[Callable[[], object]], turns: int, repeats: int = 1) -> list[float]:
    """Return the best time of each, in seconds, running them in turns."""
    best = [float("inf")] * len(works)
    for _ in range(turns):
        for i, work in enumerate(works):
            start = time.perf_counter()
            for _ in range(repeats):
                work()
            best[i] = min(best[i], (time.perf_counter() - start) / repeats)
    return best


def bench_format(name: str, op: str | None, attributes: dict[str, Any], target: float, x: np.ndarray) -> None:
    """Print one line: ratio to the copy, two threads to one, axis 0 to the last."""
    copy = np.empty_like(x)
    sessions = [format_session(op, attributes, 1), format_session(op, attributes, 2)]
    if op:
        sessions.append(format_session(op, attributes, 1, axis=0))
    works = [lambda: np.copyto(copy, x), *(lambda s=s: s.run(None, {"x": x}) for s in sessions)]
    base, one, two, *other = best_times(works, 15)
    axis = f"{other[0] / one:8.2f}" if other else "       -"
    print(
        f"{name:16} {one * 1e3:8.1f} ms {one / base:8.2f} (<= {target:g})"
        f" {two / one:8.2f} (<= 0.6) {axis} (<= 1.5)"
    )


def bench_middle_axis(x: np.ndarray) -> None:
    """Print the ratio of axis 1 of a [256, 256, 256] tensor to its last axis."""
    cube = x.reshape(256, 256, 256)
    for name, op, attributes, _ in FORMATS:
        if op:
            sessions = [format_session(op, attributes, 1, axis=axis) for axis in (2, 1)]
            last, middle = best_times([lambda s=s: s.run(None, {"x": cube}) for s in sessions], 8)
            print(f"{name:16} axis 1 of 3: {middle / last:5.2f} (<= 1.5)")


def bench_small() -> None:
    """Print the time of a run on 8 elements against Identity's."""
    x = np.ones(8, np.float32)
    identity = make_session([helper.make_node("Identity", ["x"], ["y"])], 1, [])
    for name, op, attributes, _ in FORMATS:
        if op:
            session = format_session(op, attributes, 1)
            base, time_ = best_times(
                [lambda: identity.run(None, {"x": x}), lambda s=session: s.run(None, {"x": x})], 40, 500
            )
            print(
                f"{name:16} 8 elements: {time_ * 1e6:6.2f} us, Identity {base * 1e6:6.2f} us,"
                f" {time_ / base:5.2f} (<= 1.3)"
            )


def bench_threads(x: np.ndarray) -> None:
    """Print the time of two threads that copy half of the tensor each, against one that copies it all."""
    copy = np.empty_like(x)
    halves = [(copy[: SIZE // 2], x[: SIZE // 2]), (copy[SIZE // 2 :], x[SIZE // 2 :])]
    with ThreadPoolExecutor(2) as pool:
        one, two = best_times(
            [lambda: np.copyto(copy, x), lambda: list(pool.map(lambda half: np.copyto(*half), halves))], 15
        )
    print(f"copy {one * 1e3:20.1f} ms {1:8.2f} {two / one:17.2f}, the limit of this machine's memory")


def memory(name: str) -> int:
    """Return a figure of this process's memory in bytes: VmRSS, resident now, or VmHWM, its peak (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":"))


def grown(session: onnxruntime.InferenceSession, x: np.ndarray) -> float:
    """Return how much memory one call takes at its peak, in MB."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from what is resident now
    before = memory("VmRSS")
    session.run(None, {"x": x})
    return (memory("VmHWM") - before) / 1e6


def bench_memory(x: np.ndarray) -> None:
    """Print the memory of the first call of a session beyond its output, and of later ones.

    The first call starts ONNX Runtime's threads and lets its allocator ask the system for the output, which
    it keeps for later calls: what Identity takes is not the operators'.
    """
    output = x.nbytes / 1e6
    nodes = {"Identity": helper.make_node("Identity", ["x"], ["y"])}
    nodes |= {
        name: helper.make_node(op, ["x"], ["y"], domain=ops.DOMAIN, axis=0, **attributes)
        for name, op, attributes, _ in FORMATS
        if op
    }
    for name, node in nodes.items():
        session = make_session([node], 2, [])
        first, *later = (grown(session, x) for _ in range(4))
        print(
            f"{name:16} beyond the output: {first - output:6.2f} MB, later calls {max(later):6.2f} MB (<= 1)"
        )


def main() -> None:
    x = np.random.default_rng(0).standard_normal((SIZE, SIZE), np.float32)
    bench_memory(x)
    print("format             one thread   to copy           2 to 1 threads    axis 0 to last")
    bench_threads(x)
    for row in FORMATS:
        bench_format(*row, x)
    bench_middle_axis(x)
    bench_small()


if __name__ == "__main__":
    main()
