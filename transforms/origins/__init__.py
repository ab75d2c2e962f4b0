"""Where the error of a quantized model comes from: the contribution of each layer, and its cause.

Imports ``precision``, ``finetune`` and what lies below. Names: ``loss_origins.find_origins``,
``loss_table.loss_table``.
"""
