"""Small decoders of one layer in ONNX's own operators, with caches in any order of axes.

Letters of a layout: B batch, H heads, T tokens, C channels of a head, D all channels.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from tests.helpers.build import model, value

WORDS, HEADS, SIZE = 64, 2, 16
WIDTH, FRAMES = HEADS * SIZE, 7
CACHES = ("past.0.key", "past.0.value")
ENCODER = ("past.0.encoder.key", "past.0.encoder.value")
KINDS = {np.dtype(kind): kind for kind in (np.float32, np.float16)}
_MADE = "BTHC"  # how heads come out of a Reshape


def shape_of(layout: str, tokens: int | str) -> list[int | str]:
    """Return the shape of a cache."""
    sizes = {"B": 1, "H": HEADS, "T": tokens, "C": SIZE, "D": WIDTH}
    return [sizes[letter] for letter in layout]


def cached_decoder(
    keys: str = "BHTC", *, cross: str = "", dtype: type = np.float32, large: float = 1
) -> onnx.ModelProto:
    """Return a decoder whose keys have a layout; values have [B, H, T, C].

    ``cross``: it also reads keys and values of an encoder, which are ``passed`` on, computed in one branch of
    an ``If``, or ``taken`` alone. ``large``: a factor of the keys' weights.
    """
    random = np.random.default_rng(5)
    shapes = {"table": (WORDS, WIDTH), "head": (WIDTH, WORDS)}
    shapes |= dict.fromkeys(["wq", "wk", "wv", *(["wck", "wcv"] if cross else [])], (WIDTH, WIDTH))
    weights = {name: (random.standard_normal(s) / s[0] ** 0.5).astype(dtype) for name, s in shapes.items()}
    weights["table"] *= dtype(WORDS**0.5)
    weights["wk"] *= dtype(large)
    weights |= {"heads": np.array([0, 0, HEADS, SIZE]), "flat": np.array([0, 0, WIDTH])}
    weights["factor"] = np.array(SIZE**-0.5, dtype)
    nodes = [helper.make_node("Gather", ["table", "input_ids"], ["x"])]
    for letter in "qkv":
        nodes += [helper.make_node("MatMul", ["x", f"w{letter}"], [f"{letter}0"], f"{letter}_proj")]
    nodes += [*_heads("q0", "q", "BHTC"), *_heads("k0", "k", keys), *_heads("v0", "v", "BHTC")]
    for name, layout in (("key", keys), ("value", "BHTC")):
        ends = [f"past.0.{name}", name[0]], [f"present.0.{name}"]
        nodes.append(helper.make_node("Concat", *ends, f"join_{name}", axis=layout.index("T")))
    nodes += [*_turned("present.0.key", "kt", keys), *_attention("q", "kt", "present.0.value", "o", "mask")]
    if cross:
        keys_of, values_of = (n if cross == "taken" else n.replace("past", "present") for n in ENCODER)
        nodes += [*_cross(cross), *_turned(keys_of, "ckt", "BHTC")]
        nodes += _attention("q", "ckt", values_of, "co", "")
    added = ["x", "o", *(["co"] if cross else [])]
    nodes += [
        helper.make_node("Sum", added, ["y"]),
        helper.make_node("MatMul", ["y", "head"], ["logits"], "head"),
    ]
    inputs = [value("input_ids", [1, "s"], np.int64), value("mask", [1, 1, "s", "t"], dtype)]
    inputs += [
        value(name, shape_of(layout, "p"), dtype) for name, layout in zip(CACHES, (keys, "BHTC"), strict=True)
    ]
    outputs = [value("logits", [1, "s", WORDS], dtype), value("present.0.key", shape_of(keys, "t"), dtype)]
    outputs.append(value("present.0.value", shape_of("BHTC", "t"), dtype))
    if cross:
        inputs += [value(name, shape_of("BHTC", "e"), dtype) for name in ENCODER]
        handed = () if cross == "taken" else ENCODER
        outputs += [
            value(name.replace("past", "present"), shape_of("BHTC", "e_out"), dtype) for name in handed
        ]
    if cross == "If":
        inputs += [value("states", [1, "frames", WIDTH], dtype), value("use_cache_branch", [1], np.bool_)]
    return model(nodes, inputs, outputs, weights)


def feed_of(built: onnx.ModelProto, tokens: np.ndarray, caches: dict | None = None) -> dict[str, np.ndarray]:
    """Return what a decoder is fed with for tokens [n], after the caches of those before, by outputs."""
    feed: dict[str, np.ndarray] = {"input_ids": np.asarray(tokens, np.int64)[None]}
    random, count = np.random.default_rng(9), len(tokens)
    past = 0 if caches is None else caches["present.0.value"].shape[2]
    for one in built.graph.input:
        kind = helper.tensor_dtype_to_np_dtype(one.type.tensor_type.elem_type)
        shape = [dim.dim_value for dim in one.type.tensor_type.shape.dim]
        back = one.name.replace("past", "present")
        if one.name == "mask":
            feed["mask"] = np.triu(np.full((count, past + count), -1e4, kind), 1 + past)[None, None]
        elif one.name in ENCODER:
            shape[2] = FRAMES
            feed[one.name] = random.standard_normal(shape).astype(kind) * kind.type(0.5)
        elif one.name in CACHES:
            feed[one.name] = np.zeros(shape, kind) if caches is None else caches[back]
        elif one.name == "states":
            feed["states"] = random.standard_normal((1, FRAMES, WIDTH)).astype(kind)
        elif one.name == "use_cache_branch":
            feed[one.name] = np.array([caches is not None])
    return feed


def save_samples(built: onnx.ModelProto, folder: Path, count: int = 4, length: int = 12) -> Path:
    """Write samples with empty caches, and return their folder."""
    folder.mkdir()
    for i in range(count):
        tokens = np.random.default_rng(i).integers(0, WORDS, length)
        np.savez(folder / f"{i}.npz", **feed_of(built, tokens))  # type: ignore[arg-type]
    return folder


def _heads(flat: str, name: str, layout: str) -> list[onnx.NodeProto]:
    """Return nodes that bring [B, T, D] into a layout."""
    if layout == "BTD":
        return [helper.make_node("Identity", [flat], [name])]
    order = [_MADE.index(letter) for letter in layout]
    return [
        helper.make_node("Reshape", [flat, "heads"], [f"{name}_heads"]),
        helper.make_node("Transpose", [f"{name}_heads"], [name], perm=order),
    ]


def _turned(cache: str, name: str, layout: str) -> list[onnx.NodeProto]:
    """Return nodes that bring keys into [B, H, C, T]."""
    before = [helper.make_node("Reshape", [cache, "heads"], [f"{name}_heads"])] if layout == "BTD" else []
    source, layout = (f"{name}_heads", _MADE) if before else (cache, layout)
    order = [layout.index(letter) for letter in "BHCT"]
    return [*before, helper.make_node("Transpose", [source], [name], perm=order)]


def _attention(query: str, keys: str, values: str, name: str, mask: str) -> list[onnx.NodeProto]:
    inner = [f"{name}{i}" for i in range(5)]
    masked = [helper.make_node("Add", [inner[1], mask], [inner[2]])] if mask else []
    return [
        helper.make_node("MatMul", [query, keys], [inner[0]], f"{name}_scores"),
        helper.make_node("Mul", [inner[0], "factor"], [inner[1]]),
        *masked,
        helper.make_node("Softmax", [inner[2 if mask else 1]], [inner[3]], axis=-1),
        helper.make_node("MatMul", [inner[3], values], [inner[4]], f"{name}_sum"),
        helper.make_node("Transpose", [inner[4]], [f"{name}_t"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", [f"{name}_t", "flat"], [name]),
    ]


def _cross(kind: str) -> list[onnx.NodeProto]:
    """Return nodes that make the keys and values of an encoder outputs."""
    nodes: list[onnx.NodeProto] = []
    for past, weight in zip(ENCODER, ("wck", "wcv"), strict=True) if kind != "taken" else ():
        present = past.replace("past", "present")
        if kind == "passed":
            nodes.append(helper.make_node("Identity", [past], [present]))
            continue
        made = [helper.make_node("MatMul", ["states", weight], [f"{weight}0"])]
        made += _heads(f"{weight}0", f"{weight}1", "BHTC")
        kept = [helper.make_node("Identity", [past], [f"{weight}2"])]
        branches = {
            name: helper.make_graph(body, name, [], [onnx.ValueInfoProto(name=body[-1].output[0])])
            for name, body in (("then_branch", kept), ("else_branch", made))
        }
        nodes.append(helper.make_node("If", ["use_cache_branch"], [present], f"choose_{weight}", **branches))
    return nodes
