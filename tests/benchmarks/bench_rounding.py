"""Gradient steps on a layer against the matrix products that they are made of, layer by layer of a model.

``python tests/benchmarks/bench_rounding.py MODEL.onnx [--format int8] [--iterations 1000]``: for each weight
of a Conv, Gemm or MatMul the microseconds of an iteration of AdaQuant and of its product [N, K] x [K, K]
alone, both measured here, and their sums. Set OPENBLAS_NUM_THREADS=1 on a machine that does other work.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from time import perf_counter

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from ops.grids import weight_grid
from ops.rounding import Quadratic, adaquant


def weights(path: str) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield the weights [G, N, S, C] of a model's dot products, with their names."""
    graph = onnx.load(path).graph
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type not in ("Conv", "Gemm", "MatMul") or node.input[1] not in constants:
            continue
        weight = constants[node.input[1]]
        groups = next((a.i for a in node.attribute if a.name == "group"), 1)
        if node.op_type == "Conv":
            cut = weight.reshape(groups, len(weight) // groups, weight.shape[1], -1)
            yield node.input[1], np.ascontiguousarray(np.swapaxes(cut, 2, 3), np.float32)
        elif weight.ndim == 2:
            yield node.input[1], np.ascontiguousarray(weight.T[None, :, None, :], np.float32)


def measure(weight: NDArray[np.float32], format_name: str, iterations: int) -> tuple[float, float]:
    """Return the seconds of an iteration's product alone, and those of an iteration."""
    flat = weight.reshape(*weight.shape[:2], -1).astype(np.float64)
    samples = np.random.default_rng(0).standard_normal((len(flat), 2 * flat.shape[-1], flat.shape[-1]))
    form = Quadratic(flat, np.swapaxes(samples, 1, 2) @ samples)
    grid = weight_grid(weight, format_name)
    left, right = flat.astype(np.float32), form.hessian.astype(np.float32)
    out = left @ right
    start = perf_counter()
    for _ in range(iterations):
        np.matmul(left, right, out=out)
    middle = perf_counter()
    adaquant(form, grid, iterations=iterations)
    return (middle - start) / iterations, (perf_counter() - middle) / iterations


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--format", default="int8")
    parser.add_argument("--iterations", type=int, default=1000)
    options = parser.parse_args()
    sums = np.zeros(2)
    for name, weight in weights(options.model):
        times = np.array(measure(weight, options.format, options.iterations))
        sums += times
        product, iteration = (f"{1e6 * time:8.1f}" for time in times)
        print(f"{name[:40]:40} {weight.shape!s:20} product {product}  iteration {iteration} us")
    rate = f"{1e6 * sums[0]:.0f} us of products, {1e6 * sums[1]:.0f} us an iteration of all layers"
    print(f"{options.format}: {rate}, {sums[1] / sums[0]:.2f} times")


if __name__ == "__main__":
    main()
