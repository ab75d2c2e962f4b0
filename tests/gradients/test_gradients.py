"""Gradients computed by the graph itself, operator by operator and composed.

Oracle: central differences of the unchanged model in ONNX Runtime (:mod:`tests.helpers.gradient_check`), for
every element of every input. The inputs are such that no step crosses the corner of a piecewise linear
function.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

from tests.helpers.gradient_check import Feed, check
from transforms.gradients import add_gradients
from transforms.model import graph_proto

CASES = {
    "conv": "(float[2,2,5,6] x, float[3,2,3,2] w) => (float[2,3,A,B] y) { y = Conv(x, w) }",
    "conv stride": """(float[1,2,6,7] x, float[2,2,3,3] w, float[2] wb) => (float[1,2,A,B] y) {
        y = Conv <strides = [2, 3], pads = [1, 0, 0, 2]> (x, w, wb) }""",
    "conv dilated group": """(float[1,4,7,6] x, float[4,2,2,2] w) => (float[1,4,A,B] y) {
        y = Conv <group = 2, dilations = [2, 3], strides = [2, 1], pads = [1, 1, 1, 1]> (x, w) }""",
    "conv depthwise": """(float[1,3,6,5] x, float[3,1,3,3] w) => (float[1,3,A,B] y) {
        y = Conv <group = 3, pads = [1, 1, 1, 1]> (x, w) }""",
    "conv grouped": """(float[1,4,4,3] x, float[6,2,2,3] w) => (float[1,6,A,B] y) {
        y = Conv <group = 2, pads = [1, 0, 0, 2]> (x, w) }""",
    "conv far padding": """(float[1,1,4,3] x, float[1,1,1,2] w) => (float[1,1,A,B] y) {
        y = Conv <pads = [2, 0, 1, 1]> (x, w) }""",
    "conv same without strides": """(float[1,2,4,3] x, float[1,2,2,4] w) => (float[1,1,A,B] y) {
        y = Conv <auto_pad = "SAME_LOWER"> (x, w) }""",
    "conv same upper": """(float[1,1,6,5] x, float[1,1,3,2] w) => (float[1,1,A,B] y) {
        y = Conv <auto_pad = "SAME_UPPER", strides = [2, 2]> (x, w) }""",
    "conv same lower": """(float[1,1,6,5] x, float[1,1,4,2] w) => (float[1,1,A,B] y) {
        y = Conv <auto_pad = "SAME_LOWER", strides = [2, 1]> (x, w) }""",
    "conv same with gaps": """(float[1,1,6,5] x, float[1,1,1,1] w) => (float[1,1,A,B] y) {
        y = Conv <auto_pad = "SAME_UPPER", strides = [3, 2]> (x, w) }""",
    "conv valid": """(float[1,1,6,5] x, float[1,1,3,2] w) => (float[1,1,A,B] y) {
        y = Conv <auto_pad = "VALID", strides = [2, 2]> (x, w) }""",
    "conv 1d": """(float[2,2,9] x, float[3,2,3] w) => (float[2,3,A] y) {
        y = Conv <strides = [3], pads = [1, 2]> (x, w) }""",
    "conv 3d": """(float[1,1,3,4,3] x, float[2,1,2,2,2] w) => (float[1,2,A,B,C] y) {
        y = Conv <strides = [1, 2, 2], pads = [0, 1, 0, 0, 0, 1]> (x, w) }""",
    "conv 1x1 stride": """(float[1,2,5,6] x, float[2,2,1,1] w) => (float[1,2,A,B] y) {
        y = Conv <strides = [2, 3]> (x, w) }""",
    "transposed": """(float[1,2,3,4] x, float[2,3,3,2] w) => (float[1,3,A,B] y) {
        y = ConvTranspose <strides = [2, 3], pads = [1, 0, 0, 1], output_padding = [1, 2]> (x, w) }""",
    "transposed group": """(float[1,4,3,3] x, float[4,1,2,2] w) => (float[1,2,A,B] y) {
        y = ConvTranspose <group = 2, dilations = [2, 1]> (x, w) }""",
    "transposed dilated": """(float[1,1,3,3] x, float[1,1,2,2] w) => (float[1,1,A,B] y) {
        y = ConvTranspose <dilations = [3, 3], strides = [2, 3], output_padding = [1, 2]> (x, w) }""",
    "transposed shape": """(float[1,1,3,4] x, float[1,1,3,3] w) => (float[1,1,A,B] y) {
        y = ConvTranspose <strides = [2, 2], output_shape = [6, 8]> (x, w) }""",
    "transposed same": """(float[1,1,3,4] x, float[1,1,3,3] w) => (float[1,1,A,B] y) {
        y = ConvTranspose <strides = [2, 2], auto_pad = "SAME_UPPER"> (x, w) }""",
    "gemm": """(float[3,4] x, float[4,2] a, float[2] c) => (float[3,2] y) {
        y = Gemm <alpha = 0.5, beta = 2.0> (x, a, c) }""",
    "gemm at": """(float[4,3] x, float[4,2] a, float[3,1] c) => (float[3,2] y) {
        y = Gemm <transA = 1> (x, a, c) }""",
    "gemm bt": """(float[3,4] x, float[2,4] a, float c) => (float[3,2] y) {
        y = Gemm <transB = 1, alpha = 3.0> (x, a, c) }""",
    "gemm atbt": """(float[4,3] x, float[2,4] a) => (float[3,2] y) {
        y = Gemm <transA = 1, transB = 1> (x, a) }""",
    "matmul": "(float[3,4] x, float[4,2] a) => (float[3,2] y) { y = MatMul(x, a) }",
    "matmul rows": "(float[2,3,4] x, float[4,2] a) => (float[2,3,2] y) { y = MatMul(x, a) }",
    "matmul stacks": "(float[2,3,4] x, float[2,4,2] a) => (float[2,3,2] y) { y = MatMul(x, a) }",
    "matmul broadcast": "(float[2,1,3,2] x, float[3,2,2] a) => (float[2,3,3,2] y) { y = MatMul(x, a) }",
    "matmul matrix first": "(float[3,4] x, float[2,4,2] a) => (float[2,3,2] y) { y = MatMul(x, a) }",
    "matmul vectors": "(float[4] x, float[4] a) => (float y) { y = MatMul(x, a) }",
    "matmul vector first": "(float[4] x, float[2,4,3] a) => (float[2,3] y) { y = MatMul(x, a) }",
    "matmul vector matrix": "(float[4] x, float[4,3] a) => (float[3] y) { y = MatMul(x, a) }",
    "matmul vector last": "(float[2,3,4] x, float[4] a) => (float[2,3] y) { y = MatMul(x, a) }",
    "add": "(float[2,3] x, float[3] a) => (float[2,3] y) { y = Add(x, a) }",
    "sub": "(float[2,1,3] x, float[4,1] a) => (float[2,4,3] y) { y = Sub(x, a) }",
    "mul": "(float[2,3] x, float[2,1] a) => (float[2,3] y) { y = Mul(x, a) }",
    "mul itself": "(float[2,3] x) => (float[2,3] y) { y = Mul(x, x) }",
    "div": "(float[3] x, float[2,3] a) => (float[2,3] y) { b = Exp(a) y = Div(x, b) }",
    "sum": "(float[3] x, float[2,3] a, float b) => (float[2,3] y) { y = Sum(x, a, b) }",
    "max": "(float[3] x, float[2,3] a, float b) => (float[2,3] y) { y = Max(x, a, b) }",
    "min": "(float[3] x, float[2,3] a) => (float[2,3] y) { y = Min(x, a) }",
    "neg": "(float[3] x) => (float[3] y) { y = Neg(x) }",
    "sqrt": "(float[3] x) => (float[3] y) { a = Exp(x) y = Sqrt(a) }",
    "reciprocal": "(float[3] x) => (float[3] y) { a = Exp(x) y = Reciprocal(a) }",
    "pow 2": "(float[3] x) => (float[3] y) <float p = {2}> { y = Pow(x, p) }",
    "pow": "(float[3] x) => (float[2,3] y) <float[2,1] p = {3, 1.5}> { a = Exp(x) y = Pow(a, p) }",
    "pow integer": "(float[3] x) => (float[3] y) <int64[1] p = {3}> { y = Pow(x, p) }",
    "log": "(float[3] x) => (float[3] y) { a = Exp(x) b = Add(a, a) y = Log(b) }",
    "abs": "(float[6] x) => (float[6] y) { y = Abs(x) }",
    "erf": "(float[6] x) => (float[6] y) { y = Erf(x) }",
    "sin": "(float[6] x) => (float[6] y) { y = Sin(x) }",
    "cos": "(float[6] x) => (float[6] y) { y = Cos(x) }",
    "relu": "(float[6] x) => (float[6] y) { y = Relu(x) }",
    "leaky": "(float[6] x) => (float[6] y) { y = LeakyRelu <alpha = 0.3> (x) }",
    "prelu": "(float[2,3] x, float[3] w) => (float[2,3] y) { y = PRelu(x, w) }",
    "clip": "(float[9] x) => (float[9] y) <float a = {-0.5}, float b = {0.75}> { y = Clip(x, a, b) }",
    "clip above": "(float[9] x) => (float[9] y) <float b = {0.25}> { y = Clip(x, , b) }",
    "clip nothing": "(float[9] x) => (float[9] y) { y = Clip(x) }",
    "sigmoid": "(float[6] x) => (float[6] y) { y = Sigmoid(x) }",
    "tanh": "(float[6] x) => (float[6] y) { y = Tanh(x) }",
    "hard sigmoid": "(float[9] x) => (float[9] y) { y = HardSigmoid <alpha = 1.0, beta = 0.5> (x) }",
    "hard swish": "(float[9] x) => (float[9] y) <float s = {4}> { a = Mul(x, s) y = HardSwish(a) }",
    "elu": "(float[9] x) => (float[9] y) { y = Elu <alpha = 0.7> (x) }",
    "selu": "(float[9] x) => (float[9] y) { y = Selu(x) }",
    "softplus": "(float[9] x) => (float[9] y) { y = Softplus(x) }",
    "softsign": "(float[9] x) => (float[9] y) { y = Softsign(x) }",
    "gelu": "(float[9] x) => (float[9] y) { y = Gelu(x) }",
    "gelu tanh": """(float[9] x) => (float[9] y) { y = Gelu <approximate = "tanh"> (x) }""",
    "softmax": "(float[2,4] x) => (float[2,4] y) { y = Softmax(x) }",
    "softmax axis": "(float[2,3,2] x) => (float[2,3,2] y) { y = Softmax <axis = 1> (x) }",
    "log softmax": "(float[2,4] x) => (float[2,4] y) { y = LogSoftmax(x) }",
    "layer norm": """(float[2,4] x, float[4] w, float[4] wb) => (float[2,4] y) {
        y = LayerNormalization <epsilon = 0.01> (x, w, wb) }""",
    "layer norm axes": """(float[2,2,3] x, float[2,3] w) => (float[2,2,3] y) {
        y = LayerNormalization <axis = 1> (x, w) }""",
    "instance norm": """(float[2,2,5] x, float[2] w, float[2] wb) => (float[2,2,5] y) {
        y = InstanceNormalization <epsilon = 0.01> (x, w, wb) }""",
    "batch norm": """(float[2,2,3] x, float[2] w, float[2] wb, float[2] wm) => (float[2,2,3] y)
        <float[2] v = {0.5, 2}> { y = BatchNormalization <epsilon = 0.01> (x, w, wb, wm, v) }""",
    "reduce sum": "(float[2,3] x) => (float[2] y) <int64[1] a = {1}> { y = ReduceSum <keepdims = 0> (x, a) }",
    "reduce mean": "(float[2,3,2] x) => (float[1,3,1] y) <int64[2] a = {0, -1}> { y = ReduceMean(x, a) }",
    "reduce mean all": "(float[2,3] x) => (float y) { y = ReduceMean <keepdims = 0> (x) }",
    "reduce max": """(float[2,3] x) => (float[2] y) <int64[1] a = {-1}> {
        y = ReduceMax <keepdims = 0> (x, a) }""",
    "reduce min": "(float[2,3] x) => (float[1,1] y) { y = ReduceMin(x) }",
    "reduce square": "(float[2,3] x) => (float[2,1] y) <int64[1] a = {1}> { y = ReduceSumSquare(x, a) }",
    "reduce norm": "(float[2,3] x) => (float[2,1] y) <int64[1] a = {1}> { y = ReduceL2(x, a) }",
    "global average": "(float[2,2,3,2] x) => (float[2,2,1,1] y) { y = GlobalAveragePool(x) }",
    "global max": "(float[2,2,3,2] x) => (float[2,2,1,1] y) { y = GlobalMaxPool(x) }",
    "average": """(float[1,2,5,6] x) => (float[1,2,A,B] y) {
        y = AveragePool <kernel_shape = [2, 3], strides = [2, 2]> (x) }""",
    "average padded": """(float[1,2,5,4] x) => (float[1,2,A,B] y) {
        y = AveragePool <kernel_shape = [3, 3], strides = [2, 1], pads = [1, 1, 1, 1]> (x) }""",
    "average padding counts": """(float[1,2,5,4] x) => (float[1,2,A,B] y) {
        y = AveragePool <kernel_shape = [3, 3], strides = [2, 1], pads = [1, 1, 1, 1],
        count_include_pad = 1> (x) }""",
    "average ceil": """(float[1,2,6,5] x) => (float[1,2,A,B] y) {
        y = AveragePool <kernel_shape = [3, 2], strides = [2, 2], ceil_mode = 1> (x) }""",
    "average ceil padding counts": """(float[1,1,6,6] x) => (float[1,1,A,B] y) {
        y = AveragePool <kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1, count_include_pad = 1,
        pads = [1, 0, 0, 1]> (x) }""",
    "average same": """(float[1,1,6,5] x) => (float[1,1,A,B] y) {
        y = AveragePool <kernel_shape = [3, 2], strides = [2, 2], auto_pad = "SAME_LOWER"> (x) }""",
    "max pool": """(float[1,2,4,4] x) => (float[1,2,A,B] y) {
        y = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x) }""",
    "max pool overlapping": """(float[1,1,5,5] x) => (float[1,1,A,B] y) {
        y = MaxPool <kernel_shape = [3, 3], strides = [1, 2], pads = [1, 1, 1, 1]> (x) }""",
    "max pool 1d": """(float[2,2,7] x) => (float[2,2,A] y) {
        y = MaxPool <kernel_shape = [3], strides = [2], ceil_mode = 1, dilations = [2]> (x) }""",
    "reshape": "(float[2,3] x) => (float[3,2] y) <int64[2] s = {3, -1}> { y = Reshape(x, s) }",
    "flatten": "(float[2,3,2] x) => (float[2,6] y) { y = Flatten(x) }",
    "squeeze": "(float[2,1,3] x) => (float[2,3] y) { y = Squeeze(x) }",
    "unsqueeze": "(float[2,3] x) => (float[2,1,3] y) <int64[1] a = {1}> { y = Unsqueeze(x, a) }",
    "transpose": "(float[2,3,4] x) => (float[4,2,3] y) { y = Transpose <perm = [2, 0, 1]> (x) }",
    "transpose all": "(float[2,3,4] x) => (float[4,3,2] y) { y = Transpose(x) }",
    "identity": "(float[2] x) => (float[2] y) { a = Identity(x) y = Identity(a) }",
    "dropout": "(float[2] x) => (float[2] y) { y = Dropout(x) }",
    "concat": "(float[2,1] x, float[2,3] a) => (float[2,5] y) { y = Concat <axis = -1> (x, a, x) }",
    "split": """(float[2,5] x) => (float[2,2] y, float[2,1] z) <int64[3] s = {2, 2, 1}> {
        a, b, c = Split <axis = 1> (x, s) y = Tanh(a) z = Exp(c) }""",
    "slice": """(float[4,5] x) => (float[2,3] y) <int64[2] a = {1, -4}, int64[2] b = {3, -1}> {
        y = Slice(x, a, b) }""",
    "slice to the end": """(float[4,5] x) => (float[4,4] y) <int64[1] a = {1},
        int64[1] b = {9223372036854775807}, int64[1] c = {1}> { y = Slice(x, a, b, c) }""",
    "slice backwards": """(float[5] x) => (float[3] y) <int64[1] a = {-1},
        int64[1] b = {-9223372036854775807}, int64[1] c = {0}, int64[1] d = {-2}> {
        y = Slice(x, a, b, c, d) }""",
    "pad": "(float[2,3] x) => (float[4,4] y) <int64[4] p = {0, 1, 2, 0}> { y = Pad(x, p) }",
    "pad and crop": "(float[2,3] x) => (float[4,2] y) <int64[4] p = {0, -1, 2, 0}> { y = Pad(x, p) }",
    "pad axes": """(float[2,3] x) => (float[2,5] y) <int64[2] p = {1, 1}, int64[1] a = {1}> {
        y = Pad(x, p, , a) }""",
    "pad reflect": """(float[2,4] x) => (float[2,7] y) <int64[4] p = {0, 2, 0, 1}> {
        y = Pad <mode = "reflect"> (x, p) }""",
    "gather": "(float[4,3] x) => (float[2,2,3] y) <int64[2,2] i = {1, 3, -1, 1}> { y = Gather(x, i) }",
    "gather one": "(float[4,3] x) => (float[4] y) <int64 i = {-2}> { y = Gather <axis = 1> (x, i) }",
    "gather computed": """(float[4,3] x) => (float[2,3] y) <int64[2] i = {0, 1}> {
        j = Add(i, i) y = Gather(x, j) }""",
    "gather elements": """(float[3,2] x) => (float[2,2] y) <int64[2,2] i = {0, 2, 0, -1}> {
        y = GatherElements(x, i) }""",
    "gather nd": "(float[3,2] x) => (float[3] y) <int64[3,2] i = {0, 1, 2, 0, 0, 1}> { y = GatherND(x, i) }",
    "tile": "(float[2,2] x) => (float[4,6] y) <int64[2] r = {2, 3}> { y = Tile(x, r) }",
    "scatter nd": """(float[4,2] x, float[2,2] a) => (float[4,2] y) <int64[2,1] i = {3, 0}> {
        y = ScatterND(x, i, a) }""",
    "scatter elements": """(float[4,2] x, float[1,2] a) => (float[4,2] y) <int64[1,2] i = {3, 0}> {
        y = ScatterElements(x, i, a) }""",
    "expand": "(float[3,1] x) => (float[2,3,4] y) <int64[3] s = {2, 1, 4}> { y = Expand(x, s) }",
    "where": """(float[2,3] x, float[3] a) => (float[2,3] y) <bool[2,1] c = {1, 0}> { y = Where(c, x, a) }""",
    "cast": "(float[3] x) => (float[3] y) { a = Cast <to = 11> (x) b = Cast <to = 1> (a) y = Tanh(b) }",
    "space to depth": "(float[1,1,4,4] x) => (float[1,4,2,2] y) { y = SpaceToDepth <blocksize = 2> (x) }",
    "depth to space": "(float[1,8,2,1] x) => (float[1,2,4,2] y) { y = DepthToSpace <blocksize = 2> (x) }",
    "depth to space crd": """(float[1,8,2,1] x) => (float[1,2,4,2] y) {
        y = DepthToSpace <blocksize = 2, mode = "CRD"> (x) }""",
    "trilu": "(float[3,3] x) => (float[3,3] y) { y = Trilu <upper = 0> (x) }",
    "resize": """(float[1,1,2,3] x) => (float[1,1,4,9] y) <float[4] s = {1, 1, 2, 3}> {
        y = Resize <mode = "nearest"> (x, , s) }""",
    "resize asymmetric": """(float[1,1,2,3] x) => (float[1,1,4,9] y) <float[4] s = {1, 1, 2, 3}> {
        y = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric"> (x, , s) }""",
    "resize floor": """(float[1,1,2,3] x) => (float[1,1,4,9] y) <float[4] s = {1, 1, 2, 3}> {
        y = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric",
        nearest_mode = "floor"> (x, , s) }""",
    "resize to sizes": """(float[1,1,3,4] x) => (float[1,1,4,7] y) <int64[4] n = {1, 1, 4, 7}> {
        y = Resize <mode = "nearest"> (x, , , n) }""",
    "integers": """(float[2,3] x) => (float[2,3] y) <float zero = {0}> {
        c = Greater(x, zero) f = Cast <to = 1> (c) s = Shape(x)
        t = Cast <to = 1> (s) u = ReduceSum(t) v = Mul(x, f) y = Add(v, u) }""",
    "output used further": "(float[3] x) => (float[3] y, float[3] z) { y = Tanh(x) z = Exp(y) }",
    "residual": """(float[1,2,4,4] x, float[2,2,3,3] w, float[2] wb) => (float[1,3] y)
        <int64[2] s = {1, -1}, float[2,3] v = {0.5, -1, 0.25, 1, 2, -0.75}> {
        a = Conv <pads = [1, 1, 1, 1]> (x, w, wb) b = Sigmoid(a) c = Mul(a, b) d = Add(c, x)
        e = GlobalAveragePool(d) f = Reshape(e, s) y = MatMul(f, v) }""",
    "attention": """(float[1,3,4] x, float[4,4] w, float[4,4] wk, float[4,4] wv) => (float[1,3,4] y)
        <int64[4] s = {0, 0, 2, 2}, int64[3] m = {0, 0, 4}, float r = {1.5}> {
        q = MatMul(x, w) k = MatMul(x, wk) v = MatMul(x, wv)
        q1 = Reshape(q, s) k1 = Reshape(k, s) v1 = Reshape(v, s) q2 = Transpose <perm = [0, 2, 1, 3]> (q1)
        k2 = Transpose <perm = [0, 2, 3, 1]> (k1) v2 = Transpose <perm = [0, 2, 1, 3]> (v1)
        p = MatMul(q2, k2) p1 = Div(p, r) p2 = Softmax(p1) c = MatMul(p2, v2)
        c1 = Transpose <perm = [0, 2, 1, 3]> (c) c2 = Reshape(c1, m) y = Add(c2, x) }""",
    "decomposed layer norm": """(float[2,4] x) => (float[2,4] y)
        <int64[1] a = {-1}, float two = {2}, float e = {0.01}> {
        m = ReduceMean(x, a) d = Sub(x, m) q = Pow(d, two) v = ReduceMean(q, a) w = Add(v, e) s = Sqrt(w)
        y = Div(d, s) }""",
    "decomposed gelu": """(float[9] x) => (float[9] y)
        <float r = {1.4142135}, float one = {1}, float h = {0.5}> {
        a = Div(x, r) b = Erf(a) c = Add(b, one) d = Mul(x, c) y = Mul(d, h) }""",
}  # fmt: skip


def _parse(text: str, opset: int = 20) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> main {text}')
    onnx.checker.check_model(model, full_check=True)
    return model


def _feed(model: onnx.ModelProto) -> Feed:
    """Return inputs no two elements of which are nearer than a step of the oracle, none as near to 0."""
    random = np.random.default_rng(8)
    result: Feed = {}
    for i, value in enumerate(model.graph.input):
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        size = int(np.prod(shape))
        spread = (random.permutation(size) - size // 2 + 0.5) / 4 * min(1, 12 / size)
        result[value.name] = np.asarray(spread.reshape(shape) + 0.08 * i, np.float32)
    return result


def _wanted(feed: Feed) -> list[str]:
    """Return the inputs that are no weights."""
    return [name for name in feed if not name.startswith("w")]


@pytest.mark.parametrize("case", CASES)
def test_equals_central_differences(case: str) -> None:
    model = _parse(CASES[case])
    feed = _feed(model)
    found = check(model, feed, _wanted(feed))
    assert {*found.names, *found.zero} == {*_wanted(feed)}


def _forget_sizes(model: onnx.ModelProto) -> None:
    """Give every axis of inputs and outputs, not of weights, a name of its own in place of its size."""
    for value in (*model.graph.input, *model.graph.output):
        if value.name.startswith("w"):
            continue
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            dim.dim_param = f"{value.name}_{axis}"


NEEDS_SIZES = {
    "transposed shape": "its padding depends on sizes",
    "transposed same": "its padding depends on sizes",
    "depth to space crd": "its number of channels",
}
"""Cases whose gradient is not known without the sizes, and why."""


@pytest.mark.parametrize("case", [case for case in CASES if case not in NEEDS_SIZES])
def test_equals_central_differences_when_sizes_are_free(case: str) -> None:
    model = _parse(CASES[case])
    feed = _feed(model)
    _forget_sizes(model)
    found = check(model, feed, _wanted(feed))
    assert {*found.names, *found.zero} == {*_wanted(feed)}


@pytest.mark.parametrize("case", NEEDS_SIZES)
def test_is_unknown_where_sizes_are_needed_and_free(case: str) -> None:
    model = _parse(CASES[case])
    _forget_sizes(model)
    found = add_gradients(graph_proto.import_model(model), {"y": "seed"}, ["x"])
    assert NEEDS_SIZES[case] in found.unknown["x"] and not found.names and not found.zero
