"""Operators of :mod:`ops` as ONNX functions in standard operators, attached to models that are saved."""
