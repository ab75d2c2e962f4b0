"""Rewrites of a graph-surgeon graph, one per module, to be composed by calling one after another.

* Prepare: ``lift_constants``, ``convert_opset``, ``optimize``, ``fuse_matmul``, ``fuse_layernorm``,
  ``fuse_gelu``, ``fuse_hardswish``.
* To bfloat16: ``insert_cast``, ``insert_bf16_qdq``, ``convert_type``, ``convert_bodies``,
  ``simulate_bf16``, ``qdq_to_cast``, ``fold_weights``, ``saturate``, ``saturate_activations``.
* To float32: ``widen_bf16``, ``widen_float16``.
* Quantize: ``insert_qdq``, ``align_scales``, ``balance_channels``, ``equalize_layers``,
  ``dual_quant_nodes``, ``fold_relu``, ``quantize_before_relu``, ``leave_out_zero_points``,
  ``leave_out_dilations``.

``model_io`` loads and saves. Everything else lies in rooms, whose docstrings say what each is for; a room
imports only rooms below it (files, graph, model, search, scheme, plan, algebra, gradients, runtime, opset;
then these rewrites; then run, calibrate, pipelines, layers, finetune, mix_precision, keep_float, compare).
"""
