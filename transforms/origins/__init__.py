"""Where the error of a quantized model comes from: what each layer adds to it by itself.

Imports ``compare``, ``finetune`` and ``mix_precision``. Names: ``loss_origins.find_origins``,
``switched_layers.SwitchedLayers``.
"""
