"""A decoder of characters, a transformer of two blocks: outputs, gradients, ONNX form.

The ONNX form has the inputs and outputs of decoders for onnxruntime-genai, with caches of keys and values.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from examples.training import attention, layers
from examples.training.layers import Array, Backward

Parameters = dict[str, Array]

ALPHABET = "".join(map(chr, range(32, 127))) + "\n"
BLOCKS, WIDTH, HEADS, KEY_HEADS, SIZE, INNER = 2, 64, 4, 2, 16, 96
POSITIONS, BASE = 256, 1e3  # tokens that the model can read; of angles
EPSILON = 1e-5
OPSET, IR_VERSION = 21, 10
_SHAPES = {
    "query": (WIDTH, HEADS * SIZE),
    "key": (WIDTH, KEY_HEADS * SIZE),
    "value": (WIDTH, KEY_HEADS * SIZE),
    "out": (HEADS * SIZE, WIDTH),
    "gate": (WIDTH, INNER),
    "up": (WIDTH, INNER),
    "down": (INNER, WIDTH),
}


def encode(text: str) -> NDArray[np.int64]:
    """Return the tokens of a text; characters of no token are left out."""
    return np.array([ALPHABET.index(letter) for letter in text if letter in ALPHABET], np.int64)


def decode(tokens: NDArray[np.integer]) -> str:
    """Return the text of tokens."""
    return "".join(ALPHABET[token] for token in tokens)


def new_parameters(seed: int) -> Parameters:
    """Return untrained float32 parameters: normal weights of variance 1 / fan-in, less behind each block."""
    draw = np.random.default_rng(seed).standard_normal
    values: dict[str, Array] = {"embedding": draw((len(ALPHABET), WIDTH)) / np.sqrt(WIDTH)}
    for block in range(BLOCKS):
        for name, shape in _SHAPES.items():
            depth = 2 * BLOCKS if name in ("out", "down") else 1
            values[f"{block}.{name}"] = draw(shape) / np.sqrt(depth * shape[0])
        values |= {f"{block}.norm1": np.ones(WIDTH), f"{block}.norm2": np.ones(WIDTH)}
    values["norm"] = np.ones(WIDTH)
    return {name: value.astype(np.float32) for name, value in values.items()}


def angles() -> tuple[Array, Array]:
    """Return cosines and sines ``[position, SIZE / 2]`` of the angles by which positions turn channels."""
    rates = BASE ** -(np.arange(SIZE // 2) / (SIZE // 2))
    turned = np.arange(POSITIONS)[:, None] * rates
    return np.cos(turned).astype(np.float32), np.sin(turned).astype(np.float32)


def predict(parameters: Parameters, tokens: NDArray[np.integer]) -> Array:
    """Return the logits ``[n, token, 96]`` of the tokens after ``tokens`` ``[n, token]``."""
    return _forward(parameters, tokens)[0]


def train_step(parameters: Parameters, tokens: NDArray[np.integer]) -> tuple[float, Parameters]:
    """Return the mean loss in nats of all but the first of the tokens ``[n, token]``, and its gradients."""
    logits, back = _forward(parameters, tokens[:, :-1])
    loss, slope = layers.cross_entropy(logits.reshape(-1, len(ALPHABET)), tokens[:, 1:].reshape(-1))
    return loss, back(slope.reshape(logits.shape))


def _forward(
    parameters: Parameters, tokens: NDArray[np.integer]
) -> tuple[Array, Callable[[Array], Parameters]]:
    """Return logits, and what returns the gradients of all parameters for the slope of the logits."""
    table, gradients = parameters["embedding"], dict[str, Array]()
    x, backs = table[tokens], list[Callable[[Array], Array]]()
    for block in range(BLOCKS):
        own = {name: parameters[f"{block}.{name}"] for name in (*_SHAPES, "norm1", "norm2")}
        for part in (_attention, _feed_forward):
            added, back = part(x, own)
            x = x + added
            backs.append(_keeping(back, f"{block}.", gradients))
    normal, back_norm = attention.normalize_rows(x, parameters["norm"], EPSILON)

    def backward(dy: Array) -> Parameters:
        dtable = dy.reshape(-1, len(table)).T @ normal.reshape(-1, WIDTH)
        slope, gradients["norm"] = back_norm(dy @ table)
        for back in reversed(backs):
            slope = slope + back(slope)
        np.add.at(dtable, tokens, slope)
        return gradients | {"embedding": dtable}

    return normal @ table.T, backward


def _keeping(
    back: Callable[[Array], tuple[Array, Parameters]], prefix: str, gradients: Parameters
) -> Callable[[Array], Array]:
    """Return a backward pass that keeps the gradients of parameters, and returns that of its input."""

    def _run(dy: Array) -> Array:
        dx, found = back(dy)
        gradients.update({prefix + name: value for name, value in found.items()})
        return dx

    return _run


def _attention(x: Array, own: Parameters) -> tuple[Array, Callable[[Array], tuple[Array, Parameters]]]:
    """Return what the attention of a block adds to rows."""
    cosine, sine = (one[: x.shape[1]] for one in angles())
    normal, back_norm = attention.normalize_rows(x, own["norm1"], EPSILON)
    read, backs = list[Array](), list[list[Backward]]()
    for name, heads in (("query", HEADS), ("key", KEY_HEADS), ("value", KEY_HEADS)):
        made, of_product = attention.project(normal, own[name])
        made, of_heads = attention.split_heads(made, heads)
        chain = [of_product, of_heads]
        if name != "value":
            made, of_turn = attention.turn(made, cosine, sine)
            chain.append(of_turn)
        read.append(made)
        backs.append(chain)
    summed, back_sum = attention.attend(*read)
    flat = summed.swapaxes(1, 2).reshape(*x.shape[:2], HEADS * SIZE)
    added, back_out = attention.project(flat, own["out"])

    def backward(dy: Array) -> tuple[Array, Parameters]:
        slope, out = back_out(dy)
        slope = slope.reshape(*x.shape[:2], HEADS, SIZE).swapaxes(1, 2)
        found, dnormal = {"out": out}, np.zeros_like(x)
        for name, slope_of, chain in zip(_SHAPES, back_sum(slope), backs, strict=False):
            for back in reversed(chain[1:]):
                (slope_of,) = back(slope_of)
            part, found[name] = chain[0](slope_of)
            dnormal = dnormal + part
        dx, found["norm1"] = back_norm(dnormal)
        return dx, found

    return added, backward


def _feed_forward(x: Array, own: Parameters) -> tuple[Array, Callable[[Array], tuple[Array, Parameters]]]:
    """Return what the feed-forward part of a block adds to rows."""
    normal, back_norm = attention.normalize_rows(x, own["norm2"], EPSILON)
    gated, back_gated = attention.project(normal, own["gate"])
    up, back_up = attention.project(normal, own["up"])
    inner, back_inner = attention.gate(gated, up)
    added, back_down = attention.project(inner, own["down"])

    def backward(dy: Array) -> tuple[Array, Parameters]:
        slope, down = back_down(dy)
        dgated, dup = back_inner(slope)
        (of_gated, gate), (of_up, up) = back_gated(dgated), back_up(dup)
        dx, norm2 = back_norm(of_gated + of_up)
        return dx, {"down": down, "gate": gate, "up": up, "norm2": norm2}

    return added, backward


def to_onnx(parameters: Parameters) -> onnx.ModelProto:
    """Return the network that :func:`predict` computes as an ONNX decoder with caches."""
    info = helper.make_tensor_value_info
    inputs = [
        info("input_ids", TensorProto.INT64, ["batch", "new"]),
        info("attention_mask", TensorProto.INT64, ["batch", "all"]),
    ]
    outputs = [info("logits", TensorProto.FLOAT, ["batch", "new", len(ALPHABET)])]
    nodes = _first_nodes()
    x = "rows"
    for block in range(BLOCKS):
        for kind in ("key", "value"):
            for ends, name, size in ((inputs, "past_key_values", "past"), (outputs, "present", "all")):
                shape = ["batch", KEY_HEADS, size, SIZE]
                ends.append(info(f"{name}.{block}.{kind}", TensorProto.FLOAT, shape))
        nodes += _block_nodes(block, x)
        x = f"{block}.rows"
    nodes += [
        _node("LayerNormalization", [x, "norm"], "normal", epsilon=EPSILON),
        _node("Transpose", ["embedding"], "head", perm=[1, 0]),
        _node("MatMul", ["normal", "head"], "logits"),
    ]
    stored = parameters | dict(zip(("cosine", "sine"), angles(), strict=True))
    stored |= {"one": np.array(1), "last": np.array([-1])}
    weights = [numpy_helper.from_array(value, name) for name, value in stored.items()]
    purpose = "Continues English text on Python, character by character."
    graph = helper.make_graph(nodes, "decoder", inputs, outputs, weights, doc_string=purpose)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
    model.producer_name = "examples.text.train"
    helper.set_model_props(model, {"training_data": "pydoc_data.topics"})
    onnx.checker.check_model(model)
    return model


def _node(op: str, inputs: list[str], output: str, *more: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs, [output, *more], output, **attributes)


def _first_nodes() -> list[onnx.NodeProto]:
    """Return the nodes that look tokens up, and count those of each text and of all."""
    return [
        _node("Gather", ["embedding", "input_ids"], "rows"),
        _node("ReduceSum", ["attention_mask", "last"], "count", keepdims=0),
        _node("Sub", ["count", "one"], "before"),
        _node("Cast", ["before"], "lengths", to=TensorProto.INT32),
        _node("Shape", ["attention_mask"], "shape"),
        _node("Gather", ["shape", "one"], "longest"),
        _node("Cast", ["longest"], "total", to=TensorProto.INT32),
    ]


def _block_nodes(block: int, x: str) -> list[onnx.NodeProto]:
    """Return the nodes of a block, which reads ``x`` and makes ``{block}.rows``."""

    def _own(name: str) -> str:
        return f"{block}.{name}"

    def _product(source: str, name: str) -> onnx.NodeProto:
        return _node("MatMul", [source, _own(name)], f"{_own(name)}_product")

    read = [f"{_own(name)}_product" for name in ("query", "key", "value")]
    read += [f"past_key_values.{block}.key", f"past_key_values.{block}.value"]
    read += ["lengths", "total", "cosine", "sine"]
    presents = f"present.{block}.key", f"present.{block}.value"
    counts = {"num_heads": HEADS, "kv_num_heads": KEY_HEADS, "do_rotary": 1}
    normal1, normal2, summed = _own("normal1"), _own("normal2"), _own("summed")
    return [
        _node("LayerNormalization", [x, _own("norm1")], normal1, epsilon=EPSILON),
        *(_product(normal1, name) for name in ("query", "key", "value")),
        _node("GroupQueryAttention", read, _own("attention"), *presents, domain="com.microsoft", **counts),
        _product(_own("attention"), "out"),
        _node("Add", [x, f"{_own('out')}_product"], summed),
        _node("LayerNormalization", [summed, _own("norm2")], normal2, epsilon=EPSILON),
        *(_product(normal2, name) for name in ("gate", "up")),
        _node("Sigmoid", [f"{_own('gate')}_product"], _own("share")),
        _node("Mul", [f"{_own('gate')}_product", _own("share")], _own("bent")),
        _node("Mul", [_own("bent"), f"{_own('up')}_product"], _own("inner")),
        _product(_own("inner"), "down"),
        _node("Add", [summed, f"{_own('down')}_product"], _own("rows")),
    ]
