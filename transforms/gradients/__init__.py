"""Reverse-mode differentiation as ONNX nodes.

Imports ``graph``. Public name: :func:`add_gradients`.
"""

from transforms.gradients.backward import add_gradients

__all__ = ["add_gradients"]
