"""The Python side of the native library; see _library.pyx."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Buffer = NDArray[Any]

def add_to_extensions(add_external_custom_op: int | None) -> None: ...
def knows_runtime() -> bool: ...
def look(number: int, watcher: Callable[[memoryview, int, tuple[int, ...]], object] | None) -> None: ...

watchers: dict[int, Any]

def keep_subnormals() -> int: ...
def flush_again(flushes: int) -> None: ...
def round_float32(source: Buffer, target: Buffer) -> None: ...
def round_float16(source: Buffer, target: Buffer) -> None: ...
def widen_to_float32(source: Buffer, target: Buffer) -> None: ...
def narrow_to_float16(source: Buffer, target: Buffer) -> None: ...
def quantize_blocks(
    source: NDArray[np.uint8],
    target: NDArray[np.uint8],
    element_type: int,
    outer: int,
    length: int,
    inner: int,
    grid: bytes,
) -> None: ...
def bfp_grid(
    block_size: int, bit_width: int, rounding_mode: int, compiler: bool = False, bfloat16_first: bool = False
) -> bytes: ...
def microexponent_grid(
    block_size: int,
    bit_width: int,
    rounding_mode: int,
    sub_block_size: int,
    shift_bits: int,
    bfloat16_first: bool = False,
) -> bytes: ...
def microscaling_grid(block_size: int, element_dtype: str, scale_rule: str, rounding_mode: int) -> bytes: ...
def round_linear(source: Buffer, target: Buffer, stored_type: int, scale: float, zero_point: int) -> None: ...
def quantize_linear(
    source: Buffer,
    target: NDArray[np.uint8],
    stored_type: int,
    scale: Buffer,
    zero_point: NDArray[np.uint8],
    inner: int,
) -> None: ...
def dequantize_linear(
    source: NDArray[np.uint8],
    target: Buffer,
    stored_type: int,
    scale: Buffer,
    zero_point: NDArray[np.uint8],
    inner: int,
) -> None: ...
def walk_rows(
    hessian: NDArray[np.float32],
    fixed: NDArray[np.float32],
    factors: NDArray[np.float32],
    u: NDArray[np.float32],
    w: NDArray[np.float32],
    best: NDArray[np.float32],
    best_factor: NDArray[np.float64],
    scratch: NDArray[np.float32],
    places: NDArray[np.uintp],
    mantissa_bits: int,
    least_exponent: int,
    patience: int,
    learn_scale: bool,
) -> None: ...
def round_inputs(
    reference: NDArray[np.float64],
    factor: NDArray[np.float64],
    scale: NDArray[np.float64],
    lowest: NDArray[np.float64],
    highest: NDArray[np.float64],
    inputs: NDArray[np.uintp],
    rounded: NDArray[np.float64],
    change: NDArray[np.float64],
    mantissa_bits: int,
    least_exponent: int,
) -> None: ...
def scale_errors(
    w: NDArray[np.float32],
    counts: NDArray[np.float32],
    scale: NDArray[np.float32],
    lowest: NDArray[np.float32],
    highest: NDArray[np.float32],
    errors: NDArray[np.float64],
) -> None: ...
def count_in_bins(
    source: NDArray[np.float32], scale: float, counts: NDArray[np.int64], tables: NDArray[np.uint32]
) -> None: ...
def channel_sums(x: NDArray[np.float32], sums: NDArray[np.float64]) -> None: ...
