"""A stored layer as linear algebra: y = W x, and where its weight and bias are kept.

Imports ``graph``. Names: ``match_layers.match_layers``, ``linear_layer``, ``stored_constant``.
"""
