"""Channels of tensors scaled against those of the weights that read them: every channel suits one grid then.

A move is a site, the factors of its channels, and their application:

* sites: :mod:`sites` finds channels between layers, :mod:`product_sites` those of what layers multiply with
  matrices, :mod:`channel_groups` those that may be put in another order. A :class:`sites.Site` lists the
  initializers that make the channels and the weights that read them, each a :class:`per_channel.PerChannel`;
* factors: :mod:`factors` has the rules that choose powers of two by ranges; :mod:`propose_moves` and
  :mod:`propose_scales` say, by the estimated errors of layers, which are worth trying;
* application: :mod:`apply_site` divides on one side and multiplies on the other, by :mod:`edits`.

:mod:`move_outliers` (SmoothQuant, and products of single channels) and :mod:`scale_channels` are rewrites
that apply given moves, :mod:`apply_moves` those of a scheme's ``outliers``. The rewrites ``equalize_layers``,
``balance_channels``, ``rotate_channels`` and ``order_channels`` stand on what is here.
"""
