"""What is left of the messages of ONNX Runtime and onnx. Oracles: words of errors that are provoked here."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from transforms.files.named_file import in_words
from transforms.files.runtime_message import said_by_runtime
from transforms.model.quiet_settings import quiet_settings

FLOAT, INT64, BFLOAT16, MS = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BFLOAT16, "com.microsoft"
RAW = re.compile(
    r"ONNXRuntimeError|onnxruntime::|\.(cc|h):\d|was false|Status Message|InferenceError|\n|std::"
)

Feed = Mapping[str, Any]


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def model(
    *nodes: onnx.NodeProto,
    constants: Feed | None = None,
    types: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    out: int = FLOAT,
    opset: int = 18,
    functions: Sequence[onnx.FunctionProto] = (),
    ir: int = 9,
) -> onnx.ModelProto:
    """Return a model whose inputs are what no node makes, and whose output is "y"."""
    constants, types, shapes = constants or {}, types or {}, shapes or {}
    made = {*constants, *(name for node in nodes for name in node.output)}
    bodies = [a.g for node in nodes for a in node.attribute if a.HasField("g")]
    nested = [node for body in bodies for node in body.node]
    made |= {name for node in nested for name in node.output} | {"", "missing"}
    made |= {value.name for body in bodies for value in body.input}
    read = dict.fromkeys(name for node in (*nodes, *nested) for name in node.input if name not in made)
    inputs = [
        helper.make_tensor_value_info(name, types.get(name, FLOAT), shapes.get(name, None)) for name in read
    ]
    output = helper.make_tensor_value_info("y", out, shapes.get("y", None))
    stored = [numpy_helper.from_array(np.asarray(values), name) for name, values in constants.items()]
    graph = helper.make_graph(nodes, "g", inputs, [output], stored)
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in (MS, "mine"))]
    return helper.make_model(graph, opset_imports=imports, functions=functions, ir_version=ir)


def node(op: str, *inputs: str, out: str = "y", name: str = "it", **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs, [out], name, **attributes)


def run(made: onnx.ModelProto | bytes | str, feed: Feed | None = None) -> Callable[[], object]:
    def _run() -> object:
        content = made.SerializeToString() if isinstance(made, onnx.ModelProto) else made
        return ort.InferenceSession(content, quiet_settings(), ["CPUExecutionProvider"]).run(None, feed or {})

    return _run


def checked(made: onnx.ModelProto) -> Callable[[], object]:
    return lambda: onnx.checker.check_model(made, full_check=True)


def inferred(made: onnx.ModelProto) -> Callable[[], object]:
    return lambda: onnx.shape_inference.infer_shapes(made, strict_mode=True, check_type=True)


def said(fails: Callable[[], object]) -> str:
    with pytest.raises(Exception) as caught:
        fails()
    return said_by_runtime(caught.value)


def stored_elsewhere(raw: bytes | None = None) -> onnx.ModelProto:
    """Return a model whose constant lies in a file that does not exist, or holds too few bytes."""
    made = model(node("Add", "x", "w"), constants={"w": zeros(3)})
    (weight,) = made.graph.initializer
    weight.ClearField("raw_data")
    if raw is not None:
        weight.raw_data = raw
        return made
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="no.bin")
    return made


def branches(inner: onnx.NodeProto) -> onnx.NodeProto:
    other = node("Relu", "x", out="o2", name="")
    out = [helper.make_empty_tensor_value_info(name) for name in ("o", "o2")]
    bodies = {
        f"{key}_branch": helper.make_graph([one], key, [], [value])
        for key, one, value in zip(("then", "else"), (inner, other), out, strict=True)
    }
    return helper.make_node("If", ["c"], ["y"], "chosen", **bodies)


def called() -> onnx.FunctionProto:
    inner = node("MatMul", "a", "b", out="c", name="inner")
    return helper.make_function("mine", "Twice", ["a", "b"], ["c"], [inner], [helper.make_opsetid("", 18)])


TWO, FOUR = np.array([2]), np.array([4])
X = {"x": zeros(2, 3)}
GATHER, GATHERED = model(node("Gather", "x", "i"), types={"i": INT64}), {**X, "i": FOUR}
BOUNDS = "indices element out of data bounds, idx=4 must be within the inclusive range [-2,1]"
OTHER_SHAPE = "Input shape:{2,3}, requested shape:{4}"
INCOMPATIBLE = "Incompatible dimensions for matrix multiplication"
CHOSEN = branches(node("Gather", "x", "i", out="o", name="inside"))
TURNED = branches(node("MatMul", "x", "w", out="o", name="inside"))
BOOL = {"c": TensorProto.BOOL}
SMALL = {"x": [2, 3], "w": [4, 3]}

CASES: Mapping[str, tuple[Callable[[], object], str]] = {
    "run": (run(GATHER, GATHERED), f"Gather 'it': {BOUNDS}"),
    "run unnamed": (
        run(model(node("Gather", "x", "i", name=""), types={"i": INT64}), GATHERED),
        f"Gather: {BOUNDS}",
    ),
    "run in a body": (
        run(model(CHOSEN, types={"i": INT64, **BOOL}), {**GATHERED, "c": np.array(True)}),
        f"If 'chosen': Gather 'inside': {BOUNDS}",
    ),
    "signature and condition": (
        run(model(node("Reshape", "x", "s", name="r: 1"), constants={"s": FOUR}), X),
        f"Reshape 'r: 1': The input tensor cannot be reshaped to the requested shape. {OTHER_SHAPE}",
    ),
    "const behind the signature": (
        run(
            model(node("MaxPool", "x", kernel_shape=[9, 9]), shapes={"x": ["a", "b", "c", "d"]}),
            {"x": zeros(1, 1, 2, 2)},
        ),
        "MaxPool 'it': Calculated output dimension is negative. Check kernel_shape, pads, strides and "
        "dilations",
    ),
    "template arguments": (
        run(model(node("Pad", "x", "p"), types={"p": INT64}), {**X, "p": TWO}),
        "Pad 'it': Pads tensor size should be equal to twice the input dimension count",
    ),
    "short place": (
        run(model(node("MatMul", "x", "w")), {**X, "w": zeros(4, 3)}),
        "MatMul 'it': MatMul dimension mismatch",
    ),
    "code within": (
        run(model(node("ConstantOfShape", "s"), types={"s": INT64}), {"s": np.array([-1])}),
        "ConstantOfShape 'it': Tensor shape.Size() must be >= 0",
    ),
    "when it is opened": (
        run(
            model(
                node("Resize", "x", "", "s"), constants={"s": np.float32([1, -2])}, shapes={"x": ["a", "b"]}
            )
        ),
        "Scale value should be greater than 0",
    ),
    "memory": (
        run(model(node("Expand", "x", "s"), types={"s": INT64}), {**X, "s": np.array([1 << 43, 2, 3])}),
        "Expand 'it': Failed to allocate memory for requested buffer of size 211106232532992",
    ),
    "overflow": (
        run(model(node("Expand", "x", "s"), types={"s": INT64}), {**X, "s": np.array([1 << 62, 2, 3])}),
        "Expand 'it': Integer overflow",
    ),
    "no kernel": (
        run(model(node("MatMul", "x", "x"), types={"x": BFLOAT16}, out=BFLOAT16)),
        "Could not find an implementation for MatMul(13) node with name 'it'",
    ),
    "unknown operator": (
        run(model(node("Odd", "x"))),
        "Odd 'it': No Op registered for Odd with domain_version of 18",
    ),
    "unknown domain": (
        run(model(node("Odd", "x", domain="mine"))),
        "mine:Odd(-1) is not a registered function/op",
    ),
    "no import": (
        run(model(node("Odd", "x", domain="other"))),
        "Odd 'it': No opset import for domain 'other'",
    ),
    "opset": (
        run(model(node("Relu", "x"), opset=99)),
        "Opset 99 is under development and support for this is limited. Current official support for "
        "domain ai.onnx is till opset ",
    ),
    "ir version": (
        run(model(node("Relu", "x"), ir=99)),
        "Unsupported model IR version: 99, max supported IR version: ",
    ),
    "types": (
        run(model(node("Add", "x", "i"), types={"i": INT64})),
        "Type parameter (T) of Optype (Add) bound to different types (tensor(float) and tensor(int64) in "
        "node (it)",
    ),
    "type": (
        run(model(node("Sqrt", "x"), types={"x": INT64})),
        "Type 'tensor(int64)' of input parameter (x) of operator (Sqrt) in node (it) is invalid",
    ),
    "attribute": (
        run(model(node("Relu", "x", odd=3))),
        "Relu 'it': Unrecognized attribute: odd for operator Relu",
    ),
    "number of inputs": (
        run(model(node("Relu", "x", "x"))),
        "Relu 'it': has input size 2 not in range [min=1, max=1]",
    ),
    "no such input": (
        run(model(node("Relu", "missing"))),
        "Node input 'missing' is not a graph input, initializer, or output of a previous node",
    ),
    "no such output": (
        run(model(node("Relu", "x", out="z"))),
        "Graph output (y) does not exist in the graph",
    ),
    "cycle": (
        run(model(node("Add", "x", "y", out="a"), node("Relu", "a", name="b"))),
        "the graph is not acyclic",
    ),
    "shapes": (
        run(model(node("MatMul", "x", "w"), shapes=SMALL)),
        f"MatMul 'it': {INCOMPATIBLE}",
    ),
    "fed size": (
        run(model(node("Relu", "x"), shapes=SMALL), {"x": zeros(2, 4)}),
        "Got invalid dimensions for input: x for the following indices index: 1 Got: 4 Expected: 3",
    ),
    "fed type": (
        run(model(node("Relu", "x")), {"x": np.zeros(3)}),
        "Unexpected input data type. Actual: (tensor(double)) , expected: (tensor(float))",
    ),
    "protobuf": (run(b"\xff\xff"), "Failed to load model because protobuf parsing failed"),
    "no file": (run("/no/m.onnx"), "Load model /no/m.onnx failed. File doesn't exist"),
    "external data": (run(stored_elsewhere()), "External data path validation failed for initializer: w."),
    "stored bytes": (
        run(stored_elsewhere(b"1234")),
        "Initializer 'w': raw_data size (4 bytes) does not match expected size from shape and data type "
        "(12 bytes)",
    ),
    "fused operator": (
        run(
            model(node("SkipLayerNormalization", "x", "s", "g", domain=MS), constants={"g": zeros(8)}),
            {"x": zeros(1, 2, 8), "s": zeros(1, 3, 8)},
        ),
        "SkipLayerNormalization 'it': last two dimensions of skip needs to be same as input",
    ),
    "checker": (
        checked(model(node("Odd", "x"), shapes={"x": [1], "y": [1]})),
        "Odd 'it': No Op registered for Odd with domain_version of 18",
    ),
    "checker in a body": (
        checked(
            model(
                branches(node("Relu", "missing", out="o")),
                shapes={"x": [1], "c": [], "y": [1]},
                types=BOOL,
            )
        ),
        "If 'chosen': Nodes in a graph must be topologically sorted, however input 'missing' of node: name: "
        "it OpType: Relu is not output of any previous nodes",
    ),
    "checker of shapes": (
        checked(model(node("MatMul", "x", "w"), shapes={**SMALL, "y": [2, 3]})),
        f"MatMul 'it': {INCOMPATIBLE}",
    ),
    "inference": (
        inferred(
            model(node("MatMul", "x", "w", out="a", name="one"), node("MatMul", "x", "w"), shapes=SMALL)
        ),
        f"MatMul 'one': {INCOMPATIBLE}",
    ),
    "inference in a body": (
        inferred(model(TURNED, shapes=SMALL, types=BOOL)),
        f"If 'chosen': MatMul 'inside': {INCOMPATIBLE}",
    ),
    "inference in a function": (
        inferred(model(node("Twice", "x", "w", domain="mine"), shapes=SMALL, functions=[called()])),
        f"Twice 'it': MatMul 'inner': {INCOMPATIBLE}",
    ),
    "inferred type": (
        inferred(model(node("Sqrt", "x"), types={"x": INT64}, shapes={"x": [1]})),
        "Sqrt 'it': X typestr: T, has unsupported type: tensor(int64)",
    ),
    "converter": (
        lambda: onnx.version_converter.convert_version(
            model(node("Gelu", "x"), shapes={"x": [1]}, opset=20), 18
        ),
        "No Previous Version of Gelu exists",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_is_left(case: str) -> None:
    fails, words = CASES[case]
    found = said(fails)
    assert found.startswith(words) and not RAW.search(found)
    assert case in ("opset", "ir version", "external data") or found == words


NODE = "Non-zero status code returned while running {} node. Name:'{}' Status Message: "
PATH = "/onnxruntime_src/onnxruntime/core/"


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (
            f"{NODE.format('Slice', 'it')}{PATH}a.cc:9 onnxruntime::(anonymous namespace)::F<std::vector<T> "
            "(*)(int)>::operator()(std::pair<int, int>) const [with T = X<int>[2]] Too long. shape={1}",
            "Slice 'it': Too long. shape={1}",
        ),
        (
            f"{PATH}graph/graph.cc:1357 onnxruntime::Graph::Graph(const onnxruntime::Model&, bool) "
            "[ONNXRuntimeError] : 1 : FAIL : Node (it) Op (Conv) [ShapeInferenceError] Too small",
            "Conv 'it': Too small",
        ),
        (f"{PATH}a.cc:9 void f(int) status.IsOK() was false. ", "status.IsOK() was false"),
        (f"{PATH}a.cc:9 auto f(int)::<lambda(T)>::operator()(T) const Too small", "Too small"),
        (
            "D:\\a\\_work\\1\\s\\onnxruntime\\core\\a.cc:91 onnxruntime::R::R x == y was false. Too small",
            "Too small",
        ),
        (
            f"{PATH}cuda_call.cc:1 std::conditional_t<B, void, S> onnxruntime::CudaCall(E, int) [with E = "
            "cudaError] CUDA failure 2: out of memory ; GPU=0 ; hostname=vm ; line=355 ; expr=f(a);",
            "CUDA failure 2: out of memory",
        ),
        (f"{NODE.format('Relu', 'it')}Too small\nStacktrace:\n/lib/a.so(+0x1)\n", "Relu 'it': Too small"),
        (NODE.format("Relu", "it's"), "Relu 'it's'"),
        ("", "str"),
        ("[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : ", "not implemented, ONNX Runtime gives no reason"),
    ],
)
def test_messages_of_other_builds(message: str, words: str) -> None:
    assert said_by_runtime(message) == words


def test_errors_of_others_stay_as_they_are() -> None:
    words = "Error: 'model.h:12 x' has no [ShapeInferenceError] it."
    assert said_by_runtime(ValueError(words)) == words
    assert said_by_runtime(KeyError()) == "KeyError"


def test_readers_name_no_class_of_the_libraries() -> None:
    fails, words = CASES["inference"]
    with pytest.raises(onnx.shape_inference.InferenceError) as caught:
        fails()
    assert in_words(caught.value) == words
    assert in_words(KeyError("x")) == "'x' (KeyError)"
