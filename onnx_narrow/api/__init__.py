"""The functions of :mod:`onnx_narrow`; each does the same as the command of its name."""
