"""Errors that rounding the input of layers causes in what they make, estimated without multiplying."""

from __future__ import annotations

import numpy as np

from ops.array_types import Float32Array, Float64Array
from ops.integers import range_scale
from ops.squared_errors import squared_errors
from transforms.plan.quant_spec import QuantSpec

_SHARES = (1.0, 0.8, 0.64)  # of the full range, for methods that clip


def rounding_error(
    seen: Float32Array, held_out: Float32Array, norms: Float64Array, grid: QuantSpec, *, clips: bool
) -> float:
    """Return the mean squared error of what layers make that rounding their input causes.

    ``seen`` gives the range, ``held_out`` the error; ``norms``: of the weights' rows.
    """
    shares = np.array(_SHARES if clips else _SHARES[:1])
    low, high = shares * float(seen.min(initial=0)), shares * float(seen.max(initial=0))
    scales, zeros = range_scale(low, high, grid.format, symmetric=grid.symmetric)
    errors = squared_errors(seen.reshape(1, 1, -1), scales[:, None], zeros[:, None], grid.format)
    best, channels = [int(errors.argmin())], held_out.shape[1]
    scale, zero = (np.repeat(of[best], channels)[None] for of in (scales, zeros))
    squares = squared_errors(held_out[..., None], scale, zero, grid.format)[0] / max(1, len(held_out))
    return float(squares @ norms)
