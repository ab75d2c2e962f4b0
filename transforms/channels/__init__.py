"""Moving scales between the channels of layers, so that every channel suits one grid.

Rewrites: :mod:`equalize_layers`, :mod:`balance_channels`, :mod:`move_outliers` (SmoothQuant, and products
of single channels), :mod:`rotate_channels` and :mod:`scale_channels`. :mod:`propose_moves` and
:mod:`propose_scales` say, by the estimated errors of layers, which entries of a scheme's ``outliers`` are
worth trying; :mod:`apply_moves` applies those.
"""
