"""Two models, or two folders of results, side by side: what ``tools.report`` and ``tools.evaluate`` show.

Imports ``graph``, ``run`` and the rewrites. Names: ``compare_models.compare_models``,
``compare_results.compare``.
"""
