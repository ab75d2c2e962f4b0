"""Arrays that the runtime reads where they are."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnxruntime as ort

from transforms.graph import dtypes

_SHARED_KINDS = "fiub"  # NumPy's own types, which the runtime takes as they are
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_TYPED = "ortvalue_from_numpy_with_onnx_type"  # not in the oldest versions


def is_shareable(array: np.ndarray) -> bool:
    """Return whether the runtime can read an array where it is."""
    kind = array.dtype.kind in _SHARED_KINDS or (array.dtype == _BFLOAT16 and hasattr(ort.OrtValue, _TYPED))
    return kind and array.flags.c_contiguous


def value_of(array: np.ndarray) -> ort.OrtValue:
    """Return the runtime's view of an array that it can read where it is."""
    if array.dtype != _BFLOAT16:
        return ort.OrtValue.ortvalue_from_numpy(array)
    return getattr(ort.OrtValue, _TYPED)(array.view(np.uint16), dtypes.BFLOAT16)
