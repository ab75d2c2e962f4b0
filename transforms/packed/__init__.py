"""Weights of a block format in their true bits: codes, exponents, and the ONNX functions that decode them."""

DOMAIN = "onnx_narrow"
"""The domain of the functions that this package writes and no library has."""
