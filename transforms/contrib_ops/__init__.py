"""Operators of ONNX Runtime, and how each of them is written in ONNX's own.

Imports ``graph`` and ``model``. Names: ``builder.NodeBuilder``, ``layers``, ``attentions``.
"""
