"""Our operators, and the decoding of packed weights, as ONNX functions in standard operators.

:mod:`transforms.functions.attach_functions` attaches those of operators,
:mod:`transforms.functions.unpackers` those that decode; the bodies are text of ``onnx.parser``.
"""

DOMAIN = "onnx_narrow"
"""The domain of the functions that no library has."""
