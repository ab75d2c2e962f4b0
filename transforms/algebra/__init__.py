"""Symbolic reading of element-wise chains, by which LayerNorm and GELU are known in any spelling.

Imports ``graph``. Names: ``interpret``, ``polynomial``, ``norm_terms``.
"""
