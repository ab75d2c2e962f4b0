"""Attention over five words in three heads of four channels, as exporters write it: texts of models."""

from __future__ import annotations

import numpy as np

from tests.helpers import plans

WEIGHTS: plans.Weights = {
    **{"w": (12, 12), "b": (12,), "o": (12, 4), "w3": (12, 36), "b3": (36,), "g": (12, 12), "k": (12, 12)},
    "heads": np.int64([0, 0, 3, 4]),
    "flat": np.int64([0, 0, 12]),
    "triples": np.int64([0, 0, 3, 3, 4]),
    "front": np.int64([0]),
}
HEAD = "(float[2,5,12] x) => (float[2,5,4] y) {{ {} c = MatMul(s, t) {} }}"
"""A model that mixes values ``t`` with scores ``s``: what makes these goes before, and the rest after."""

MIXED = "d = Transpose<perm = [0, 2, 1, 3]>(c) h = Reshape(d, flat) y = MatMul(h, o)"
SCORES = "i0 = MatMul(x, k) j = Reshape(i0, heads) q = Transpose<perm = [0, 2, 1, 3]>(j) "
SCORES += "r = Transpose<perm = [0, 2, 3, 1]>(j) e = MatMul(q, r) s = Softmax(e) "
VALUES = "m = MatMul(x, w) n = Add(b, m) l = Reshape(n, heads) t = Transpose<perm = [0, 2, 1, 3]>(l) "
ATTENTION = HEAD.format(SCORES + VALUES, MIXED)

TRIPLES = "m = MatMul(x, w3) n = Add(m, b3) l = Reshape(n, triples) a = Transpose<perm = [2, 0, 3, 1, 4]>(l) "
"""Queries, keys and values of one layer: ``a`` holds one after the other."""

SPLIT = TRIPLES + "p5, q5, t5 = Split<axis = 0, num_outputs = 3>(a) "
SPLIT += "".join(f"{name} = Squeeze({name}5, front) " for name in "pqt")
SCORED_HEADS = "v = Transpose<perm = [0, 1, 3, 2]>(q) e = MatMul(p, v) s = Softmax(e) "
