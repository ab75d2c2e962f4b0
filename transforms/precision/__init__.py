"""Which layers and tensors of a model have which precision: one package for all that decides this.

* Parts that can be switched: :mod:`candidates` (layers and formats), :mod:`pair_nodes` (nodes of a quantized
  model beside those of the float model), :mod:`readings` (what they read on a grid);
* models in which parts are switched at every run: :mod:`switched_model`, :mod:`switched_layers`;
* what a choice does to the outputs: :mod:`bench`, one for all, :mod:`held_out`, :mod:`sensitivity`;
* choices: :mod:`assign`, :mod:`file_budget`, :mod:`fewest` and :mod:`reach` (fewest finer layers),
  :mod:`bf16` (the same for the conversion to BF16), :mod:`place` (layers that are faster in float),
  :mod:`mix` (a format for each layer).

Searches over numbers alone are in ``search``, for packages below this one use them, too: :mod:`fewest` and
:mod:`assign` here, and the move in ``moves`` that leaves tensors in float.
"""
