"""Names of the operators that put numbers on grids: one table for writers and readers."""

from __future__ import annotations

from ops.formats import BFP, LINEAR, MX

STANDARD = QUANTIZE_LINEAR, DEQUANTIZE_LINEAR = "QuantizeLinear", "DequantizeLinear"
"""Those of ONNX, which ONNX Runtime also has in its own domain."""

EXTENDED = EXTENDED_QUANTIZE, EXTENDED_DEQUANTIZE = LINEAR, "ExtendedDequantizeLinear"
"""Ours, for types that the standard operators do not support."""

QUANTIZE = frozenset({QUANTIZE_LINEAR, EXTENDED_QUANTIZE})
DEQUANTIZE = frozenset({DEQUANTIZE_LINEAR, EXTENDED_DEQUANTIZE})
PAIRS = QUANTIZE | DEQUANTIZE

BLOCKS = (BFP, MX)
"""Ours, which round to blocks in one node."""

MATMUL_NBITS = "MatMulNBits"
"""ONNX Runtime's product with a weight in blocks of few bits."""

QMOE = "QMoE"
"""ONNX Runtime's mixture of experts with weights in few bits."""

GATHER_BLOCKS = "GatherBlockQuantized"
"""ONNX Runtime's lookup of rows of a table in blocks of few bits."""
