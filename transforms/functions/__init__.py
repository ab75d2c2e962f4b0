"""Our operators as ONNX functions of standard operators, with bodies as text of ``onnx.parser``.

:mod:`transforms.functions.attach_functions` attaches them. Decoding of packed weights is a feature.
"""

DOMAIN = "onnx_narrow"
"""The domain of functions that no library implements."""
