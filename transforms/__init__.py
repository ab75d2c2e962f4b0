"""Rewrites of a graph-surgeon graph, one per module, to be composed by calling one after another."""
