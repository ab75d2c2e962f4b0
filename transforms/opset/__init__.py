"""Raise the standard operator set without changing the meaning: checked raises, and rules.

Imports ``graph``, ``model`` and ``runtime``. Names: ``raises``, ``rules``. The rewrite is
:func:`transforms.convert_opset.convert_opset`.
"""
