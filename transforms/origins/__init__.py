"""Where the error of a quantized model comes from: what each layer adds to it by itself, and why.

Imports ``precision``, ``finetune`` and what lies below. Names: ``loss_origins.find_origins``,
``loss_table.loss_table``.
"""
