"""Rewrites of a graph-surgeon graph, one per module, to be composed by calling one after another.

    from transforms import model_io
    from transforms.fuse_matmul import fuse_matmul
    from transforms.insert_cast import insert_cast

    graph = model_io.load("model.onnx")
    fuse_matmul(graph)
    insert_cast(graph, "bfloat16")
    model_io.save(graph, "model_bf16.onnx")

Each has a function of its own name, which edits the graph in place; help("transforms.insert_cast") shows it.

Prepare:
    ``lift_constants``         Constant nodes become initializers; call it first
    ``convert_opset``          raises the version of the standard operator set
    ``lower_opset``            lowers it, if no node changes its meaning
    ``fix_shapes``             free dimensions of inputs become fixed
    ``write_out_axes``         Pad, Resize and CenterCropPad of some axes become those of all
    ``optimize``               ONNX Runtime's offline optimizer, at its basic level
    ``fuse_matmul``            products of one input with several weights become one, then a Split
    ``fuse_layernorm``         decomposed layer normalization becomes one node
    ``fuse_gelu``              decomposed GELU becomes one node
    ``fuse_hardswish``         HardSwish, which the optimizer decomposes, becomes one node again
    ``split_fused``            operators that ONNX Runtime put together become ONNX's own again

To bfloat16:
    ``insert_cast``            rounds by a pair of Casts, which any runtime carries out
    ``insert_bf16_qdq``        rounds by operators of this package
    ``qdq_to_cast``            replaces those operators by Casts
    ``convert_type``           nodes compute on bfloat16 tensors, as far as their schemas allow
    ``simulate_bf16``          rounds weights and inputs, computes in float32
    ``fold_weights``           stores weights in rounded form
    ``saturate``               brings huge weights, and infinities that mean nothing, into the range of BF16
    ``saturate_activations``   brings activations there before they are rounded

To float32:
    ``widen_bf16``             a bfloat16 model runs without bfloat16 kernels, rounded after every node
    ``widen_float16``          float16 graphs and islands compute in float32

Quantize, by a plan of the room plan:
    ``insert_qdq``             writes the plan as nodes that quantize and dequantize
    ``align_scales``           tensors that a Concat joins get one scale
    ``balance_channels``       moves powers of two from a weight to the other operand of its product
    ``move_outliers``          moves outlying channels of activations into weights
    ``scale_channels``         brings channels between convolutions to like ranges
    ``equalize_layers``        cross-layer equalization of weights
    ``dual_quant_nodes``       quantizes a tensor at the border of two formats in both
    ``fold_relu``              removes a Relu or Clip that the quantization after it applies already
    ``runtime_workarounds``    what ONNX Runtime gets wrong, in float or slowly: quantize_before_relu,
                               requantize_captured, leave_out_zero_points, leave_out_pool_attributes,
                               leave_out_biases, sum_before_layernorm
    ``leave_float``            leaves a node of a quantized model in float
    ``part_biases``            numbers of biases that mask are added after the layer, in float
    ``write_matmul_nbits``     writes products with integers in blocks as ONNX Runtime's MatMulNBits
    ``store_embeddings``       stores embeddings, and heads tied to them, in 8 or 4 bits for ONNX Runtime
    ``quantize_tables``        stores embeddings in int8, once for lookups and the head, in standard operators
    ``quantize_caches``        keeps keys and values between the steps of a decoder in few bits

Store, as the last step:
    ``pack_weights``           weights of block formats in their true bits
    ``write_onnx_mx``          Microscaling in ONNX's own form, for runtimes to come

``model_io`` loads and saves. Everything else lies in rooms, whose docstrings say what each is for; a room
imports only rooms below it (files, graph, functions, model, search, scheme, deploy, plan, algebra,
runtime, opset, channels; then these rewrites; then run, calibrate, judge, moves, pipelines, layers, finetune,
mix_precision, keep_float, compare).
"""
