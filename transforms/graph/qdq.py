"""Names of the operators that put numbers on grids: one table, for all that writes or looks for them."""

from __future__ import annotations

from ops.formats import BFP, LINEAR, MX

STANDARD = QUANTIZE_LINEAR, DEQUANTIZE_LINEAR = "QuantizeLinear", "DequantizeLinear"
"""ONNX's own, which ONNX Runtime has in a domain of its own, too."""

EXTENDED = EXTENDED_QUANTIZE, EXTENDED_DEQUANTIZE = LINEAR, "ExtendedDequantizeLinear"
"""Ours, for types that ONNX's own do not take."""

QUANTIZE = frozenset({QUANTIZE_LINEAR, EXTENDED_QUANTIZE})
DEQUANTIZE = frozenset({DEQUANTIZE_LINEAR, EXTENDED_DEQUANTIZE})
PAIRS = QUANTIZE | DEQUANTIZE

BLOCKS = (BFP, MX)
"""Ours that round to blocks in one step, without a way back."""

MATMUL_NBITS = "MatMulNBits"
"""ONNX Runtime's product with a weight in blocks of few bits."""

QMOE = "QMoE"
"""ONNX Runtime's mixture of experts with weights in few bits."""

GATHER_BLOCKS = "GatherBlockQuantized"
"""ONNX Runtime's lookup of rows of a table in blocks of few bits."""
