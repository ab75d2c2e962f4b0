"""The functions of :mod:`onnx_narrow`, each of which does what the command of its name does."""
