"""ONNX Runtime: sessions on models of any size, what they are fed with, and devices.

Imports ``files``, ``graph`` and ``model``. Names: ``session.open_session``, ``session.RunOptions``,
``inputs.ModelInput``, ``devices``, ``compare_runs``.
"""
