"""Round arrays to every format: ``python round_arrays.py ARRAYS.npz ROUNDED.npz``.

Arrays are stored as the bits of float32, float16 or bfloat16, under names that end in the type. Needs NumPy,
ml_dtypes and the package ``ops``, or a wheel of ours.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

try:
    import ops
except ModuleNotFoundError:  # installed from a wheel
    from onnx_narrow import ops

Arrays = dict[str, NDArray[np.generic]]
Bits = Mapping[str, NDArray[np.unsignedinteger]]


def rounded(arrays: Bits) -> Arrays:
    """Return each array in every format along each of its axes, [formats, axes, ...]."""
    return {name: _in_every_format(typed(bits, name)) for name, bits in arrays.items()}


def typed(bits: NDArray[np.unsignedinteger], name: str) -> NDArray[np.generic]:
    """Return the floats of some bits."""
    return bits.view(ml_dtypes.bfloat16 if name.endswith("bfloat16") else name.split()[-1])


def _in_every_format(x: NDArray[np.generic]) -> NDArray[np.generic]:
    made = [[ops.quantize_dequantize(x, fmt, axis) for axis in range(x.ndim)] for fmt in ops.FORMATS]
    return np.array(made)


def main() -> None:
    """Round the arrays of one file into another."""
    source, target = sys.argv[1:]
    with np.load(source) as arrays:
        made = {name: array.view(f"u{array.itemsize}") for name, array in rounded(arrays).items()}
    np.savez(target, **made)  # type: ignore[arg-type]
    print(f"{platform.machine()}, {ops.__file__}")


if __name__ == "__main__":
    main()
