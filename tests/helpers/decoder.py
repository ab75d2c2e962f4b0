"""A small decoder of one layer with GroupQueryAttention and a cache, of random weights."""

from __future__ import annotations

import numpy as np
import onnx

WORDS, WIDTH, HEADS = 64, 64, 2
DECODER = f"""<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
decoder (int64[B, S] input_ids, int64[B, T] attention_mask,
         float[B, {HEADS}, P, 32] pk, float[B, {HEADS}, P, 32] pv)
=> (float[B, S, {WORDS}] logits, float[B, {HEADS}, T, 32] k_out, float[B, {HEADS}, T, 32] v_out)
<int64[1] last = {{1}}, int64 one = {{1}}> {{
    x = Gather <axis = 0> (embedding, input_ids)
    q = MatMul (x, wq)  k = MatMul (x, wk)  v = MatMul (x, wv)
    sum = ReduceSum <keepdims = 0> (attention_mask, last)
    before = Sub (sum, one)
    seqlens = Cast <to = 6> (before)
    shape = Shape (attention_mask)
    length = Gather <axis = 0> (shape, one)
    total = Cast <to = 6> (length)
    a, k_out, v_out = com.microsoft.GroupQueryAttention <num_heads = {HEADS}, kv_num_heads = {HEADS}>
        (q, k, v, pk, pv, seqlens, total)
    o = MatMul (a, wo)
    y = Add (x, o)
    logits = MatMul (y, head)
}}"""
NAMES = {"pk": "past.0.key", "pv": "past.0.value", "k_out": "present.0.key", "v_out": "present.0.value"}


def decoder() -> onnx.ModelProto:
    """Return the model; its last token is never the most likely one."""
    random = np.random.default_rng(0)
    model = onnx.parser.parse_model(DECODER)
    shapes = dict.fromkeys(("wq", "wk", "wv", "wo"), (WIDTH, WIDTH))
    for name, shape in {**shapes, "embedding": (WORDS, WIDTH), "head": (WIDTH, WORDS)}.items():
        weight = random.standard_normal(shape).astype(np.float32) / WIDTH**0.5
        weight[:, WORDS - 1 if name == "head" else WIDTH :] = 0
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    _rename(model)
    return model


def _rename(model: onnx.ModelProto) -> None:
    """Give caches the names that onnxruntime-genai expects, which the parser does not read."""
    for value in (*model.graph.input, *model.graph.output):
        value.name = NAMES.get(value.name, value.name)
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [NAMES.get(name, name) for name in names]
