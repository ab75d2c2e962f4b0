"""Number formats on arrays and as native operators of ONNX Runtime.

    ops.quantize_dequantize(x, "mx9")         # round an array to one of ops.FORMATS
    ops.register_custom_ops(session_options)  # let ONNX Runtime run models that have our operators

Importing this package puts our operators into onnxruntime-extensions (domain ``ai.onnx.contrib``); it imports
neither onnx nor onnxruntime.
"""

from __future__ import annotations

from ops.bfloat16 import from_bfloat16, to_bfloat16
from ops.formats import FORMATS, Format, get_format
from ops.registration import (
    AMD_DOMAIN,
    DOMAIN,
    add_to_extensions,
    get_library_path,
    meet_imported_runtime,
    register_custom_ops,
)
from ops.round_trip import quantize_dequantize

__all__ = [
    "AMD_DOMAIN",
    "DOMAIN",
    "FORMATS",
    "Format",
    "from_bfloat16",
    "get_format",
    "get_library_path",
    "quantize_dequantize",
    "register_custom_ops",
    "to_bfloat16",
]

add_to_extensions()
meet_imported_runtime()
