"""Small float32 models with one difficulty each, by name, in the text form of ``onnx.parser``.

The difficulties are those that users of such converters have reported: control flow that captures tensors,
outputs that are used further, inputs that a schema ties to float32, types that are not float, and so on.
"""

from __future__ import annotations

import re

import numpy as np
import onnx
import onnx.parser
from numpy.typing import NDArray

MODELS = {
    "relu only": "(float[N] x) => (float[N] y) { y = Relu(x) }",
    "unnamed twins": "(float[N] x) => (float[N] y) { a = Sigmoid(x) b = Sigmoid(x) y = Mul(a, b) }",
    "input twice": "(float[N] x) => (float[N] y) { a = Tanh(x) y = Mul(a, a) }",
    "two consumers": "(float[N] x) => (float[N] y) { a = Tanh(x) b = Exp(a) c = Neg(a) y = Add(b, c) }",
    "relu beside another": """(float[N] x) => (float[N] y) {
        a = Tanh(x) b = Relu(a) c = Exp(a) y = Add(b, c) }""",
    "relu of relu": "(float[N] x) => (float[N] y) { a = Tanh(x) b = Relu(a) y = Relu(b) }",
    "output also used": "(float[N] x) => (float[N] a, float[N] y) { a = Tanh(x) y = Exp(a) }",
    "output also used by relu": "(float[N] x) => (float[N] a, float[N] y) { a = Tanh(x) y = Relu(a) }",
    "input is output": "(float[N] x) => (float[N] x, float[N] y) { y = Tanh(x) }",
    "copied input": "(float[N] x) => (float[N] y) { y = Identity(x) }",
    "weight is output": """(float[2] x) => (float[2] w, float[2] y)
        <float[2] w = {0.1, 0.2}> { y = Add(x, w) }""",
    "unused input": "(float[N] x, float[N] z) => (float[N] y) { y = Tanh(x) }",
    "scalar": "(float x) => (float y) <float w = {0.3}> { a = Add(x, w) y = Tanh(a) }",
    "empty": "(float[N] x) => (float[M] y) <float[0] w = {}> { a = Tanh(x) y = Concat <axis = 0> (a, w) }",
    "zero size": """(float[0,N] x) => (float[0,N] y) { a = Tanh(x) y = Exp(a) }""",
    "casts": """(float[N] x) => (float[N] y) {
        i = Cast <to = 7> (x) f = Cast <to = 1> (i) d = Cast <to = 11> (f)
        g = Cast <to = 1> (d) y = Add(f, g) }""",
    "void cast": "(float[N] x) => (float[N] y) { a = Cast <to = 1> (x) y = Tanh(a) }",
    "output of a cast": "(int64[N] x) => (float[N] y, float[N] z) { y = Cast <to = 1> (x) z = Tanh(y) }",
    "half island": """(float[N] x) => (float[N] y) {
        h = Cast <to = 10> (x) s = Add(h, half_w) f = Cast <to = 1> (s) y = Tanh(f) }""",
    "half output": """(float[N] x) => (float16[N] y, float[N] z) {
        a = Tanh(x) y = Cast <to = 10> (a) z = Exp(a) }""",
    "half input": "(float16[N] h, float[N] x) => (float[N] y) { a = Cast <to = 1> (h) y = Mul(a, x) }",
    "double island": """(float[N] x) => (float[N] y) <double[1] w = {0.1}> {
        d = Cast <to = 11> (x) s = Add(d, w) f = Cast <to = 1> (s) y = Tanh(f) }""",
    "integers": """(int64[N] i, float[N] x) => (int64[N] j, float[N] y) <int64[1] one = {1}> {
        j = Add(i, one) y = Tanh(x) }""",
    "bool and where": """(float[N] x) => (float[N] y, bool[N] c) <float z = {0.0}, float s = {0.1}> {
        c = Greater(x, z) m = Mul(x, s) y = Where(c, x, m) }""",
    "shape arithmetic": """(float[N,M] x) => (float[K] y) <int64 at = {0}, float[1] k = {3.3}> {
        s = Shape(x) n = Gather(s, at) f = Cast <to = 1> (n) g = Sqrt(f) h = Mul(g, k) c = Ceil(h)
        i = Cast <to = 7> (c) a = Tanh(x) m = ReduceMax <keepdims = 0> (a) y = Expand(m, i) }""",
    "scale by size": """(float[N,M] x) => (float[N,M] y) <int64 at = {1}> {
        s = Shape(x) n = Gather(s, at) f = Cast <to = 1> (n) r = Sqrt(f) a = Tanh(x) y = Div(a, r) }""",
    "resize": """(float[1,1,H,W] x) => (float[A,B,C,D] y, float[4] z)
        <float[4] scales = {1, 1, 2.3, 2.3}> { a = Tanh(x)
        y = Resize <mode = "linear"> (a, , scales) z = Sqrt(scales) }""",
    "resize computed": """(float[1,1,4,4] x, float[4] s) => (float[A,B,C,D] y)
        <float[4] one = {1, 1, 1.1, 1.1}> { t = Mul(s, one) y = Resize (x, , t) }""",
    "clip": """(float[N] x) => (float[N] y) <float high = {0.1}, float low = {-0.1}> {
        a = Clip(x, , high) b = Clip(a, low) y = Clip(b) }""",
    "constants": """(float[2] x) => (float[2] y, float[2] held) {
        f = Constant <value_float = 0.1> () fs = Constant <value_floats = [0.1, 0.2]> ()
        i = Constant <value_int = 1> () is = Constant <value_ints = [0, 1]> ()
        t = Constant <value = float[2] {0.3, 0.4}> () held = Constant <value = float[2] {0.7, 0.8}> ()
        a = Mul(x, f) b = Add(a, fs) c = Gather(b, is) d = Cast <to = 1> (i) e = Add(c, d) y = Sub(e, t) }""",
    "constant of shape": """(float[N] x) => (float[N] y) {
        s = Shape(x) o = ConstantOfShape <value = float[1] {0.1}> (s) z = ConstantOfShape(s)
        a = Add(x, o) y = Add(a, z) }""",
    "eye and range": """(float[N,N] x) => (float[N,N] y) <float a = {0.1}, float b = {0.5}, float c = {0.1}> {
        e = EyeLike(x) r = Range(a, b, c) m = ReduceMean <keepdims = 0> (r) s = Mul(e, m) y = Add(x, s) }""",
    "strings": """(string[N] t, float[N] x) => (string[N] u, float[N] y) { u = Identity(t) y = Tanh(x) }""",
    "split": """(float[N,4] x) => (float[N,2] y, float[N,2] z) { a, b = Split <axis = 1, num_outputs = 2> (x)
        y = Tanh(a) z = Exp(b) }""",
    "unused output": """(float[N,4] x) => (float[N,2] y) { v, i = TopK (x, top) y = Tanh(v) }""",
    "dropout and mask": "(float[N] x) => (float[N] y, bool[N] m) { a = Tanh(x) y, m = Dropout(a) }",
    "branches of constants alone": """(bool c) => (float[1] y) {
        y = If (c) <
        then_branch = t () => (float[1] p) { p = Constant <value = float[1] {0.1}> () },
        else_branch = e () => (float[1] q) { q = Constant <value = float[1] {0.2}> () }> }""",
    "sequence": """(float[N] x) => (float[M] y) <int64 at = {1}> {
        a = Tanh(x) b = Exp(x) s = SequenceConstruct(a, b) e = SequenceAt(s, at) n = Neg(e)
        t = ConcatFromSequence <axis = 0> (s) y = Concat <axis = 0> (t, n) }""",
    "split to a sequence": """(float[4] x) => (float[M] y) <int64 at = {1}> {
        a = Tanh(x) s = SplitToSequence <axis = 0> (a) e = SequenceAt(s, at) y = Neg(e) }""",
    "sequence output": "(float[N] x) => (seq(float[N]) s) { a = Tanh(x) s = SequenceConstruct(a, x) }",
    "optional": """(float[N] x) => (float[N] y) {
        a = Tanh(x) o = Optional(a) e = OptionalGetElement(o) y = Exp(e) }""",
    "shared weight": """(float[2] x) => (float[2] y, float[2] z) <float[2] w = {0.1, 0.2}> {
        a = Add(x, w) y = Mul(a, w) z = Sub(w, x) }""",
    "layers": """(float[N,4] x) => (float[N,2] y) {
        a = MatMul(x, w0) b = Add(a, b0) c = Relu(b) y = Gemm(c, w1, b1) }""",
    "convolution": """(float[N,1,8,8] x) => (float[N,2,6,6] y) {
        a = Conv(x, kernel, b1) b = BatchNormalization(a, one2, b1, b1, one2) y = Relu(b) }""",
    "lstm": """(float[T,1,4] x) => (float[T,1,1,4] y, float[1,1,4] c) {
        y, h, c = LSTM <hidden_size = 4> (x, lstm_w, lstm_r) }""",
    "if": """(float[N] x, bool c) => (float[N] y) <float[1] w = {0.1}> {
        a = Tanh(x)
        y = If (c) <then_branch = t () => (float[N] p) { q = Exp(a) p = Mul(q, w) },
                    else_branch = e () => (float[N] p) <float[1] v = {0.3}> {
                        q = Add(a, v) p = Sub(q, x) }> }""",
    "if of twins": """(float[N] x, bool c) => (float[N] y) {
        y = If (c) <then_branch = t () => (float[N] p) { p = Exp(x) },
                    else_branch = e () => (float[N] p) { p = Exp(x) }> }""",
    "if that hands on": """(float[N] x, bool c) => (float[N] y) <float[1] w = {0.1}> { a = Tanh(x)
        b = If (c) <then_branch = t () => (float[N] p) { p = Identity(a) },
                    else_branch = e () => (float[1] p) { p = Identity(w) }> y = Exp(b) }""",
    "nested if": """(float[N] x, bool c) => (float[N] y) <float[1] w = {0.1}> { a = Tanh(x)
        y = If (c) <then_branch = t () => (float[N] p) { b = Exp(a)
                p = If (c) <then_branch = tt () => (float[N] s) { m = Mul(a, b) s = Add(m, w) },
                            else_branch = te () => (float[N] s) { s = Mul(b, w) }> },
                    else_branch = e () => (float[N] p) { p = Neg(a) }> }""",
    "constants in branches": """(float[2] x, bool c) => (float[2] y) {
        y = If (c) <then_branch = t () => (float[2] p) {
                        k = Constant <value = float[2] {0.1, 0.2}> () p = Add(x, k) },
                    else_branch = e () => (float[2] p) { p = Constant <value_floats = [0.3, 0.4]> () }> }""",
    "loop": """(float[2] x, int64 n) => (float[2] y, float[K,2] steps)
        <bool on = {1}, float[2] w = {0.9, 0.8}> { a = Tanh(x) y, steps = Loop (n, on, a)
        <body = b (int64 i, bool go, float[2] s) => (bool more, float[2] r, float[2] o) {
            more = Identity(go) m = Mul(s, w) r = Add(m, a) o = Exp(r) }> }""",
    "loop that hands on": """(float[2] x, int64 n) => (float[2] y, float[K,2] steps) <bool on = {1}> {
        a = Tanh(x) b, steps = Loop (n, on, a)
        <body = b (int64 i, bool go, float[2] s) => (bool go, float[2] s, float[2] o) {
            o = Exp(s) }> y = Neg(b) }""",
    "scan": """(float[T,2] x, float[2] s0) => (float[2] s, float[T,2] y) {
        s, y = Scan <num_scan_inputs = 1, body = b (float[2] p, float[2] q) => (float[2] r, float[2] o) {
            r = Add(p, q) o = Tanh(r) }> (s0, x) }""",
    "attention mask": """(float[N,4] x) => (float[N,4] y) <float[4] m = {0, 0, -3.4028234e38, 0}> {
        a = Add(x, m) y = Softmax(a) }""",
    "quantized": """(float[N] x) => (float[N] y) <float s = {0.013}, uint8 z = {7}> {
        q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) y = Tanh(d) }""",
}  # fmt: skip
"""Everything between the model's name and its last brace; large weights are named in WEIGHTS."""


def _weights() -> dict[str, NDArray]:
    random = np.random.default_rng(5)
    shapes = {"w0": (4, 64), "b0": (64,), "w1": (64, 2), "b1": (2,), "kernel": (2, 1, 3, 3)}
    shapes |= {"lstm_w": (1, 16, 4), "lstm_r": (1, 16, 4)}
    arrays = {name: random.standard_normal(shape).astype(np.float32) / 4 for name, shape in shapes.items()}
    return arrays | {
        "one2": np.array([1.1, 0.9], np.float32),
        "top": np.array([2]),
        "half_w": np.array([0.1], np.float16),
    }


WEIGHTS = _weights()


def build(name: str, *, opset: int = 18, ir_version: int = 8) -> onnx.ModelProto:
    """Return a model of the corpus, accepted by the full checker."""
    return parse(MODELS[name], opset=opset, ir_version=ir_version)


def parse(text: str, *, opset: int = 18, ir_version: int = 8, domains: str = "") -> onnx.ModelProto:
    """Return a model from its text; initializers that it only names come from WEIGHTS."""
    head = f'<ir_version: {ir_version}, opset_import: ["": {opset}{domains}]> main '
    model = onnx.parser.parse_model(head + text)
    known = {tensor.name for tensor in model.graph.initializer} | {value.name for value in model.graph.input}
    for name in sorted(WEIGHTS.keys() - known):
        if re.search(rf"\b{name}\b", text):
            model.graph.initializer.append(onnx.numpy_helper.from_array(WEIGHTS[name], name))
    onnx.checker.check_model(model, full_check=not domains)
    return model


def feeds(model: onnx.ModelProto, size: int = 3) -> dict[str, NDArray]:
    """Return random inputs; dynamic dimensions get ``size``, conditions are true, counts are ``size``."""
    random = np.random.default_rng(6)
    result: dict[str, NDArray] = {}
    held = {tensor.name for tensor in model.graph.initializer}
    for value in model.graph.input:
        if value.name in held:
            continue
        shape = [
            dim.dim_value if dim.HasField("dim_value") else size for dim in value.type.tensor_type.shape.dim
        ]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        if dtype.kind == "f":
            result[value.name] = np.asarray(np.abs(random.standard_normal(shape) + 1.5), dtype)
        elif dtype.kind == "O":
            result[value.name] = np.full(shape, "text", dtype=object)
        else:
            result[value.name] = np.full(shape, 1 if dtype.kind == "b" else size, dtype)
    return result
