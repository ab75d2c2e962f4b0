"""Gradient steps on a layer against the matrix products that they stand for, layer by layer of a model.

``python -m tests.benchmarks.bench_rounding MODEL.onnx [--format int8] [--iterations 1000]``: for each weight
of a Conv, Gemm or MatMul the microseconds of an iteration of AdaQuant, and of its product [N, K] x [K, K] for
each group at the rate of a large product, both measured here, and their sums. Times are a processor's, so
that other work on the machine counts little; products are on one thread.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from time import process_time

from tools.cli.calls import keep_products_on_one_thread

keep_products_on_one_thread()

import numpy as np  # noqa: E402
import onnx  # noqa: E402
from numpy.typing import NDArray  # noqa: E402
from onnx import numpy_helper  # noqa: E402

from ops.grids import weight_grid  # noqa: E402
from ops.rounding import Quadratic, adaquant  # noqa: E402
from ops.rounding.quadratic import OrderedHessian  # noqa: E402
from tests.benchmarks.product_rate import product_rate  # noqa: E402


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


def measure(weight: NDArray[np.float32], format_name: str, iterations: int) -> float:
    """Return the seconds of an iteration."""
    flat = weight.reshape(*weight.shape[:2], -1).astype(np.float64)
    samples = np.random.default_rng(0).standard_normal((len(flat), 2 * flat.shape[-1], flat.shape[-1]))
    form = Quadratic(flat, OrderedHessian.of(np.swapaxes(samples, 1, 2) @ samples))
    grid = weight_grid(weight, format_name)
    start = process_time()
    adaquant(form, grid, iterations=iterations)
    return (process_time() - start) / iterations


def product_flops(weight: NDArray[np.float32]) -> int:
    """Return 2 K^2 N, times the groups."""
    groups, outputs, positions, channels = weight.shape
    return 2 * (positions * channels) ** 2 * outputs * groups


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--format", default="int8")
    parser.add_argument("--iterations", type=int, default=1000)
    options = parser.parse_args()
    rate, sums = product_rate(), np.zeros(2)
    print(f"{rate / 1e9:.0f} GFLOP/s of products")
    for name, weight in weights(options.model):
        times = product_flops(weight) / rate, measure(weight, options.format, options.iterations)
        sums += times
        product, iteration = (f"{1e6 * time:8.1f}" for time in times)
        print(f"{name[:40]:40} {weight.shape!s:20} product {product}  iteration {iteration} us")
    terms = f"{1e6 * sums[0]:.0f} us of products, {1e6 * sums[1]:.0f} us an iteration of all layers"
    print(f"{options.format}: {terms}, {sums[1] / sums[0]:.2f} times, target 2")


if __name__ == "__main__":
    main()
