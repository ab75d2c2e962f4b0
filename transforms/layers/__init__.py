"""A stored layer as linear algebra: y = W x, and the places of its weight and bias.

Imports ``graph``. Names: ``match_layers.match_layers``, ``linear_layer``, ``stored_constant``.
"""
