"""A model held against a deployment target: the rules that it breaks, and which nodes run in low precision.

Imports ``graph``, ``packed`` and ``scheme``. Names: ``check_target.check_target``,
``low_precision.Verdicts``.
"""
