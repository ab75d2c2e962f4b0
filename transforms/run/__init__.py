"""Running a model on samples: sessions, feeds, inner tensors, steps, and tasks on executors.

Imports ``graph``, ``model`` and the rewrites. Names: ``session``, ``run_model.RunOptions``, ``samples``,
``tasks``.
"""
