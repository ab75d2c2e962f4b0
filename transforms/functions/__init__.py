"""Our operators as ONNX functions in standard operators, whose bodies are text of ``onnx.parser``.

:mod:`transforms.functions.attach_functions` attaches them. Those that decode packed weights are a feature.
"""

DOMAIN = "onnx_narrow"
"""The domain of the functions that no library has."""
