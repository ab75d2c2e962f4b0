"""The table of deployment targets: what a runtime accepts, and what it computes in low precision.

Facts are from the public documents that a row names. ``verified`` says what was checked by running;
everything else is as documented.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from ops.legal_names import refuse_unknown

PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
INTEGER_OPERATORS = frozenset(
    {"ConvInteger", "DynamicQuantizeLinear", "MatMulInteger", "QLinearConv", "QLinearMatMul"}
)
CONTRIB_INTEGERS = frozenset(
    {"DynamicQuantizeLSTM", "DynamicQuantizeMatMul", "GatherBlockQuantized", "MatMulBnb4"}
    | {"MatMulIntegerToFloat", "MatMulNBits", "QAttention", "QMoE"}
)
"""Operators of com.microsoft that store or compute integers, besides those named QLinear... and QGemm."""

MOVED = frozenset(
    {"Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "MaxPool", "Gather", "Identity"}
    | {"DepthToSpace", "SpaceToDepth", "Expand", "Tile", "Slice", "Split", "Pad"}
)
"""Operators that only move data: they run on whatever type they are given."""


CUDA_BFLOAT16 = frozenset(
    {"Abs", "Add", "AveragePool", "Concat", "Conv", "Cos", "Div", "Erf", "Exp", "Expand", "Flatten"}
    | {"Gather", "GatherElements", "GatherND", "Gelu", "Gemm", "HardSigmoid", "HardSwish", "Identity"}
    | {"IsInf", "IsNaN", "LayerNormalization", "MatMul", "Max", "Min", "Mish", "Mod", "Mul", "Neg", "Pow"}
    | {"RMSNormalization", "ReduceL1", "ReduceMean", "ReduceSum", "ReduceSumSquare", "Relu", "Reshape"}
    | {"ScatterElements", "ScatterND", "Shape", "Sigmoid", "Sign", "Sin", "Size", "Slice", "Softmax"}
    | {"Softplus", "Softsign", "Split", "Sqrt", "Squeeze", "Sub", "Sum", "Tanh", "Tile", "Transpose"}
    | {"Trilu", "Unsqueeze", "Where"}
)
"""Operators that ONNX Runtime's CUDA provider was observed to compute in bfloat16."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """What a runtime accepts.

    ``activations``, ``weights``, ``biases``: names of formats (``float32`` for biases that stay float).
    ``symmetric``: zero points must be 0. ``per_channel``: weights may have a scale for each output channel.
    ``power_of_two``: all scales must be powers of two. ``narrow_weights``: stored weights must be within
    -127..127. ``opsets``, ``ir_version``: the lowest and highest, None without a limit. ``fixed_shapes``: no
    free dimensions. ``qdq_domains``: of QuantizeLinear and DequantizeLinear. ``domains``: of non-ONNX
    operators with a kernel, at least in float. ``computes_integers``: operators on integers other than
    QuantizeLinear and DequantizeLinear; without them scales must be stored. ``contrib_integers``: the same
    for com.microsoft. ``operators``: those that compute in low precision, for an integer target;
    ``open_ends``: those of them that do so even if their output stays float.

    ``preset``, and ``defaults`` of the scheme's keys on top of it; ``adapted``: keys that a user's scheme
    must take over; ``converters``: formats of the conversion to BF16 that the target accepts, the default
    first. ``speed``, ``verified``: in words.
    """

    name: str
    runtime: str
    sources: tuple[str, ...]
    preset: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    adapted: Mapping[str, Any] = field(default_factory=dict)
    activations: tuple[str, ...]
    weights: tuple[str, ...]
    biases: tuple[str, ...] = ("int32", "float32")
    symmetric: bool = False
    per_channel: bool = True
    power_of_two: bool = False
    narrow_weights: bool = False
    opsets: tuple[int, int] | None = None
    ir_version: int | None = None
    fixed_shapes: bool = False
    qdq_domains: tuple[str, ...] = ("",)
    domains: tuple[str, ...] = ("com.microsoft", "ai.onnx.ml")
    computes_integers: frozenset[str] = frozenset()
    contrib_integers: frozenset[str] = frozenset()
    operators: frozenset[str] = PRODUCTS
    open_ends: frozenset[str] = frozenset()
    converters: tuple[str, ...] = ()
    bfloat16_kernels: frozenset[str] = frozenset()
    blocks: tuple[str, ...] | None = None
    speed: str
    verified: str

    @property
    def closed(self) -> frozenset[str]:
        """Products that compute in low precision only if their output is quantized, whoever reads it."""
        return (self.operators & PRODUCTS) - self.open_ends

    @property
    def takes_integers(self) -> bool:
        """Whether activations may be integers."""
        return any("int" in name for name in self.activations)


ON_CPU = "ort-cpu"
"""The target that uses the installed runtime."""

FOLDING = frozenset({"", ON_CPU, "ort-cuda"})
"""Targets whose runtime folds a Cast and a Mul of constants; "" if no target is named."""

_ROWS = (
    Target(
        name=ON_CPU,
        runtime="ONNX Runtime, CPU execution provider",
        sources=(
            "ONNX Runtime, Quantize ONNX models",
            "ONNX Runtime, OperatorKernels",
            "ONNX Runtime, ContribOperators",
        ),
        preset="U8S8",
        defaults={"per_channel": True, "weight_method": "WeightedMSE"},
        activations=("uint8", "int8"),
        weights=("int8", "uint8"),
        qdq_domains=("", "com.microsoft"),
        computes_integers=INTEGER_OPERATORS,
        contrib_integers=CONTRIB_INTEGERS,
        operators=frozenset({"Conv", "Gemm", "MatMul", "Add", "Mul", "Concat", "AveragePool"})
        | {"GlobalAveragePool", "LeakyRelu", "Sigmoid", "Softmax", "Relu", "Clip", "Resize"},
        open_ends=frozenset({"Gemm", "MatMul"}),
        speed="uint8 activations: layers in one integer kernel each. int8 activations keep Relu and Clip "
        "apart, two to four times slower",
        verified="with ONNX Runtime on x86 processors, by optimized graphs and times of other models",
    ),
    Target(
        name="ort-cuda",
        runtime="ONNX Runtime, CUDA execution provider",
        sources=("ONNX Runtime, Quantize ONNX models: on GPU", "ONNX Runtime, CUDA Execution Provider"),
        preset="BF16",
        defaults={"bfloat16_as": "cast"},
        activations=("bfloat16", "float16"),
        weights=("bfloat16", "float16", "int8", "uint8", "int4", "uint4"),
        biases=("bfloat16", "float16", "float32", "int32"),
        operators=PRODUCTS,
        converters=("bf16", "with_cast"),
        bfloat16_kernels=CUDA_BFLOAT16,
        contrib_integers=frozenset({"GatherBlockQuantized", "MatMulNBits"}),
        blocks=("int4", "uint4"),
        speed="the converters write nodes in bfloat16: large MatMuls took 0.1, convolutions 0.5 of float32's "
        "time (TF32: 0.5 and 0.3). Between Casts nodes compute in float32; so do integers, in up to 1.2",
        verified="on an H100 with ONNX Runtime 1.31.1: kernels, outputs against the processor's, times",
    ),
    Target(
        name="tensorrt",
        runtime="NVIDIA TensorRT, and ONNX Runtime's execution provider for it",
        sources=(
            "NVIDIA TensorRT, Working with Quantized Types",
            "NVIDIA TensorRT, Explicit Quantization",
            "NVIDIA TensorRT, ONNX Opset Guide",
        ),
        preset="A8W8",
        defaults={
            "per_channel": True,
            "weight_method": "MinMax",
            "align_concat": False,
        },
        adapted={"bias": "float32"},
        activations=("int8",),
        weights=("int8", "int4"),
        biases=("float32",),
        symmetric=True,
        narrow_weights=True,
        opsets=(13, 25),
        domains=(),
        operators=PRODUCTS | {"Add", "Mul", "AveragePool", "GlobalAveragePool", "Concat"},
        open_ends=PRODUCTS,
        speed="explicit quantization: a layer runs in INT8 if its inputs come from DequantizeLinear",
        verified="not without TensorRT",
    ),
    Target(
        name="openvino",
        runtime="Intel OpenVINO, CPU and GPU",
        sources=(
            "OpenVINO, Low Precision Transformations",
            "OpenVINO, Quantized models compute and restrictions",
        ),
        preset="U8S8",
        defaults={"per_channel": True, "weight_method": "MinMax"},
        activations=("uint8", "int8"),
        weights=("int8",),
        narrow_weights=True,
        computes_integers=INTEGER_OPERATORS,
        operators=PRODUCTS | {"Add", "Mul", "AveragePool", "GlobalAveragePool", "Concat", "Relu", "Clip"},
        open_ends=PRODUCTS,
        speed="integer kernels on processors with VNNI or AMX and on GPUs with DP4A",
        verified="not without OpenVINO",
    ),
    Target(
        name="qnn",
        runtime="Qualcomm AI Engine Direct (HTP), ONNX Runtime's QNN execution provider",
        sources=("ONNX Runtime, QNN Execution Provider", "Qualcomm, QNN HTP Op Support"),
        preset="U16S8",
        defaults={"per_channel": "auto"},
        adapted={"align_eltwise_quant_type": True},
        activations=("uint8", "uint16"),
        weights=("int8", "uint8", "int4"),
        biases=("int32",),
        fixed_shapes=True,
        qdq_domains=("", "com.microsoft"),
        operators=PRODUCTS
        | {"Add", "Mul", "Sub", "Div", "AveragePool", "GlobalAveragePool", "Concat", "LeakyRelu", "PRelu"}
        | {"Sigmoid", "Tanh", "Softmax", "Relu", "Clip", "HardSwish", "Resize", "LayerNormalization", "Gelu"},
        speed="uint16 activations are slower and more accurate than uint8: U8S8 is for speed",
        verified="not without Qualcomm's backend",
    ),
    Target(
        name="ryzen-ai-cnn",
        runtime="AMD Ryzen AI NPU, CNNs in XINT8",
        sources=(
            "AMD Quark, INT8/INT16 Quantization for Ryzen AI",
            "AMD Quark, Power-of-Two Scales (XINT8) Quantization",
            "AMD Ryzen AI Software, Model Quantization",
        ),
        preset="XINT8",
        adapted={"opset": 17},
        activations=("int8",),
        weights=("int8",),
        biases=("int32",),
        symmetric=True,
        per_channel=False,
        power_of_two=True,
        opsets=(13, 17),
        fixed_shapes=True,
        operators=PRODUCTS
        | {"Add", "Mul", "AveragePool", "GlobalAveragePool", "Concat", "LeakyRelu", "PRelu", "Relu", "Clip"}
        | {"Resize", "HardSigmoid", "Sigmoid", "Sub", "Div", "Tanh", "HardSwish"},
        speed="the fastest of the formats of this NPU: scales are shifts",
        verified="numbers by simulation, not without an NPU",
    ),
    Target(
        name="ryzen-ai-bf16",
        runtime="AMD Ryzen AI NPU, models in BF16",
        sources=("AMD Quark, FP32/FP16 to BF16 Model Conversion", "AMD Quark, Mixed Precision"),
        preset="BF16",
        defaults={"bfloat16_as": "cast"},
        activations=("bfloat16",),
        weights=("bfloat16", "bfp16", "mxint8"),
        biases=("bfloat16", "float32"),
        fixed_shapes=True,
        operators=PRODUCTS,
        open_ends=PRODUCTS,
        converters=("with_cast",),
        speed="no calibration data needed; slower than INT8, mostly as accurate as float",
        verified="numbers by simulation, not without an NPU",
    ),
    Target(
        name="ryzen-ai-float-scale",
        runtime="AMD Ryzen AI NPU, A8W8 and A16W8",
        sources=("AMD Quark, Float Scales (A8W8 and A16W8) Quantization",),
        preset="A8W8",
        activations=("int8", "int16"),
        weights=("int8",),
        biases=("int32",),
        symmetric=True,
        fixed_shapes=True,
        qdq_domains=("", "com.microsoft"),
        operators=PRODUCTS
        | {"Add", "Mul", "Sub", "Div", "AveragePool", "GlobalAveragePool", "Concat", "LeakyRelu", "PRelu"}
        | {"Relu", "Clip", "Resize", "HardSigmoid", "Sigmoid", "Tanh", "HardSwish"},
        speed="slower than XINT8; A16W8 is more accurate and slower still",
        verified="numbers by simulation, not without an NPU",
    ),
)

TARGETS: Mapping[str, Target] = MappingProxyType({row.name: row for row in _ROWS})
"""All rows, by name."""


def target(name: str) -> Target:
    """Return the row with a name; ValueError for an unknown one."""
    refuse_unknown(name, TARGETS, "target")
    return TARGETS[name]
