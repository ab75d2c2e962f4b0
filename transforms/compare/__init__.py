"""Comparison of two models, or of two folders of results, for ``tools.report`` and ``tools.evaluate``.

Imports ``graph``, ``run`` and the rewrites. Names: ``compare_models.compare_models``,
``compare_results.compare``.
"""
