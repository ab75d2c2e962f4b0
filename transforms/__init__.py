"""Rewrites of a graph-surgeon graph, one per module, to be composed by calling one after another.

    from transforms import model_io
    from transforms.fuse_matmul import fuse_matmul
    from transforms.insert_cast import insert_cast

    graph = model_io.load("model.onnx")
    fuse_matmul(graph)
    insert_cast(graph, "bfloat16")
    model_io.save(graph, "model_bf16.onnx")

Each has a function of its own name, which edits the graph in place; help("transforms.insert_cast") shows it.

Prepare: ``lift_constants`` (call it first), ``convert_opset``, ``lower_opset``, ``fix_shapes``,
``write_out_axes``, ``optimize``, ``fuse_matmul``, ``fuse_layernorm``, ``fuse_gelu``, ``fuse_hardswish``,
``split_fused``.

To bfloat16: ``insert_cast``, ``insert_bf16_qdq``, ``qdq_to_cast``, ``convert_type``, ``simulate_bf16``,
``fold_weights``, ``saturate``, ``saturate_activations``. To float32: ``widen_bf16``, ``widen_float16``.

Quantize, by a plan of the room plan: ``insert_qdq``, ``align_scales``, ``balance_channels``,
``move_outliers``, ``rotate_channels``, ``scale_channels``, ``equalize_layers``, ``dual_quant_nodes``,
``fold_relu``, ``runtime_workarounds``, ``leave_float``, ``part_biases``, ``write_matmul_nbits``,
``store_embeddings``.

Store, as the last step: ``pack_weights`` or ``write_onnx_mx``.

``model_io`` loads and saves. Everything else lies in rooms, whose docstrings say what each is for; a room
imports only rooms below it (files, graph, functions, model, search, scheme, deploy, plan, algebra,
runtime, opset, channels; then these rewrites; then run, calibrate, judge, moves, pipelines, layers, finetune,
mix_precision, keep_float, compare).
"""
