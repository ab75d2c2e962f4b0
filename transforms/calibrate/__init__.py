"""Ranges of tensors from data: statistics, clipping methods, the cache file.

Imports ``graph``, ``model``, ``plan`` and ``run``. Names: ``calibrate.calibrate``,
``calibrate_plan.CalibrationData``, ``methods``, ``cache``.
"""
