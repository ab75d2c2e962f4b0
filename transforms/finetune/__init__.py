"""Tune quantized layers against the float model; a layer is accepted only if it is better.

Imports ``layers``, ``run``, ``pipelines`` and the packages below. Names: ``finetune_model.finetune_model``,
``options``.
"""
