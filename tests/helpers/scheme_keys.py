"""One line on each key of a scheme and of its tables, for the reference."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

SCHEME: Mapping[str, str] = MappingProxyType(
    {
        "activation": "format of the activations of quantized operators; `float32` for none",
        "weight": "format of their stored weights; `float32` for none; `found`, beside float32 "
        "activations: the grids that they lie on already, integers or 8-bit floats",
        "bias": "`auto`: int32 if both operands are integers of up to 16 bits, otherwise "
        "`other`; or a format",
        "other": "format of values that the rules of `activation` do not reach: `auto` is "
        "`activation` if that is bfloat16 or float16, otherwise float32; or "
        "`float32`, `bfloat16`, `float16`",
        "dynamic": "products with `int8` or `uint8` weights of 1024 numbers and more round `float32` "
        "activations at run time; a key of `[layers]` too",
        "dynamic_ranges": "what has a range of its own at run time: each `row` along the sum (a token), "
        "which has the same numbers alone, padded and in a batch, in products that are faster so; or each "
        "`tensor`",
        "per_channel": "one scale for each output channel of a weight; `spread`: only if the "
        "channels differ by a factor of 8 or more; `auto`: decided by the outputs",
        "scale": "`float`, or `power_of_two` for all scales, which then have the least squared error",
        "block_size": "16, 32, 64, 128 or 256: integer weights have one scale for so many numbers "
        "along the sum; 0: one for a tensor or channel",
        "activation_symmetric": "ranges around 0, with zero points of 0; `auto`: for signed formats",
        "calibrate_method": "how ranges of activations are found: `MinMax`, `Entropy`, `Percentile`, "
        "`MSE` (least squared error), `Extrapolated` (beyond the observed range, by "
        "how the extremes of samples vary), `Wide` (1.25 times the observed range "
        "with 8 bits, 1.5 with 16, 16 with 32); `auto`: decided by the outputs",
        "percentile": "for `Percentile`, above 50 up to 100",
        "moving_average": "ranges are moving averages over the samples",
        "averaging_constant": "weight of each new sample in a moving average",
        "weight_method": "how ranges of weights are found: `MinMax`, `MSE`, `WeightedMSE` (weighted by "
        "the mean square of the inputs); `auto`: `WeightedMSE` for one scale, "
        "`MinMax` per channel or block, `MSE` for 4 bits",
        "found": "weights alone of 4 and 8 bits stay on the grids that nearly all of them lie on already, in "
        "at most 6 bits in the mean beside 4, and 8 beside 8, as with `weight = found`; `false`: rounded",
        "weight_symmetric": "`false`: weights of 2 and 4 bits in blocks have zero points; `auto`: those "
        "whose error is less so",
        "finer_share": "in models with attention, values, outputs and half of the layers that end "
        "feed-forward parts get int8 in place of fewer bits, while integers grow by at most this share; "
        "in networks of convolutions the first, depthwise and last "
        "layers",
        "correct_biases": "biases compensate for the mean error of a rounded weight; `auto`: where samples "
        "give ranges",
        "fit_weights": "weights of fewer than 7 bits, or, where there are none, of 8 beside activations of "
        "more, are rounded so that outputs of layers on samples change least (GPTQ); `auto`: if there are "
        "samples, and `weight_method` is `auto`, 8 bits beside 16 in language models; in mixed precision for "
        "a budget without a target",
        "quantize_all_op_types": "every value is quantized, except shapes and positions",
        "arithmetic": "sums, activations and products of two computed tensors are integers too; `auto`: "
        "in all but language models, where products with stored weights alone read integers",
        "op_types": "only these operators are quantized",
        "exclude_nodes": "name patterns of nodes that stay float",
        "exclude_op_types": "operators that stay float",
        "fold_relu": "a Relu or Clip is removed where the quantization after it clips the same values",
        "quantize_before_relu": "the quantization after a Relu or Clip is repeated before it, so that ONNX "
        "Runtime computes the layer in integers",
        "align_concat": "one scale for all tensors that a Concat joins; `auto`: where no tensor loses "
        "more than half a bit",
        "align_slice": "slices have the scale of their input; `auto`: those that no product reads",
        "align_eltwise_quant_type": "constants of sums and products have the format of activations",
        "saturation": "`avoid`: 8-bit sums are exact on every processor: weights in uint8 where that takes "
        "no time, else in int8 of which no two neighbours of a sum are large together, with channels in an "
        "order that suits this; `in_place`: channels keep their order, as they do with files of ranges; "
        "`ignore`: sums may saturate on x86 without VNNI, as they do for every other target than `ort-cpu`",
        "dual_quant_nodes": "a tensor between layers of two formats is quantized in both",
        "keep_weight_nodes": "weights stay float32 and are quantized by nodes in every run; those "
        "whose codes `saturation` changes are stored on their grid",
        "equalize_layers": "channels between two layers are scaled to similar ranges; `auto`: if scales "
        "are powers of two and the outputs on samples gain",
        "balance_channels": "a Mul moves powers of two from a weight to its input: depthwise "
        "convolutions, and rows of weights that stand out",
        "rotate_channels": "an orthogonal matrix in the weights spreads outlying channels of a transformer's "
        "states over all others (QuaRot); samples choose it beside `move_outliers` or `keep_float`",
        "move_outliers": "large channels of activations are moved where the outputs gain",
        "keep_float": "tensors that hold most of the error stay float32 if the outputs gain; for target "
        "`ort-cpu`, layers that are faster so here",
        "optimize": "fold, fuse and optimize the graph first",
        "target": "a deployment target, see [targets](targets.md)",
        "opset": "opset of the result; 0: that of the model, or the least that the nodes need",
        "input_shapes": "a table of fixed shapes by input name",
        "qdq_domain": "domain of QuantizeLinear and DequantizeLinear: ONNX's, or `com.microsoft`",
        "domain": "domain of our operators: `ai.onnx.contrib` or `com.amd.quark`",
        "bfloat16_as": "`qdq`: our operators, or `cast`: a pair of Casts",
        "formats": "a table of block formats: `base` and attributes of its [operator](operators.md)",
        "layers": "a table by node name, pattern or operator type: one format, or a table of "
        "`activation`, `weight`, `bias`, `per_channel`, `weight_method`; later "
        "entries win",
        "tensors": "a table of formats by tensor name, before everything else",
        "outliers": "a table by tensor of what is moved: `CHANNEL:EXPONENT`, `CHANNEL:own`; "
        "nothing is searched then",
        "calibrate_tensors": "a table of `calibrate_method` by tensor name",
        "auto_mixed_precision": "a [table](#auto_mixed_precision)",
        "finetune": "a [table](#finetune)",
    }
)

FINETUNE: Mapping[str, str] = MappingProxyType(
    {
        "algorithm": "`auto`, `gptq`, `coordinate_descent`, `adaquant` or `adaround`",
        "num_iterations": "steps of `adaquant` and `adaround`",
        "learning_rate": "in steps of the grid; 0: 0.002 for `adaquant`, 0.05 for `adaround`",
        "early_stop": "stop a layer that does not improve",
        "fixed_seed": "seed of the sampled rows",
        "data_size": "most samples that are read; 0: all",
        "target_op_type": "only layers of these operators",
        "selective_update": "keep a layer only if the outputs of the model improve, too",
        "output_index": "the output that is measured; -1: all",
        "following_relu": "ignore errors that a Relu or Clip after a layer removes",
        "full_range": "`padded`, `free` or `off`: int8 that is never negative gets 256 levels; with `auto`",
    }
)

MIXING: Mapping[str, str] = MappingProxyType(
    {
        "target": "one or several formats for activation and weight, or pairs such as `int8/int4`",
        "activation_target": "format of activations",
        "weight_target": "format of weights",
        "target_op_types": "operators of layers that may move; empty: Conv, ConvTranspose, Gemm, MatMul",
        "exclude_nodes": "name patterns of layers that may not",
        "dual_quant_nodes": "a tensor between layers of two formats is quantized in both",
        "l2_target": "greatest L2 norm of the outputs' error, mean over samples",
        "sqnr_target": "least SQNR of the outputs in dB",
        "sqnr_drop_target": "greatest loss of SQNR against the baseline in dB",
        "top1_target": "greatest share of rows that become wrong",
        "kl_target": "greatest KL divergence after Softmax in nats, mean over rows (tokens)",
        "evaluate_target": "greatest loss of `evaluate` against the float model",
        "evaluate": "`FILE.py:FUNCTION`, your own metric; more is better",
        "output_index": "the output that is measured; -1: all",
        "bits_target": "most bits of a weight, mean over all",
        "size_target": "most bytes of the file, without a target of the outputs",
    }
)
