"""TEMPORARY: what is left out while it is being mended elsewhere; to be taken out with what reads it."""

PAD_VALUE = True
"""Pad before opset 11 with a mode other than constant and a value: the converter of onnx leaves the value."""

MESSAGES: tuple[tuple[str, str], ...] = ()
"""Failures that are known: a pattern, and in short what it is."""
