"""Weights of a block format in their true bits: codes, exponents, and the ONNX functions that decode them."""
