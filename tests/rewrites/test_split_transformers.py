"""What optimizers of transformers and builders of language models write, taken apart.

Oracle: ONNX Runtime's own kernels. Sums of some dozens of numbers near 1 in another order differ by units in
the last place: 1e-5 of the largest number is some 80 of them.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.helpers import fused_models
from transforms import model_io
from transforms.conversion.standard_form import StandardForm, standardize
from transforms.graph.selection import Selection
from transforms.model import graph_proto
from transforms.split_fused import split_fused

BATCH, TOKENS, KEYS, HEADS, WIDTH = 2, 5, 7, 2, 8
TENSORS = {
    "ids": f"int32[{BATCH},{TOKENS}]",
    "segments": f"int32[{BATCH},{TOKENS}]",
    "places": f"int32[{BATCH},{TOKENS}]",
    "mask": f"int32[{BATCH},{TOKENS}]",
    "key_mask": f"int32[{BATCH},{KEYS}]",
    "full_mask": f"int32[{BATCH},{TOKENS},{TOKENS}]",
    "four_mask": f"int32[{BATCH},1,{TOKENS},{TOKENS}]",
    "counts": f"int32[{BATCH}]",
    "x": f"float[{BATCH},{TOKENS},{WIDTH}]",
    "s": f"float[{BATCH},{TOKENS},{WIDTH}]",
    "memory": f"float[{BATCH},{KEYS},{WIDTH}]",
    "past": f"float[2,{BATCH},{HEADS},3,{WIDTH // HEADS}]",
    "bias": f"float[1,{HEADS},{TOKENS},{TOKENS}]",
}
WEIGHTS = {
    "w": (WIDTH, 3 * WIDTH),
    "b": (3 * WIDTH,),
    "narrow": (WIDTH, 20),
    "c": (20,),
    "g": (WIDTH,),
    "h": (WIDTH,),
    "words": (9, WIDTH),
    "rows": (6, WIDTH),
    "kinds": (2, WIDTH),
    "rows_of_five": (TOKENS, WIDTH),
}
ATTENTION = f"y = ms.Attention <num_heads={HEADS}>"
CROSS = f"y = ms.MultiHeadAttention <num_heads={HEADS}>"
SAME = {
    "attention": f"{ATTENTION} (x, w, b, mask)",
    "no mask": f"{ATTENTION} (x, w, b)",
    "no bias": f"{ATTENTION} (x, w, , full_mask)",
    "added": f"y = ms.Attention <num_heads={HEADS}, scale=0.3> (x, w, b, mask, , bias)",
    "other sizes": f"y = ms.Attention <num_heads={HEADS}, qkv_hidden_sizes=[8, 8, 4]> (x, narrow, c, mask)",
    "filter": f"y = ms.Attention <num_heads={HEADS}, mask_filter_value=-2.0> (x, w, b, mask)",
    "counted": f"a = ReduceSum <keepdims=0> (mask, one) {ATTENTION} (x, w, b, a)",
    "many heads": f"{CROSS} (x, s, x, b, mask)",
    "cross": f"{CROSS} (x, memory, memory, b, key_mask)",
    "cross, no bias": f"y = ms.MultiHeadAttention <num_heads={HEADS}, scale=0.4> (x, memory, memory)",
    "added to scores": f"{CROSS} (x, x, s, b, , bias)",
    "embedding": "y, a = ms.EmbedLayerNormalization (ids, segments, words, rows, kinds, g, h, mask)",
    "embedding, plain": "y, a = ms.EmbedLayerNormalization <epsilon=0.1> (ids, , words, rows, , g, h)",
    "embedding, placed": "y, a = ms.EmbedLayerNormalization (ids, , words, rows, , g, h, , places)",
    "embedding, sum": """t, a, e = ms.EmbedLayerNormalization (ids, segments, words, rows, kinds, g, h, mask)
        u = Add(t, e) y = ms.SkipLayerNormalization (u, x, g)""",
    "encoder": f"""e, a = ms.EmbedLayerNormalization (ids, segments, words, rows, kinds, g, h, mask)
        t = ms.Attention <num_heads={HEADS}> (e, w, b, a) u = ms.SkipLayerNormalization (e, t, g, h)
        v = ms.FastGelu (u) y = ms.MultiHeadAttention <num_heads={HEADS}> (v, u, u)""",
    "rms": "y = SimplifiedLayerNormalization <epsilon=0.01> (x, g)",
    "rms of axes": "y = SimplifiedLayerNormalization <axis=1> (s, rows_of_five)",
    "skip rms": "y, m, d, t = ms.SkipSimplifiedLayerNormalization (x, s, g) z = Add(t, y)",
}  # fmt: skip
STAY = {
    "causal": f"y = ms.Attention <num_heads={HEADS}, unidirectional=1> (x, w, b)",
    "past": f"y, p = ms.Attention <num_heads={HEADS}> (x, w, b, , past)",
    "vector of a caller": f"{ATTENTION} (x, w, b, counts)",
    "statistics": "t, m = ms.SkipLayerNormalization (x, x, g) y = Add(t, m)",
    "width unknown": f"a = own.Odd(x) {CROSS} (a, a, a)",
}


def _model(body: str, opset: int) -> onnx.ModelProto:
    """Return a model with the tensors that the body names, and random weights."""
    names = set(body.replace(",", " ").replace("(", " ").replace(")", " ").split())
    inputs = ", ".join(f"{kind} {name}" for name, kind in TENSORS.items() if name in names)
    text = (
        f'<ir_version: 8, opset_import: ["": {opset}, "com.microsoft": 1, "own": 1]> main ({inputs}) '
        f"=> (float[A,B,C] y) <int64[1] one = {{1}}> {{ {body.replace('ms.', 'com.microsoft.')} }}"
    )
    model, rng = onnx.parser.parse_model(text), np.random.default_rng(0)
    for name, shape in WEIGHTS.items():
        if name in names:
            values = rng.standard_normal(shape).astype(np.float32)
            model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    return model


def _feeds(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    rng, feeds = np.random.default_rng(1), {}
    for value in model.graph.input:
        kind, shape = value.type.tensor_type, [d.dim_value for d in value.type.tensor_type.shape.dim]
        if kind.elem_type == onnx.TensorProto.FLOAT:
            feeds[value.name] = rng.standard_normal(shape).astype(np.float32)
        else:
            lengths = np.tri(*shape, k=2, dtype=np.int32) if value.name == "mask" else None
            feeds[value.name] = rng.integers(0, 2, shape, np.int32) if lengths is None else lengths
    return feeds


@pytest.mark.parametrize("opset", (13, 18, 23))
@pytest.mark.parametrize("name", SAME)
def test_parts_of_transformers_compute_the_same(name: str, opset: int) -> None:
    model = _model(SAME[name], opset)
    graph = model_io.load(model)
    assert split_fused(graph) == SAME[name].count("ms.") + SAME[name].count("SimplifiedLayerNormalization <")
    after = graph_proto.export_model(graph)
    assert not fused_models.runtime_operators(after)
    fused_models.check_same(model, after, _feeds(model))


@pytest.mark.parametrize("name", STAY)
def test_attentions_and_norms_without_parts_stay(name: str) -> None:
    graph = model_io.load(_model(STAY[name], 17))
    assert split_fused(graph) == 0


@pytest.mark.parametrize("optimized", (True, False))
def test_a_norm_that_the_checker_does_not_know_is_always_taken_apart(optimized: bool) -> None:
    body = f"t = LayerNormalization <axis=2> (x, g, h) {ATTENTION} (t, w, b, mask)"
    model = _model(body, 14)
    graph = model_io.load(model)
    standardize(graph, Selection(), StandardForm(optimized))
    after = graph_proto.export_model(graph)
    assert fused_models.runtime_operators(after) == (set() if optimized else {"Attention"})
    fused_models.check_same(model, after, _feeds(model))
