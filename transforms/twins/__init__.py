"""The operators of :mod:`ops` as ONNX functions in standard operators."""
