"""Recipes: lists of steps that make a model, each a function of one object ``Work``.

Start from ``work.Work``, ``steps.run``, ``recipes.QUANTIZE``, ``decide.MOVES``, ``quantize_graph``.
"""
