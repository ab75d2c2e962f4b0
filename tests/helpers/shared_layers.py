"""A text encoder that uses the matrices of one layer several times, as ALBERT does."""

from __future__ import annotations

import numpy as np
import onnx
from numpy.typing import NDArray

WORDS, WIDTH, INNER, HEADS, USES = 48, 384, 1536, 6, 8
MATRICES = {
    "project": (32, WIDTH),
    **dict.fromkeys(("q", "k", "v", "o"), (WIDTH, WIDTH)),
    "up": (WIDTH, INNER),
    "down": (INNER, WIDTH),
    "pool": (WIDTH, WIDTH),
}
"""The matrices of the model: eight."""


def shared_encoder(*, copies: bool = False, gemm: bool = False, outliers: bool = True) -> onnx.ModelProto:
    """Return the model: tokens [B, S] to a vector [B, 384].

    ``copies``: each use has initializers of its own, with the same numbers, as some exporters write them.
    ``gemm``: the feed-forward part is Gemms that read transposed weights. ``outliers``: some channels of the
    states are much larger than others, more in later uses.
    """
    random = np.random.default_rng(0)
    stored = {name: _drawn(random, *shape) for name, shape in MATRICES.items()}
    stored["table"] = _drawn(random, WORDS, 32) * 6
    for norm in ("norm1", "norm2"):
        stored[norm] = np.ones(WIDTH, np.float32)
        if outliers:
            stored[norm][random.choice(WIDTH, 3)] = 24
    lines, used = [], {"table": stored["table"], "project": stored["project"], "pool": stored["pool"]}

    def _name(name: str, use: int) -> str:
        own = f"{name}_{use}" if copies else name
        is_turned = gemm and name in ("up", "down")
        used[own] = np.ascontiguousarray(stored[name].T) if is_turned else stored[name]
        return own

    for use in range(USES):
        n = {name: _name(name, use) for name in ("q", "k", "v", "o", "up", "down", "norm1", "norm2")}
        lines.append(_layer(use, n, gemm=gemm))
    text = f"""<ir_version: 8, opset_import: ["": 17]>
encoder (int64[B, S] tokens) => (float[B, {WIDTH}] vector)
<int64[4] split = {{0, 0, {HEADS}, {WIDTH // HEADS}}}, int64[3] join = {{0, 0, {WIDTH}}},
 int64[2] flat = {{-1, {WIDTH}}}, int64[2] flat_inner = {{-1, {INNER}}}, int64[1] zero = {{0}},
 int64[1] two = {{2}}, int64[1] inner = {{{INNER}}}, int64[1] width = {{{WIDTH}}},
 float root = {{{(WIDTH / HEADS) ** 0.5}}}> {{
    words = Gather <axis = 0> (table, tokens)
    x0 = MatMul (words, project)
    {"".join(lines)}
    mean = ReduceMean <axes = [1], keepdims = 0> (x{USES})
    pooled = MatMul (mean, pool)
    vector = Tanh (pooled)
}}"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in used.items())
    onnx.checker.check_model(model, full_check=True)
    return model


def _layer(use: int, n: dict[str, str], *, gemm: bool) -> str:
    def _times(made: str, read: str, name: str) -> str:
        if not gemm or name not in ("up", "down"):
            return f"{made} = MatMul ({read}, {n[name]})\n"
        shape = "flat" if name == "up" else "flat_inner"
        flat = (
            f"{made}_in = Reshape ({read}, {shape})\n{made}_out = Gemm <transB = 1> ({made}_in, {n[name]})\n"
        )
        return f"{flat}{made}_like = Shape ({read})\n" + (
            f"{made}_lead = Slice ({made}_like, zero, two)\n"
            f"{made}_shape = Concat <axis = 0> ({made}_lead, {'inner' if name == 'up' else 'width'})\n"
            f"{made} = Reshape ({made}_out, {made}_shape)\n"
        )

    x, i = f"x{use}", use
    parts = [
        f"a{i} = LayerNormalization <axis = -1> ({x}, {n['norm1']})\n",
        *(_times(f"{name}{i}", f"a{i}", name) for name in "qkv"),
        *(
            f"{name}s{i} = Reshape ({name}{i}, split)\n"
            f"{name}h{i} = Transpose <perm = [{perm}]> ({name}s{i})\n"
            for name, perm in (("q", "0, 2, 1, 3"), ("k", "0, 2, 3, 1"), ("v", "0, 2, 1, 3"))
        ),
        f"s{i} = MatMul (qh{i}, kh{i})\nd{i} = Div (s{i}, root)\np{i} = Softmax <axis = -1> (d{i})\n",
        f"c{i} = MatMul (p{i}, vh{i})\nt{i} = Transpose <perm = [0, 2, 1, 3]> (c{i})\n",
        f"j{i} = Reshape (t{i}, join)\n",
        _times(f"o{i}", f"j{i}", "o"),
        f"r{i} = Add ({x}, o{i})\nb{i} = LayerNormalization <axis = -1> (r{i}, {n['norm2']})\n",
        _times(f"up{i}", f"b{i}", "up"),
        f"g{i} = Relu (up{i})\n",
        _times(f"down{i}", f"g{i}", "down"),
        f"x{use + 1} = Add (r{i}, down{i})\n",
    ]
    return "".join(parts)


def _drawn(random: np.random.Generator, rows: int, columns: int) -> NDArray[np.float32]:
    drawn = random.standard_normal((rows, columns)) / rows**0.5
    return drawn.astype(np.float32)
