"""Choose the precision of each layer and tensor of a model.

* Layers that can be switched: :mod:`candidates` (layers and formats), :mod:`pair_nodes` (nodes of a float and
  of a quantized model), :mod:`readings` (quantized operands of a layer);
* models with a switch for each layer, an input of the session: :mod:`switched_model`, :mod:`switched_layers`;
* the effect of a choice on the outputs: :mod:`bench`, used by all, :mod:`held_out`, :mod:`sensitivity`;
* choices: :mod:`assign`, :mod:`file_budget`, :mod:`fewest` and :mod:`reach` (fewest finer layers),
  :mod:`bf16` (the same for the conversion to BF16), :mod:`place` (layers that are faster in float),
  :mod:`mix` (a format for each layer).

Searches over numbers alone are in ``search``, since packages below this one use them, too: :mod:`fewest` and
:mod:`assign` here, and the move in ``moves`` that leaves tensors in float.
"""
