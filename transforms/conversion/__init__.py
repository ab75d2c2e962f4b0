"""Graphs in low precision, made as a scheme or the options of a conversion say: prepared, planned, written.

Nothing is decided here: :mod:`transforms.pipelines` does that.
"""
