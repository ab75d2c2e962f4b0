"""Rewrites of a graph-surgeon graph, one per module, to be called one after another.

    from transforms import fuse_matmul, insert_cast, model_io

    graph = model_io.load("model.onnx")
    fuse_matmul(graph)
    insert_cast(graph, "bfloat16")
    model_io.save(graph, "model_bf16.onnx")

Each has a function of its own name, which edits the graph in place; help("transforms.insert_cast") shows it.
The modules are callable, too: both ``from transforms import insert_cast`` and
``from transforms.insert_cast import insert_cast`` allow ``insert_cast(graph)``.

Prepare:
    ``lift_constants``         Constant nodes become initializers; call it first
    ``convert_opset``          raises the version of the standard operator set
    ``lower_opset``            lowers it, if no node changes its meaning
    ``fix_shapes``             free dimensions of inputs become fixed
    ``write_out_axes``         Pad, Resize and CenterCropPad with a list of axes are rewritten for all axes
    ``optimize``               ONNX Runtime's offline optimizer, at its basic level
    ``share_constants``        equal weights of products, and in bodies, are stored once
    ``eliminate_identities``   nodes that pass their input on are removed
    ``fuse_matmul``            products of one input with several weights become one, then a Split
    ``fuse_matmul_add``        a product and the bias added to it become a Gemm
    ``split_gemm``             a Gemm becomes a product and an added bias again
    ``fuse_layernorm``         decomposed layer normalization becomes one node
    ``fuse_rmsnorm``           decomposed normalization by the root mean square becomes one node
    ``fuse_gelu``              decomposed GELU becomes one node
    ``fuse_hardswish``         HardSwish, which the optimizer decomposes, becomes one node again
    ``split_fused``            fused operators of ONNX Runtime become ONNX's own again

To bfloat16:
    ``insert_cast``            rounds by a pair of Casts, which any runtime supports
    ``insert_bf16_qdq``        rounds by operators of this package
    ``qdq_to_cast``            replaces those operators by Casts
    ``convert_type``           nodes compute on bfloat16 tensors, as far as their schemas allow
    ``simulate_bf16``          rounds weights and inputs, computes in float32
    ``fold_weights``           stores weights in rounded form
    ``saturate``               clips huge weights, and infinities without a meaning, to the range of BF16
    ``saturate_activations``   clips activations to it before they are rounded

To float32:
    ``widen_bf16``             a bfloat16 model runs without bfloat16 kernels, rounded after every node
    ``widen_float16``          float16 graphs and islands compute in float32

Quantize, by a plan (:mod:`transforms.plan`):
    ``insert_qdq``             writes the plan, or grids of tensors, as nodes that quantize and dequantize
    ``align_concat``           tensors that a Concat joins get one scale
    ``balance_channels``       moves powers of two from a weight to the other operand of its product
    ``move_outliers``          moves outlying channels of activations into weights
    ``rotate_channels``        spreads outlying channels of a transformer's states over all others
    ``scale_channels``         gives channels between convolutions similar ranges
    ``order_channels``         permutes channels so that sums of 8-bit products saturate less
    ``equalize_layers``        cross-layer equalization of weights
    ``dual_quant_nodes``       quantizes a tensor at the border of two formats in both
    ``fold_relu``              removes a Relu or Clip that the following quantization already applies
    ``runtime_workarounds``    avoid errors and slow code of ONNX Runtime: quantize_before_relu,
                               requantize_captured, leave_out_zero_points, leave_out_pool_attributes,
                               leave_out_biases, keep_weights_float, sum_before_layernorm
    ``leave_float``            leaves a node of a quantized model in float
    ``remove_qdq``             brings a quantized model, or layers of it, back to float
    ``part_biases``            masks in biases are added after the layer, in float
    ``write_matmul_nbits``     writes products with integers in blocks as ONNX Runtime's MatMulNBits
    ``write_found_grids``      stores weights that already lie on a grid as integers, with the same numbers
    ``write_qmoe``             writes mixtures of experts in 8, 4 or 2 bits as ONNX Runtime's QMoE
    ``store_embeddings``       stores embeddings, and heads tied to them, in 8 or 4 bits for ONNX Runtime
    ``quantize_dynamic``       lets products with stored 8-bit weights round their inputs at run time
    ``quantize_tables``        stores embeddings in int8, once for lookups and the head, in standard operators
    ``quantize_recurrent``     stores weights of LSTM, GRU and RNN as integers, read by nodes that are folded
    ``write_dynamic_lstm``     writes LSTMs with weights in int8 as ONNX Runtime's DynamicQuantizeLSTM
    ``narrow_indices``         stores tables of indices in the narrowest sufficient integer type
    ``quantize_caches``        keeps keys and values between the steps of a decoder in few bits

Store, as the last step:
    ``pack_weights``           weights of block formats in their true bits

``model_io`` loads and saves. The other modules lie in packages, whose docstrings state their
purpose; a package imports only packages below it (files, features, graph, functions, model, contrib_ops,
search, scheme, deploy, plan, algebra, runtime, opset, channels; then these rewrites; then run, calibrate,
judge, layers, full_range, finetune, moves, conversion, compare, precision, origins, pipelines).
"""

from __future__ import annotations

import sys
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transforms.align_concat import align_concat as align_concat
    from transforms.balance_channels import balance_channels as balance_channels
    from transforms.convert_opset import convert_opset as convert_opset
    from transforms.convert_type import convert_type as convert_type
    from transforms.dual_quant_nodes import dual_quant_nodes as dual_quant_nodes
    from transforms.eliminate_identities import eliminate_identities as eliminate_identities
    from transforms.equalize_layers import equalize_layers as equalize_layers
    from transforms.fix_shapes import fix_shapes as fix_shapes
    from transforms.fold_relu import fold_relu as fold_relu
    from transforms.fold_weights import fold_weights as fold_weights
    from transforms.fuse_gelu import fuse_gelu as fuse_gelu
    from transforms.fuse_hardswish import fuse_hardswish as fuse_hardswish
    from transforms.fuse_layernorm import fuse_layernorm as fuse_layernorm
    from transforms.fuse_matmul import fuse_matmul as fuse_matmul
    from transforms.fuse_matmul_add import fuse_matmul_add as fuse_matmul_add
    from transforms.fuse_rmsnorm import fuse_rmsnorm as fuse_rmsnorm
    from transforms.insert_bf16_qdq import insert_bf16_qdq as insert_bf16_qdq
    from transforms.insert_cast import insert_cast as insert_cast
    from transforms.insert_qdq import insert_qdq as insert_qdq
    from transforms.leave_float import leave_float as leave_float
    from transforms.lift_constants import lift_constants as lift_constants
    from transforms.lower_opset import lower_opset as lower_opset
    from transforms.move_outliers import move_outliers as move_outliers
    from transforms.narrow_indices import narrow_indices as narrow_indices
    from transforms.optimize import optimize as optimize
    from transforms.order_channels import order_channels as order_channels
    from transforms.pack_weights import pack_weights as pack_weights
    from transforms.part_biases import part_biases as part_biases
    from transforms.qdq_to_cast import qdq_to_cast as qdq_to_cast
    from transforms.quantize_caches import quantize_caches as quantize_caches
    from transforms.quantize_dynamic import quantize_dynamic as quantize_dynamic
    from transforms.quantize_recurrent import quantize_recurrent as quantize_recurrent
    from transforms.quantize_tables import quantize_tables as quantize_tables
    from transforms.remove_qdq import remove_qdq as remove_qdq
    from transforms.rotate_channels import rotate_channels as rotate_channels
    from transforms.saturate import saturate as saturate
    from transforms.saturate_activations import saturate_activations as saturate_activations
    from transforms.scale_channels import scale_channels as scale_channels
    from transforms.share_constants import share_constants as share_constants
    from transforms.simulate_bf16 import simulate_bf16 as simulate_bf16
    from transforms.split_fused import split_fused as split_fused
    from transforms.split_gemm import split_gemm as split_gemm
    from transforms.store_embeddings import store_embeddings as store_embeddings
    from transforms.widen_bf16 import widen_bf16 as widen_bf16
    from transforms.widen_float16 import widen_float16 as widen_float16
    from transforms.write_dynamic_lstm import write_dynamic_lstm as write_dynamic_lstm
    from transforms.write_found_grids import write_found_grids as write_found_grids
    from transforms.write_matmul_nbits import write_matmul_nbits as write_matmul_nbits
    from transforms.write_out_axes import write_out_axes as write_out_axes
    from transforms.write_qmoe import write_qmoe as write_qmoe


class _CallableModule(ModuleType):
    """The module of a rewrite, called as its function of the same name."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._rewrite(*args, **options)

    @property
    def __signature__(self) -> Any:
        from inspect import signature  # for editors alone

        return signature(self._rewrite)

    @property
    def _rewrite(self) -> Any:
        return vars(self)[self.__name__.rpartition(".")[2]]


class _Rewrites(ModuleType):
    """This package: Python sets each module as an attribute of it once it is imported, and not before."""

    def __setattr__(self, name: str, value: object) -> None:
        if isinstance(value, ModuleType) and isinstance(getattr(value, name, None), FunctionType):
            value.__class__ = _CallableModule
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Rewrites
