"""Rewrites in a row: preparation, conversion to BF16, quantization.

Imports all rooms below and the rewrites. Names: ``convert_bf16.convert_bf16``,
``quantize_graph.quantize_graph``, ``prepare``.
"""
