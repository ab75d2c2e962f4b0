"""Ranges of tensors from data: statistics, clipping methods, the cache file.

Imports ``graph``, ``model``, ``plan`` and ``run``. Names: ``calibrate.calibrate``,
``calibration_data.CalibrationData``, ``methods``, ``cache``.
"""
