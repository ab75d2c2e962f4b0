"""Raising the standard operator set without changing the meaning: checked raises, rules, a final comparison.

Imports ``graph``, ``model`` and ``run``. Names: ``raises``, ``rules``, ``compare_raised``. The rewrite is
:func:`transforms.convert_opset.convert_opset`.
"""
