"""Moving scales between the channels of layers, so that every channel suits one grid.

:mod:`move_outliers` (SmoothQuant, and products of single channels) and :mod:`scale_channels` are rewrites;
:mod:`propose_moves` and :mod:`propose_scales` say, by the estimated errors of layers, which entries of a
scheme's ``outliers`` are worth trying, and :mod:`apply_moves` applies those. The rewrites
``equalize_layers``, ``balance_channels`` and ``rotate_channels`` stand on what is here.
"""
