"""Searches over numbers, without a graph: metrics of outputs, targets, groups.

Imports no other package. Start from ``output_metrics.METRICS``, ``target.Target``,
``group_search.add_in_groups``.
"""
