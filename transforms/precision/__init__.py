"""Which layers and tensors of a model have which precision: one package for all that decides this.

* Parts that can be switched: :mod:`candidates` (layers and formats), :mod:`fused_groups` (nodes that become
  one), :mod:`pair_nodes` (nodes of a quantized model beside those of the float model);
* models in which parts are switched at every run: :mod:`switched_model`, :mod:`switched_layers`,
  :mod:`rounding_switches`;
* what a choice does to the outputs: :mod:`bench`, :mod:`evaluation`, :mod:`bf16_error`, :mod:`held_out`,
  :mod:`sensitivity`, and to the seconds: :mod:`times`;
* choices: :mod:`assign`, :mod:`file_budget`, :mod:`fewest` and :mod:`reach` (fewest finer layers),
  :mod:`place` (layers that are faster in float), :mod:`bf16` (fewest nodes that stay float), :mod:`mix` (a
  format for each layer).

Searches over numbers alone are in ``search``, for packages below this one use them, too.
"""
