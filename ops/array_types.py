"""Aliases for the array types in signatures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

AnyArray = NDArray[Any]
Float32Array = NDArray[np.float32]
Float64Array = NDArray[np.float64]
FloatArray = NDArray[np.floating[Any]]
"""Float32 or float64."""

Feed = Mapping[str, NDArray[Any]]
"""The arrays of one run of a model, by the name of an input or output."""

QParams = tuple[Float32Array, AnyArray]
"""Scale and zero point of integers, both scalars or both with one number for each index of an axis."""
