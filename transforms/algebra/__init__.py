"""Symbolic reading of element-wise nodes, which recognizes LayerNorm and GELU in any spelling.

Imports ``graph``. Names: ``find_form``, ``interpret``, ``polynomial``.
"""
