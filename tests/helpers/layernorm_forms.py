"""Layer normalisation as exporters write it, formulas that only look like it, and its exact value."""

from __future__ import annotations

import re

import numpy as np
import onnx
from numpy.typing import NDArray

from tests.helpers import fusion

WIDTH, EPSILON = 16, 1e-5
RANDOM = np.random.default_rng(7)
SCALE = RANDOM.normal(1, 0.5, WIDTH).astype(np.float32)
BIAS = RANDOM.normal(0, 1, WIDTH).astype(np.float32)
X = RANDOM.normal(0.5, 2, (2, 3, WIDTH)).astype(np.float32)

WEIGHTS = {
    "scale": SCALE,
    "bias": BIAS,
    "eps": np.float32(EPSILON),
    "one": np.float32(1),
    "two": np.float32(2),
    "zero": np.float32(0),
    "half": np.float32(0.5),
    "minus_half": np.float32(-0.5),
    "recip_n": np.float32(1 / WIDTH),
    "n_eps": np.float32(WIDTH * EPSILON),
    "root_n_scale": 4 * SCALE,
    "axes": np.array([-1]),
}

TAIL = "g = Mul(n, scale) y = Add(g, bias)"
TWO_PASS = "m = Mean(x) d = Sub(x, m) p = Pow(d, two) v = Mean(p)"
FORMS = {
    "pytorch": f"{TWO_PASS} e = Add(v, eps) s = Sqrt(e) n = Div(d, s) {TAIL}",
    "two subtractions": "m = Mean(x) d = Sub(x, m) f = Sub(x, m) p = Mul(f, f) v = Mean(p) e = Add(eps, v) "
    f"s = Sqrt(e) n = Div(d, s) {TAIL}",
    "batch norm": f"{TWO_PASS} e = Add(v, eps) s = Sqrt(e) r = Reciprocal(s) h = Mul(r, scale) "
    "a = Mul(x, h) c = Mul(m, h) o = Sub(bias, c) y = Add(a, o)",
    "mean of squares": "m = Mean(x) q = Mul(x, x) w = Mean(q) c = Mul(m, m) v = Sub(w, c) k = Max(zero, v) "
    f"e = Add(k, eps) s = Sqrt(e) r = Reciprocal(s) d = Sub(x, m) n = Mul(d, r) {TAIL}",
    "sums": "t = Sum(x) m = Mul(t, recip_n) q = Mul(x, x) u = Sum(q) w = Mul(u, recip_n) c = Pow(m, two) "
    f"v = Sub(w, c) k = Relu(v) e = Add(k, eps) r = Pow(e, minus_half) d = Sub(x, m) n = Mul(d, r) {TAIL}",
    "without axis": "m = Mean0(x) z = Unsqueeze(m, axes) d = Sub(x, z) p = Mul(d, d) v = Mean0(p) "
    f"e = Add(v, eps) f = Unsqueeze(e, axes) s = Sqrt(f) n = Div(d, s) {TAIL}",
    "squeezed": f"{TWO_PASS} k = Squeeze(v, axes) e = Add(k, eps) s = Sqrt(e) f = Unsqueeze(s, axes) "
    f"n = Div(d, f) {TAIL}",
    "reciprocal first": f"{TWO_PASS} e = Add(v, eps) i = Div(one, e) r = Sqrt(i) n = Mul(r, d) {TAIL}",
    "power a half": f"{TWO_PASS} c = Clip(v, zero) e = Add(c, eps) s = Pow(e, half) n = Div(d, s) {TAIL}",
    "turned round": "m = Mean(x) d = Sub(m, x) p = Mul(d, d) v = Mean(p) e = Add(v, eps) s = Sqrt(e) "
    "n = Div(d, s) g = Mul(scale, n) y = Sub(bias, g)",
    "negated": f"{TWO_PASS} e = Add(v, eps) s = Sqrt(e) b = Neg(d) f = Div(b, s) n = Neg(f) {TAIL}",
    "sum of squares": "m = Mean(x) d = Sub(x, m) p = Mul(d, d) v = Sum(p) e = Add(v, n_eps) s = Sqrt(e) "
    "n = Div(d, s) g = Mul(n, root_n_scale) y = Add(g, bias)",
    "copies": f"z = Identity(x) m = Mean(z) d = Sub(x, m) k = Cast<to=1>(d) p = Pow(k, two) v = Mean(p) "
    f"e = Add(v, eps) s = Sqrt(e) n = Div(d, s) {TAIL}",
    "constant nodes": "c2 = Constant<value_float = 2.0>() ce = Constant<value = float {1e-5}>() "
    f"m = Mean(x) d = Sub(x, m) p = Pow(d, c2) v = Mean(p) e = Add(v, ce) s = Sqrt(e) n = Div(d, s) {TAIL}",
}


RESHAPED = (
    "m = Mean0(x) z = Reshape(m, shape) f = Expand(z, shape) d = Sub(x, f) p = Mul(d, d) v = Mean0(p) "
    f"k = Reshape(v, shape) e = Add(k, eps) s = Sqrt(e) n = Div(d, s) {TAIL}"
)
BATCH = "b = Shape<start=0, end=1>(x) shape = Concat<axis=0>(b, rest)"
ROOT = "e = Add(v, eps) s = Sqrt(e)"
NO_EPSILON = f"{TWO_PASS} s = Sqrt(v) n = Div(d, s) {TAIL}"

OTHER_FORMS = {
    "RMS": f"p = Mul(x, x) v = Mean(p) {ROOT} n = Div(x, s) {TAIL}",
    "epsilon outside the root": f"{TWO_PASS} s = Sqrt(v) e = Add(s, eps) n = Div(d, e) {TAIL}",
    "negative epsilon": f"{TWO_PASS} e = Sub(v, eps) s = Sqrt(e) n = Div(d, s) {TAIL}",
    "epsilon that is not constant": f"{TWO_PASS} e = Add(v, t) s = Sqrt(e) n = Div(d, s) {TAIL}",
    "scale that is not constant": f"{TWO_PASS} {ROOT} h = Mul(t, s) n = Div(d, h) {TAIL}",
    "another mean": f"{TWO_PASS} {ROOT} h = Mul(m, two) c = Sub(x, h) n = Div(c, s) {TAIL}",
    "twice the mean square": "m = Mean(x) q = Mul(x, x) w = Mean(q) a = Mul(w, two) c = Mul(m, m) "
    f"v = Sub(a, c) {ROOT} d = Sub(x, m) n = Div(d, s) {TAIL}",
    "a sum for a mean": f"m = Sum(x) d = Sub(x, m) p = Mul(d, d) v = Mean(p) {ROOT} n = Div(d, s) {TAIL}",
    "the variance itself": f"{TWO_PASS} e = Add(v, eps) n = Div(d, e) {TAIL}",
    "clipped from above": f"{TWO_PASS} c = Clip(v, zero, one) e = Add(c, eps) s = Sqrt(e) n = Div(d, s) "
    f"{TAIL}",
    "greater of two": f"{TWO_PASS} c = Max(v, half) e = Add(c, eps) s = Sqrt(e) n = Div(d, s) {TAIL}",
    "a cube": "m = Mean(x) d = Sub(x, m) f = Mul(d, d) p = Mul(f, d) v = Mean(p) "
    f"{ROOT} n = Div(d, s) {TAIL}",
    "sum of a mean": f"{TWO_PASS} {ROOT} k = Sum(m) h = Mul(k, recip_n) c = Sub(x, h) n = Div(c, s) {TAIL}",
    "other powers": f"m = Mean(x) d = Sub(x, m) p = Pow(d, scale) v = Mean(p) {ROOT} n = Div(d, s) {TAIL}",
    "variance over another axis": "m = Mean(x) d = Sub(x, m) p = Mul(d, d) v = ReduceMean<axes=[1]>(p) "
    f"{ROOT} n = Div(d, s) {TAIL}",
    "infinite epsilon": f"{TWO_PASS} e = Add(v, infinite) s = Sqrt(e) n = Div(d, s) {TAIL}",
    "a constant a little off": f"{TWO_PASS} {ROOT} c = Mul(m, off) k = Sub(x, c) n = Div(k, s) {TAIL}",
}


def expand(body: str, opset: int, *, axis: int = -1) -> str:
    """Write Mean, Mean0 (without the axis) and Sum as the reductions of the opset."""

    def reduction(match: re.Match[str]) -> str:
        op, kept, tensor = match.groups()
        keepdims = 0 if kept else 1
        if op == "Mean" and opset < 18:
            return f"ReduceMean<axes=[{axis}], keepdims={keepdims}>({tensor})"
        return f"Reduce{op}<keepdims={keepdims}>({tensor}, axes)"

    return re.sub(r"\b(Mean|Sum)(0?)\((\w+)\)", reduction, body)


def model(body: str, opset: int = 17, **kwargs: str) -> onnx.ModelProto:
    return fusion.parse(expand(body, opset), WEIGHTS, opset=opset, **kwargs)


def exact(x: NDArray, scale: object = SCALE, bias: object = BIAS, axis: int = -1) -> NDArray:
    """The formula, in float64."""
    wide = x.astype(np.float64)
    normal = (wide - wide.mean(axis, keepdims=True)) / np.sqrt(wide.var(axis, keepdims=True) + EPSILON)
    return normal * scale + bias


def rounding_bound(x: NDArray, scale: object = SCALE, bias: object = BIAS, axis: int = -1) -> NDArray:
    """First-order bound of the error of any of the forms in float32.

    u = 2^-24, n the number of normalised elements, M = max|x|. A sum of n rounded terms errs by at most
    (n + 1) u times the sum of magnitudes, whatever its order, so x - mean errs by d <= (n + 2) u M. The
    variance errs by (n + 4) u 2 E[x^2] at most in either form, which is half of that relatively in its root.
    With z = (x - mean) / sigma the normalised value errs by d / sigma
    + |z| (d / sigma + (n + 4) u E[x^2] / sigma^2 + 4 u); scale and bias add one rounding each.
    """
    wide, n, u = x.astype(np.float64), x.shape[axis], 2.0**-24
    sigma = np.sqrt(wide.var(axis, keepdims=True) + EPSILON)
    z = np.abs(exact(x, 1, 0, axis))
    d = (n + 2) * u * np.abs(wide).max(axis, keepdims=True) / sigma
    square = (wide**2).mean(axis, keepdims=True) / sigma**2
    error = d + z * (d + (n + 4) * u * square + 4 * u)
    return np.abs(scale) * error + 2 * u * (np.abs(scale * z) + np.abs(bias))
