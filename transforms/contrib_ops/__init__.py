"""Operators of ONNX Runtime rewritten in standard ONNX operators.

Imports ``graph`` and ``model``. Names: ``builder.NodeBuilder``, ``layers``, ``attentions``.
"""
