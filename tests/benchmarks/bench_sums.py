"""Time of layers with uint8 weights as a ratio to int8 weights: ``python -m tests.benchmarks.bench_sums``.

Each line is one QLinearConv or QLinearMatMul on uint8 activations, with one thread, both kinds of weights
measured in turns in the same process, the best of many runs; float32's time is beside them. The figures are
those of the processor that runs this: with VNNI, int8 weights have kernels of their own. They decide which
weights are widened so that sums are exact (:mod:`transforms.plan.exact_sums`).
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

SECONDS = 0.5
CONVOLUTIONS = (  # channels, outputs, kernel, image, groups
    *((1, 8, 5, 28, 1), (2, 16, 3, 64, 1), (3, 16, 3, 32, 1), (3, 8, 3, 224, 1), (3, 32, 7, 112, 1)),
    *((4, 16, 3, 64, 1), (5, 16, 3, 64, 1), (16, 16, 3, 32, 1), (64, 64, 1, 28, 1), (64, 64, 3, 28, 1)),
    *((16, 32, 3, 56, 8), (32, 64, 3, 28, 32), (64, 64, 3, 28, 64)),
)
MATRICES = ((1, 256, 1000), (1, 1024, 1000), (2, 1024, 1000), (8, 1024, 1000), (64, 384, 1536))
Array = NDArray[np.generic]


def runner(op: str, weight: Array, x: Array, attributes: dict[str, object]) -> Callable[[], object]:
    """Return a run of one layer: of integers, or of floats if ``x`` holds these."""
    is_float = x.dtype == np.float32
    names, values = ["x", "w"], {"w": weight}
    if not is_float:
        names = ["x", "s", "xz", "w", "s", "wz", "ys", "xz"]
        middle = np.array(128 if weight.dtype == np.uint8 else 0, weight.dtype)
        values |= {"s": np.float32(1), "ys": np.float32(300), "xz": np.uint8(0), "wz": middle}  # type: ignore[dict-item]
    node = helper.make_node(op if is_float else f"QLinear{op}", names, ["y"], **attributes)
    kind = TensorProto.FLOAT if is_float else TensorProto.UINT8
    ends = [helper.make_tensor_value_info(name, kind, shape) for name, shape in (("x", x.shape), ("y", None))]
    held = [numpy_helper.from_array(np.asarray(value), name) for name, value in values.items()]
    graph = helper.make_graph([node], "bench", ends[:1], ends[1:], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return lambda: session.run(None, {"x": x})


def times(op: str, shape: tuple[int, ...], x: Array, attributes: dict[str, object]) -> list[float]:
    """Return the best seconds of runs with weights in int8, uint8 and float32, measured in turns."""
    draw = np.random.default_rng(0)
    weight = draw.integers(-127, 128, shape)
    kinds = [(weight.astype(np.int8), x), ((weight + 128).astype(np.uint8), x)]
    runs = [
        runner(op, *pair, attributes) for pair in (*kinds, (weight.astype(np.float32), x.astype(np.float32)))
    ]
    best, end = [np.inf] * len(runs), time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        for place, run in enumerate(runs):
            start = time.perf_counter()
            run()
            best[place] = min(best[place], time.perf_counter() - start)
    return best


def main() -> None:
    """Print a line for each layer."""
    draw = np.random.default_rng(1)
    layers: list[tuple[str, str, tuple[int, ...], Array, dict[str, object]]] = []
    for channels, outputs, kernel, image, groups in CONVOLUTIONS:
        x = draw.integers(0, 256, (1, channels, image, image)).astype(np.uint8)
        shape = (outputs, channels // groups, kernel, kernel)
        said = f"Conv {channels} -> {outputs}, {kernel} x {kernel}, {image} x {image}, {groups} groups"
        layers.append((said, "Conv", shape, x, {"group": groups, "pads": [kernel // 2] * 4}))
    for rows, length, columns in MATRICES:
        x = draw.integers(0, 256, (rows, length)).astype(np.uint8)
        layers.append((f"MatMul {rows} x {length} x {columns}", "MatMul", (length, columns), x, {}))
    for said, op, shape, x, attributes in layers:
        narrow, wide, floats = times(op, shape, x, attributes)
        print(f"{said}: uint8 {wide / narrow:.2f} of int8's time, float32 {floats / narrow:.2f}", flush=True)


if __name__ == "__main__":
    main()
