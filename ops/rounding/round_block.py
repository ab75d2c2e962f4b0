"""Round inputs in sequence, each with the errors of those before it; shared by the solvers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ops._library import round_inputs
from ops.array_types import Float64Array, FloatArray
from ops.grids.fixed import Grid
from ops.subnormals import keeps_subnormals

_INTEGERS = 50, 50  # bits of a mantissa and its least exponent: whole numbers up to 2^51


@keeps_subnormals
def round_block(
    grid: Grid, inputs: NDArray[np.intp], base: FloatArray, reference: FloatArray, factor: FloatArray
) -> tuple[Float64Array, Float64Array]:
    """Return the roundings [..., B, N] of B ``inputs``, and their differences from the reference.

    Input j is base_j + sum_{i<j} factor_ij (rounded_i - reference_i) rounded to nearest, halves to even;
    ``base`` and ``reference`` are [..., B, N], ``factor`` is [..., B, B].
    """
    size, outputs = base.shape[-2:]
    rounded = np.array(base, np.float64, order="C").reshape(-1, size, outputs)
    change = np.empty_like(rounded)
    scale, lowest, highest = (np.reshape(part, (-1, len(rounded), outputs)) for part in grid.columns)
    columns = np.array(inputs if len(scale) > 1 else np.zeros_like(inputs), np.uintp)
    element = grid.element
    bits, least = _INTEGERS if element is None else (element.mantissa_bits, 1 - element.bias)
    round_inputs(
        np.ascontiguousarray(reference, np.float64).reshape(rounded.shape),
        np.ascontiguousarray(factor, np.float64).reshape(-1, size, size),
        *(scale, lowest, highest),
        columns,
        rounded,
        change,
        bits,
        least,
    )
    return rounded.reshape(base.shape), change.reshape(base.shape)
