"""Hostile models, a function of a random generator each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

from tests.attack.hostile_case import Case, Random, huge, on_model, pick
from tests.helpers import bombs, build
from tests.helpers.bombs import constant, folded

node = helper.make_node

NAMES = (
    "a\nb", "a\r\nDone.", "\x1b[2J\x1b[31mred", "\x1b]0;title\x07", "a\0b", "../../x", "/etc/passwd", "", " ",
    "\u202egnp.exe", "\u2028", "n" * 100_000, "*", "[", "%s%n", "{0}", "\ud7ff\U0010ffff", "__proto__",
    "'\"`$(id)",
)  # fmt: skip


def _folding(folder: Path, random: Random) -> Case:
    """A constant that folding would make, of any size."""
    size, large = huge(random, 20), constant
    halves = [1 << int(random.integers(10, 32)) for _ in range(2)]
    fills = (
        ([node("Range", ["a", "b", "c"], ["big"])], [large("a", 0), large("b", size), large("c", 1)]),
        ([node("Range", ["a", "b", "c"], ["big"])], [large("a", size), large("b", 0), large("c", -1)]),
        ([node("ConstantOfShape", ["s"], ["big"])], [large("s", halves)]),
        ([node("Expand", ["v", "s"], ["big"])], [large("v", [1]), large("s", [size])]),
        ([node("Tile", ["v", "s"], ["big"])], [large("v", [1, 2]), large("s", [size])]),
        ([node("Pad", ["v", "s"], ["big"])], [large("v", [1, 2]), large("s", [size, size])]),
        ([node("OneHot", ["v", "d", "t"], ["big"])], [large("v", [1]), large("d", size), large("t", [0, 1])]),
        ([node("EyeLike", ["v"], ["e"]), node("MatMul", ["e", "e"], ["big"])], [large("v", [[1]])]),
        (
            [node("Mul", ["s", "s"], ["t"]), node("ConstantOfShape", ["t"], ["big"])],
            [large("s", [1 << int(random.integers(10, 32))])],
        ),
        ([node("BlackmanWindow", ["s"], ["big"])], [large("s", size)]),
    )
    nodes, initializers = pick(fills, random)
    return on_model(folder, folded(nodes, initializers), random)


def _functions(folder: Path, random: Random) -> Case:
    depth, calls = (int(n) for n in random.integers(1, 12, 2))
    if random.random() < 0.2:
        depth, calls = int(random.integers(90, 3000)), 1
    built = bombs.functions(depth, calls, weight=int(pick((0, 0, 4, 1 << 14), random)))
    if random.random() < 0.2:
        one = built.functions[int(random.integers(0, len(built.functions)))].node[-1]
        one.domain, one.op_type = "local", f"f{int(random.integers(0, depth))}"
    return on_model(folder, built, random)


def _sparse(folder: Path, random: Random) -> Case:
    dims = [huge(random, 0, 34) for _ in range(int(random.integers(1, 4)))]
    indices = [int(random.choice([0, 1, -1, 5, 1 << 40, -(1 << 63)]))]
    tensor = bombs.sparse(dims, indices)
    if random.random() < 0.5:
        return on_model(folder, folded([node("Constant", [], ["big"], sparse_value=tensor)], []), random)
    built = folded([], [])
    built.graph.sparse_initializer.append(tensor)
    return on_model(folder, built, random)


def _external(folder: Path, random: Random) -> Case:
    """Weights in a file that is none of the model's: by a path, which has to fail, or by the user's link."""
    built = build.dense()
    weight = built.graph.initializer[0]
    place = pick(("../secret.data", "sub/../../secret.data", "/dev/zero", "/etc/hostname", ".", "", "a\0b",
                  "link.data", "up/secret.data", "up/../../secret.data", "model.onnx/", "hole.data",
                  "\\\\host\\share", "file:///etc/hostname"),
                 random)  # fmt: skip
    target = pick(("../secret.data", "/dev/zero", "link.data", "gone"), random)
    (folder / "link.data").symlink_to(target)
    (folder / "up").symlink_to("..")
    with (folder / "hole.data").open("wb") as file:
        file.truncate(1 << 38)
    if place == "hole.data":
        weight.dims[:] = [1 << 36]
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value=str(place))
    if random.random() < 0.3:
        weight.external_data.add(key="length", value=str(huge(random)))
    if random.random() < 0.3:
        weight.external_data.add(key="offset", value=str(pick((-1, "x", 1 << 70, "9" * 5000), random)))
    follows = place == "up/secret.data" or (place == "link.data" and target == "../secret.data")
    case = on_model(folder, built, random, must_fail=not follows)
    return replace(case, follows=follows)


def _names(folder: Path, random: Random) -> Case:
    """Names that break lines, terminals, paths or patterns, somewhere."""
    built = build.dense(layers=2)
    name = str(pick(NAMES, random))
    for one in list(built.graph.node):
        one.name = name if random.random() < 0.5 else one.name
    old = str(pick(("x", "y", "weight0", "matmul0_out", "relu0_out"), random))
    for one in built.graph.node:
        one.input[:] = [name if n == old else n for n in one.input]
        one.output[:] = [name if n == old else n for n in one.output]
    for part in (*built.graph.input, *built.graph.output, *built.graph.initializer):
        part.name = name if part.name == old and random.random() < 0.9 else part.name
    built.graph.name, built.producer_name, built.graph.doc_string = name, name, name
    if random.random() < 0.2:
        built.metadata_props.add(key=name, value=name)
    return on_model(folder, built, random)


def _tangle(folder: Path, random: Random) -> Case:
    """Cycles, names twice, nodes out of order, inputs from nowhere."""
    built = build.dense(layers=3)
    nodes = built.graph.node
    for _ in range(int(random.integers(1, 4))):
        first, second = (int(n) for n in random.integers(0, len(nodes), 2))
        kind = int(random.integers(0, 6))
        if kind == 0:
            nodes[first].input[0] = nodes[second].output[0]
        elif kind == 1:
            nodes[first].output[0] = nodes[second].output[0]
        elif kind == 2:
            nodes.add().CopyFrom(nodes[first])
        elif kind == 3:
            built.graph.initializer.add().CopyFrom(built.graph.initializer[0])
        elif kind == 4:
            nodes[first].input.append(nodes[first].output[0])
        else:
            built.graph.output.add().CopyFrom(built.graph.input[0])
    return on_model(folder, built, random)


def _sizes(folder: Path, random: Random) -> Case:
    """Dimensions that are negative, overflow when multiplied, or are no number at all."""
    built = build.dense()
    dims = [
        int(pick((0, -1, -(1 << 63), 1 << 31, 1 << 32, 1 << 62, (1 << 63) - 1), random)) for _ in range(2)
    ]
    where = int(random.integers(0, 4))
    if where == 0:
        built.graph.initializer[0].dims[:] = dims
        if random.random() < 0.5:
            built.graph.initializer[0].ClearField("raw_data")
    elif where == 1:
        built.graph.input[0].CopyFrom(build.value("x", dims))
    elif where == 2:
        built.graph.value_info.append(build.value("matmul0_out", dims))
    else:
        built.graph.initializer[0].dims[:] = [1] * 5000
    return on_model(folder, built, random)


def _attributes(folder: Path, random: Random) -> Case:
    """Attributes that no operator can mean."""
    built = build.dense()
    size = int(pick((-1, 0, 1 << 30, 1 << 40, -(1 << 63), (1 << 63) - 1), random))
    odd = pick((
        node("Split", ["x"], ["p", "q"], axis=size),
        node("Split", ["x"], ["p"], num_outputs=size),
        node("Concat", ["x", "x"], ["p"], axis=size),
        node("Softmax", ["x"], ["p"], axis=size),
        node("Transpose", ["x"], ["p"], perm=[size, 0]),
        node("Cast", ["x"], ["p"], to=size % (1 << 31)),
        node("RandomNormal", [], ["p"], shape=[1 << 20, 1 << 20]),
        node("ConstantOfShape", ["x"], ["p"], value=constant("v", [[1, 2], [3, 4]])),
        node("LeakyRelu", ["x"], ["p"], alpha=float("nan")),
        node("MaxPool", ["x"], ["p"], kernel_shape=[size, size], strides=[size, 0], pads=[size] * 4),
        node("LSTM", ["x", "x", "x"], ["p"], hidden_size=size),
        node("Einsum", ["x", "x"], ["p"], equation="".join(chr(97 + i % 26) for i in range(3000))),
        node("Gather", ["x", "x"], ["p"], axis=size),
        node("Constant", [], ["p"], value_ints=[1] * 200_000),
        node("Relu", ["x"], ["p"], **{str(pick(NAMES, random)) or "e": 1}),
        node("Unknown", ["x"], ["p"], domain=str(pick(("", "evil", "a\nb", "com.microsoft"), random))),
    ), random)  # fmt: skip
    built.graph.node.insert(0, odd)
    if random.random() < 0.5 and odd.output[0] == "p":
        built.graph.node[1].input[0] = "p"
    built.opset_import[0].version = int(pick((17, 18, 21), random))
    return on_model(folder, built, random)


def _field(number: int, content: bytes) -> bytes:
    length, size = len(content), b""
    while length >= 128:
        size, length = size + bytes([length & 127 | 128]), length >> 7
    return bytes([number << 3 | 2]) + size + bytes([length]) + content


def _deep(folder: Path, random: Random) -> Case:
    """Bodies in bodies, or attributes in attributes, beyond and just within what protobuf reads."""
    depth = int(pick((20, 28, 30, 31, 32, 33, 34, 100, 5000), random))
    body = helper.make_graph(
        [node("Identity", ["x"], ["o"])], "b", [], [build.value("o", None)]
    ).SerializeToString()
    yes = constant("t", True, bool)
    for _ in range(depth):
        then = _field(5, b"\x0a\x0bthen_branch" + _field(6, body) + b"\xa0\x01\x05")
        other = _field(
            5, b"\x0a\x0belse_branch" + _field(6, body if depth < 12 else _leaf()) + b"\xa0\x01\x05"
        )
        inner = _field(1, b"\x0a\x01t\x12\x01o\x22\x02If" + then + other)
        body = inner + b"\x12\x01b" + _field(12, build.value("o", None).SerializeToString())
    whole = build.dense()
    whole.graph.initializer.append(yes)
    content = whole.SerializeToString()
    extra = _field(7, inner.replace(b"\x12\x01o\x22\x02If", b"\x12\x01z\x22\x02If", 1))
    return on_model(folder, content + extra, random)


def _leaf() -> bytes:
    return helper.make_graph(
        [node("Identity", ["x"], ["o"])], "b", [], [build.value("o", None)]
    ).SerializeToString()


def _versions(folder: Path, random: Random) -> Case:
    built = build.dense()
    imports = built.opset_import
    imports[0].version = int(pick((0, -1, 1, 6, 1 << 31, 1 << 40, (1 << 63) - 1), random))
    built.ir_version = int(pick((0, -1, 3, 8, 99, (1 << 63) - 1), random))
    if random.random() < 0.5:
        imports.append(helper.make_opsetid(str(pick(NAMES, random)), 1))
    return on_model(folder, built, random)


def _many(folder: Path, random: Random) -> Case:
    """Thousands of the same: values, imports, metadata, outputs, names that differ in a digit."""
    built = build.dense()
    kind = int(random.integers(0, 5))
    if kind == 0:
        built.opset_import.extend([helper.make_opsetid(f"d{i}", 1) for i in range(3000)])
    elif kind == 1:
        built.graph.node.extend([node("Relu", ["x"], ["same"], "same") for _ in range(2000)])
    elif kind == 2:
        for i in range(3000):
            built.metadata_props.add(key=f"k{i % 3}", value="v" * 50)
    elif kind == 3:
        built.graph.value_info.extend([build.value("matmul0_out", [i, i]) for i in range(3000)])
    else:
        built.graph.node.append(node("Concat", ["x"] * 20_000, ["wide"], axis=0))
    return on_model(folder, built, random)


def _types(folder: Path, random: Random) -> Case:
    """Element types that do not exist, or do not go with what is stored."""
    built = build.dense()
    kind = int(pick((0, 8, 14, 17, 20, 22, 23, 26, 99, 1 << 30), random))
    if random.random() < 0.5:
        built.graph.initializer[0].data_type = kind
    if random.random() < 0.5:
        built.graph.input[0].type.tensor_type.elem_type = kind
    if random.random() < 0.3:
        built.graph.initializer[0].raw_data = np.full(256, np.nan, np.float32).tobytes()
    if random.random() < 0.2:
        built.graph.output[0].type.sequence_type.elem_type.tensor_type.elem_type = kind
    return on_model(folder, built, random)


KINDS = (
    _folding, _folding, _functions, _sparse, _external, _names, _tangle, _sizes, _attributes, _attributes,
    _deep, _versions, _many, _types,
)  # fmt: skip
