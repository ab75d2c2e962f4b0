"""Searches over numbers, without a graph: metrics of outputs, targets, formats of layers, groups.

Imports no other package. Names: ``output_metrics.METRICS``, ``target.Target``, ``assign_precision.assign``,
``group_search.add_in_groups``.
"""
