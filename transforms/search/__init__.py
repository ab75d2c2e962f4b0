"""Searches over numbers, without a graph: metrics of outputs, targets, knapsack, greedy search.

Imports no other room. Names: ``output_metrics.METRICS``, ``target.Target``, ``assign_precision.assign``,
``knapsack.choose_formats``, ``smallest_set``.
"""
