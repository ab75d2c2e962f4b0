"""Small decoders that normalize states before each layer by LayerNormalization, as exporters write them.

Their states have an outlying channel, of which layers make little. Attention is not causal.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser

WORDS, WIDTH, HEADS, PLACES, LOUD = 50, 48, 4, 16, 5
ATTENTION = """{a}q = Reshape({q}, heads) {a}k = Reshape({k}, heads) {a}v = Reshape({v}, heads)
    {a}qt = Transpose<perm = [0, 2, 1, 3]>({a}q) {a}kt = Transpose<perm = [0, 2, 3, 1]>({a}k)
    {a}vt = Transpose<perm = [0, 2, 1, 3]>({a}v) {a}s = MatMul({a}qt, {a}kt) {a}p = Softmax({a}s)
    {a}o = MatMul({a}p, {a}vt) {a}ot = Transpose<perm = [0, 2, 1, 3]>({a}o) {a} = Reshape({a}ot, joined)"""
NORM = "{h} = LayerNormalization<axis = -1>({x}, {h}_s, {h}_t)"

GPT_LAYER = f"""{NORM.format(h="h{n}", x="x{n}")} rows{{n}} = Reshape(h{{n}}, flat)
    qkv{{n}} = Gemm(rows{{n}}, wqkv{{n}}, bqkv{{n}}) all{{n}} = Reshape(qkv{{n}}, shape3)
    sq{{n}}, sk{{n}}, sv{{n}} = Split<axis = -1, num_outputs = 3>(all{{n}})
    {ATTENTION.format(a="a{n}", q="sq{n}", k="sk{n}", v="sv{n}")}
    ar{{n}} = Reshape(a{{n}}, flat) ao{{n}} = Gemm(ar{{n}}, wo{{n}}, bo{{n}})
    aw{{n}} = Reshape(ao{{n}}, shape1) y{{n}} = Add(aw{{n}}, x{{n}}) {NORM.format(h="g{n}", x="y{n}")}
    mr{{n}} = Reshape(g{{n}}, flat) m{{n}} = Gemm<alpha = 2.0, beta = 0.5>(mr{{n}}, wm{{n}}, bm{{n}})
    act{{n}} = Tanh(m{{n}}) d{{n}} = Gemm(act{{n}}, wd{{n}}, bd{{n}})
    dw{{n}} = Reshape(d{{n}}, shape1) x{{m}} = Add(y{{n}}, dw{{n}})"""
GPT_START = """size = Shape(ids) axis0 = Constant<value_ints = [0]>() length = Gather(size, one)
    shape1 = Concat<axis = 0>(size, width) shape3 = Concat<axis = 0>(size, width3)
    e = Gather(table, ids) places = Slice(positions3, zero, length, one) x0 = Add(e, places)"""
GPT_END = f"{NORM.format(h='f', x='x2')} tt = Transpose<perm = [1, 0]>(table) logits = MatMul(f, tt)"

WHISPER_LAYER = f"""{NORM.format(h="h{n}", x="x{n}")}
    q{{n}} = MatMul(h{{n}}, wq{{n}}) qb{{n}} = Add(bq{{n}}, q{{n}}) k{{n}} = MatMul(h{{n}}, wk{{n}})
    v{{n}} = MatMul(h{{n}}, wv{{n}}) vb{{n}} = Add(v{{n}}, bv{{n}})
    {ATTENTION.format(a="a{n}", q="qb{n}", k="k{n}", v="vb{n}")}
    o{{n}} = MatMul(a{{n}}, wo{{n}}) ob{{n}} = Add(o{{n}}, bo{{n}}) y{{n}} = Add(x{{n}}, ob{{n}})
    {NORM.format(h="c{n}", x="y{n}")} cq{{n}} = MatMul(c{{n}}, wcq{{n}}) cqb{{n}} = Add(cq{{n}}, bcq{{n}})
    ck{{n}} = MatMul(encoded, wck{{n}}) cv{{n}} = MatMul(encoded, wcv{{n}})
    {ATTENTION.format(a="ca{n}", q="cqb{n}", k="ck{n}", v="cv{n}")}
    co{{n}} = MatMul(ca{{n}}, wco{{n}}) z{{n}} = Add(y{{n}}, co{{n}}) {NORM.format(h="g{n}", x="z{n}")}
    m{{n}} = MatMul(g{{n}}, wm{{n}}) mb{{n}} = Add(m{{n}}, bm{{n}}) act{{n}} = Tanh(mb{{n}})
    d{{n}} = MatMul(act{{n}}, wd{{n}}) l{{n}} = MatMul(g{{n}}, wl{{n}}) dl{{n}} = Add(d{{n}}, l{{n}})
    x{{m}} = Add(dl{{n}}, z{{n}})"""
WHISPER_START = "e = Gather(table, ids) places = Gather(positions, at) x0 = Add(e, places)"
WHISPER_END = f"{NORM.format(h='f', x='x2')} logits = MatMul(f, head)"


def gpt(start: str = GPT_START) -> onnx.ModelProto:
    """Return two layers of Gemms, as GPT-2's, with a tied head and learned positions."""
    return _model("(int64[b,t] ids)", start, GPT_LAYER, GPT_END)


def whisper() -> onnx.ModelProto:
    """Return two layers with attention to an encoder's outputs, and products with and without biases.

    One of them reads normalized states and writes into the sum.
    """
    inputs = f"(int64[b,t] ids, int64[t] at, float[b,f,{WIDTH}] encoded)"
    return _model(inputs, WHISPER_START, WHISPER_LAYER, WHISPER_END)


def feed(model: onnx.ModelProto, *, tokens: int = 12, seed: int = 1) -> dict[str, np.ndarray]:
    """Return random tokens, and for a model that reads them places and outputs of an encoder."""
    random = np.random.default_rng(seed)
    every = {
        "ids": random.integers(0, WORDS, (2, tokens)),
        "at": np.arange(tokens),
        "encoded": random.standard_normal((2, 7, WIDTH)).astype(np.float32),
    }
    return {one.name: every[one.name] for one in model.graph.input}


def _model(inputs: str, start: str, layer: str, end: str) -> onnx.ModelProto:
    text = " ".join([start, *(layer.format(n=n, m=n + 1) for n in range(2)), end])
    built = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 18]> decoder
        {inputs} => (float[b,t,{WORDS}] logits) {{ {text} }}"""
    )
    for name in sorted({name for node in built.graph.node for name in node.input if name}):
        values = _values(name)
        if values is not None:
            built.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    onnx.checker.check_model(built, full_check=True)
    return built


_INTEGERS = {
    "heads": [0, 0, HEADS, WIDTH // HEADS],
    "joined": [0, 0, WIDTH],
    "flat": [-1, WIDTH],
    "width": [WIDTH],
    "width3": [3 * WIDTH],
    "zero": [0],
    "one": [1],
}


def _values(name: str) -> np.ndarray | None:
    """Return the numbers of a weight, None for what the model computes; one scale is 0."""
    if name in _INTEGERS:
        return np.array(_INTEGERS[name])
    random = np.random.default_rng(list(name.encode()))
    is_loud = np.arange(WIDTH) == LOUD
    shapes = {"table": (WORDS, WIDTH), "positions": (PLACES, WIDTH), "positions3": (1, PLACES, WIDTH)}
    if name == "head":
        return np.ascontiguousarray(_values("table").T)  # type: ignore[union-attr]
    if name in shapes:
        values = random.standard_normal(shapes[name]) * np.where(is_loud, 100, 1)
    elif name.endswith("_s"):
        values = np.where(is_loud, 0.02, 1 + 0.3 * random.standard_normal(WIDTH))
        values[7] = 0
    elif name.endswith("_t"):
        values = 0.3 * random.standard_normal(WIDTH)
    elif name[0] in "wb" and name[-1] in "01":
        inner = {"qkv": 3 * WIDTH, "m": 2 * WIDTH}.get(name[1:-1], WIDTH)
        shape = (2 * WIDTH if name[1:-1] == "d" else WIDTH, inner)
        values = 0.2 * random.standard_normal(shape if name[0] == "w" else shape[1:])
    else:
        return None
    return values.astype(np.float32)
