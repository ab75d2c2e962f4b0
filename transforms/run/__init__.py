"""Run models on samples: models, feeds, inner tensors, steps, and tasks of workers.

Imports ``runtime`` and the rewrites. Names: ``run_model.open_model``,
``instrumented_model.InstrumentedModel``, ``segmented_model``, ``feeds``, ``samples``,
``workers``.
"""
