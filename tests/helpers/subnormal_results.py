"""Results of every operator and function on subnormal numbers, written to a file by a process of their own.

    python -m tests.helpers.subnormal_results FILE FLUSH

FLUSH is 1 for a process whose threads treat subnormal numbers as zero, otherwise 0.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import helper

import ops
from ops import channel_sums, grids, histograms, integers, metrics, reference, rounding
from ops.formats import FORMATS, LINEAR
from ops.subnormals import keeps_subnormals
from tests.helpers.number_patterns import make_pattern
from tests.helpers.operator_sessions import (
    BFLOAT16,
    BFP,
    DEQUANTIZE,
    MX,
    QUANTIZE,
    block_session,
    make_session,
    onnx_type,
    run_bits,
)

Result = tuple[str, NDArray[Any]]
FLOATS = (np.dtype(np.float32), np.dtype(np.float16), BFLOAT16)
LARGE = (3, 23456)  # is cut into pieces for several threads
STORED = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "float16", "bfloat16")
BLOCKS: list[tuple[str, dict[str, Any]]] = [
    *((BFP, {"rounding_mode": mode, "bit_width": width}) for mode in range(3) for width in (11, 24)),
    (BFP, {"use_compiler_version_cpu_kernel": 1}),
    (BFP, {"convert_to_bfloat_before_bfp": 1}),
    *((BFP, {"bfp_method": "to_bfp_prime", "rounding_mode": mode, "block_size": 16}) for mode in range(3)),
    *((MX, {"element_dtype": element}) for element in reference.ELEMENTS),
    *((MX, {"scale_rule": rule}) for rule in ("ceil", "even", "rceil")),
]


def numbers(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return numbers of a type most of which are subnormal, as float32 or in the type."""
    rng = np.random.default_rng(1)
    bits = np.uint16 if dtype.itemsize == 2 else np.uint32
    least = {2: 0x0480 if dtype == np.float16 else 0x0180}.get(dtype.itemsize, 0x01800000)
    size = int(np.prod(shape))
    x = rng.integers(0, least, size).astype(bits)
    x |= rng.integers(0, 2, size).astype(bits) << bits(8 * dtype.itemsize - 1)
    return x.view(dtype).reshape(shape)


def single(number: float) -> NDArray[np.float32]:
    """Return a number as a scalar of type float32, subnormal or not."""
    return keeps_subnormals(lambda: np.asarray(number, np.float32))()


def linear_results(flush: bool) -> Iterator[Result]:
    """Yield what the extended operators give for every type: several threads, scales subnormal or not."""
    for name in STORED:
        stored = FORMATS[name].dtype
        zero = np.zeros((), stored)
        codes = np.random.default_rng(2).integers(0, 256, LARGE[0] * LARGE[1] * stored.itemsize, np.uint8)
        for scale in (1.0, 3e-39, 1e-30):
            for op, x, result in (
                (QUANTIZE, numbers(LARGE, FLOATS[0]), stored),
                (DEQUANTIZE, codes.view(stored).reshape(LARGE), FLOATS[0]),
            ):
                node = helper.make_node(op, ["x", "scale", "zero"], ["y"], domain=ops.DOMAIN)
                constants = {"scale": single(scale), "zero": zero}
                types = onnx_type(x.dtype), onnx_type(result)
                session = make_session([node], *types, constants=constants, threads=2, flush=flush)
                yield f"{op} {name} {scale}", run_bits(session, x)


def block_results(flush: bool) -> Iterator[Result]:
    """Yield what the block operators give: rows, columns and single blocks, one thread and several."""
    for op, attributes in BLOCKS:
        for dtype in FLOATS:
            for axis, shape in ((1, LARGE), (0, LARGE), (1, (5, 37)), (0, (77, 3))):
                session = block_session(op, {**attributes, "axis": axis}, dtype=dtype, threads=2, flush=flush)
                yield f"{op} {attributes} {dtype} {axis} {shape}", run_bits(session, numbers(shape, dtype))


def array_results() -> Iterator[Result]:
    """Yield what functions on arrays give."""
    tiny = numbers((40, 33), FLOATS[0])
    for dtype in FLOATS:
        x = numbers((40, 33), dtype)
        for name in FORMATS:
            yield f"quantize_dequantize {name} {dtype}", ops.quantize_dequantize(x, name)
        yield f"Sums {dtype}", np.array([metrics.sums(x, x[::-1]).error_energy, metrics.sqnr(x, x[::-1])])
    yield "to_bfloat16", ops.to_bfloat16(tiny)
    yield "from_bfloat16", ops.from_bfloat16(numbers((999,), BFLOAT16), np.float16)
    for name in (name for name, row in FORMATS.items() if row.is_integer):
        scale, zero = integers.range_scale(tiny.min(), tiny.max(), name, symmetric=False)
        codes = integers.quantize(tiny, 3e-40, zero, name)
        yield f"scale {name}", scale
        yield f"quantize {name}", codes.astype(np.int64)
        yield f"dequantize {name}", integers.dequantize(codes, 3e-40, zero)
        yield f"weight_scale {name}", integers.weight_scale(tiny, name, 0, method="MSE")
    yield "finite_range", np.stack(integers.finite_range(tiny, 0))
    counts = np.zeros(64, np.int64)
    histograms.count_in_bins(tiny, 100, counts)
    yield "count_in_bins", counts
    yield "channel_sums", np.array(channel_sums.channel_sums(tiny, -1))


def reference_results() -> Iterator[Result]:
    """Yield what the NumPy twins give."""
    tiny, one = numbers((40, 33), FLOATS[0]), single(3e-39)
    yield "bfp", reference.bfp(tiny, 1)
    yield "microexponent", reference.microexponent(tiny, 1)
    yield "microscaling", reference.microscaling(tiny, 1, element_dtype="fp8_e5m2")
    yield "quantize_linear", reference.quantize_linear(tiny, one, np.float16([0]))
    yield "dequantize_linear", reference.dequantize_linear(numbers((99,), FLOATS[1]), one, np.float16([0]))


def solver_results() -> Iterator[Result]:
    """Yield what solvers round weights to, some of which are subnormal."""
    widen = keeps_subnormals(np.float64)
    rng = np.random.default_rng(3)
    weights = np.concatenate([numbers((6, 16), FLOATS[0]), make_pattern("wide", (6, 16), rng)], axis=1)
    inputs = rng.standard_normal((64, 32))
    for name in [name for name, row in FORMATS.items() if row.op != LINEAR or row.bits <= 16]:
        grid = grids.weight_grid(weights[:, None], name)
        yield f"grid {name}", grid.round(widen(weights))
        gram, wide = inputs.T @ inputs, widen(weights)
        problem = rounding.LayerProblem(wide, gram, wide @ gram, float(((inputs @ wide.T) ** 2).sum()))
        for algorithm in ("gptq", "coordinate_descent", "adaquant", "adaround"):
            yield (
                f"{algorithm} {name}",
                rounding.solve(problem, grid, algorithm, rounding.Options(iterations=20)),
            )


def all_results(flush: bool) -> Iterator[Result]:
    """Yield all of them, each with a name."""
    yield from linear_results(flush)
    yield from block_results(flush)
    yield from array_results()
    yield from reference_results()
    yield from solver_results()


def main(path: str, flush: bool) -> None:
    """Write the bytes of all results to a file of arrays."""
    block_session(MX, {}, flush=flush)
    half = np.full(3, 1.5e-38, np.float32) * np.float32(0.5)
    assert bool(half.any()) != flush, "the option had no effect"
    results = {name.replace("/", "_"): np.ascontiguousarray(array) for name, array in all_results(flush)}
    np.savez(path, **{name: array.reshape(-1).view(np.uint8) for name, array in results.items()})


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] == "1")
