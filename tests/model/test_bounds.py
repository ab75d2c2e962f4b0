"""What a model comes to is counted before it is made. Oracle: the arithmetic of each model, and the clock."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

from tests.helpers import bombs, build
from tests.helpers.bombs import constant, folded, functions
from tests.helpers.refusal import Scene
from tools import quantize
from transforms import model_io
from transforms.model.bounds import PROTOBUF_LIMIT
from transforms.model.constant_size import LARGEST
from transforms.model.local_functions import MOST_NODES
from transforms.model.model_error import ModelError
from transforms.run.run_model import open_model
from transforms.runtime import session
from transforms.runtime.devices import start_on

HUGE = 1 << 40
node = helper.make_node


@pytest.fixture(autouse=True)
def clock() -> Iterator[None]:
    start = time.monotonic()
    yield
    assert time.monotonic() - start < 10


def chained(power: int) -> onnx.ModelProto:
    """A size that only arithmetic in floats knows: shape inference does not follow it."""
    nodes = [
        node("Pow", ["two", "power"], ["float_size"], "pow"),
        node("Cast", ["float_size"], ["size"], "whole", to=7),
        node("ConstantOfShape", ["size"], ["big"], "fill"),
    ]
    return folded(nodes, [constant("two", [2], np.float32), constant("power", [power], np.float32)])


def in_a_branch() -> onnx.ModelProto:
    body = helper.make_graph(
        [node("Expand", ["one", "size"], ["out"], "fill")], "body", [], [build.value("out", None)]
    )
    nodes = [node("If", ["yes"], ["big"], "if", then_branch=body, else_branch=body)]
    return folded(
        nodes, [constant("yes", True, bool), constant("one", 1, np.float32), constant("size", [HUGE])]
    )


CONSTANTS = {
    "range": folded(
        [node("Range", ["a", "b", "c"], ["big"], "fill")],
        [constant("a", 0), constant("b", HUGE), constant("c", 1)],
    ),
    "range of arrays": folded(
        [node("Range", ["a", "b", "c"], ["big"], "fill")],
        [constant("a", [0]), constant("b", [HUGE]), constant("c", [1])],
    ),
    "shape": folded([node("ConstantOfShape", ["s"], ["big"], "fill")], [constant("s", [1 << 20, 1 << 20])]),
    "overflow": folded(
        [node("ConstantOfShape", ["s"], ["big"], "fill")], [constant("s", [1 << 32, 1 << 32])]
    ),
    "expand": folded(
        [node("Expand", ["v", "s"], ["big"], "fill")], [constant("v", [0]), constant("s", [HUGE])]
    ),
    "tile": folded([node("Tile", ["v", "s"], ["big"], "fill")], [constant("v", [0]), constant("s", [HUGE])]),
    "pad": folded([node("Pad", ["v", "s"], ["big"], "fill")], [constant("v", [0]), constant("s", [0, HUGE])]),
    "one hot": folded(
        [node("OneHot", ["v", "d", "two"], ["big"], "fill")],
        [constant("v", [0]), constant("d", HUGE), constant("two", [0, 1])],
    ),
    "resize": folded(
        [node("Resize", ["v", "", "s"], ["big"], "fill")],
        [constant("v", np.ones((1, 1, 2, 2)), np.float32), constant("s", [1, 1, 1e6, 1e6], np.float32)],
    ),
    "product": folded(
        [node("MatMul", ["v", "w"], ["big"], "fill")],
        [constant("v", np.ones((1 << 15, 1)), np.float32), constant("w", np.ones((1, 1 << 15)), np.float32)],
    ),
    "arithmetic": chained(40),
    "branch": in_a_branch(),
}


@pytest.mark.parametrize("kind", CONSTANTS)
def test_large_constant_is_refused_by_each_way_into_the_runtime(tmp_path: Path, kind: str) -> None:
    path = build.save(CONSTANTS[kind], tmp_path / "model.onnx")
    for open_it in (model_io.load, open_model):
        with pytest.raises(ValueError, match=r"model\.onnx.*'fill'.*bytes, at most 536,870,912"):
            open_it(path)


def test_constants_that_are_large_together_are_refused() -> None:
    nodes = [node("ConstantOfShape", ["s"], ["big"], "fill")]
    nodes += [node("Neg", ["big" if i == 0 else f"n{i - 1}"], [f"n{i}"], f"neg{i}") for i in range(40)]
    built = folded(nodes, [constant("s", [LARGEST // 4])])
    with pytest.raises(ValueError, match=r"'neg7' \(Neg\): constants up to here come to 4,831,838,208 bytes"):
        model_io.load(built)


def test_range_of_a_function_is_counted() -> None:
    built = functions(2, 2, nodes=[
        node("Constant", [], ["a"], value_int=0),
        node("Constant", [], ["b"], value_int=HUGE),
        node("Constant", [], ["c"], value_int=1),
        node("Range", ["a", "b", "c"], ["r"], "fill"),
    ])  # fmt: skip
    with pytest.raises(ValueError, match=r"Range.*bytes, at most"):
        model_io.load(built)


@pytest.mark.parametrize("power", [3, 20])
def test_constants_of_ordinary_size_pass(tmp_path: Path, power: int) -> None:
    path = build.save(chained(power), tmp_path / "model.onnx")
    assert model_io.load(path).nodes
    opened = open_model(path)
    assert opened.run({"x": np.zeros((1, 16), np.float32)})["y"].shape == (1, 16)


def resized(side: float) -> onnx.ModelProto:
    """Stored position embeddings, 2 MiB, whose sizes before and after a Resize only arithmetic knows."""
    nodes = [
        node("Pow", ["count", "half"], ["root"]),
        node("Cast", ["root"], ["side"], to=7),
        node("Concat", ["one", "channels", "side", "side"], ["shape"], axis=0),
        node("Reshape", ["embeddings", "shape"], ["square"], "square"),
        node("Sqrt", ["wanted"], ["wanted_root"]),
        node("Cast", ["wanted_root"], ["wanted_side"], to=7),
        node("Concat", ["one", "channels", "wanted_side", "wanted_side"], ["sizes"], axis=0),
        node("Resize", ["square", "", "", "sizes"], ["big"], "resize", mode="cubic"),
    ]
    embeddings = constant("embeddings", np.zeros((1, 1024 * 512)), np.float32)
    numbers = {"count": [1024], "half": [0.5], "wanted": [side**2]}
    floats = [constant(name, value, np.float32) for name, value in numbers.items()]
    return folded(nodes, [embeddings, *floats, constant("one", [1]), constant("channels", [512])])


def test_size_of_a_large_constant_follows_from_small_ones() -> None:
    assert model_io.load(resized(16)).nodes
    with pytest.raises(ValueError, match=r"'resize' \(Resize\) makes a constant of 2,147,483,648 bytes"):
        model_io.load(resized(1024))


def test_size_does_not_ask_for_numbers_that_the_runtime_cannot_compute() -> None:
    """It has no Expand of bfloat16; the shape is made of int64 alone."""
    nodes = [
        node("Cast", ["w"], ["narrow"], to=16),
        node("Mul", ["narrow", "narrow"], ["square"]),
        node("Mul", ["two", "two"], ["shape"]),
        node("Expand", ["square", "shape"], ["wide"], "expand"),
        node("Cast", ["wide"], ["big"], to=1),
    ]
    built = folded(nodes, [constant("w", np.ones((1, 1)), np.float32), constant("two", [2, 2])])
    assert model_io.load(built).nodes


def test_weight_of_any_size_may_be_cast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transforms.model.constant_size.LARGEST", 1 << 10)
    nodes = [node("Cast", ["w"], ["big"], "cast", to=1), node("Cast", ["big"], ["d"], "double", to=11)]
    built = folded(nodes, [constant("w", np.ones((100, 100)), np.int8)])
    assert model_io.load(built).nodes


def test_range_that_inputs_decide_passes() -> None:
    nodes = [node("Shape", ["x"], ["s"]), node("ConstantOfShape", ["s"], ["big"], "fill")]
    assert model_io.load(folded(nodes, [])).nodes


# Local functions


@pytest.mark.parametrize(("depth", "calls"), [(10, 10), (60, 2), (90, 90)])
def test_functions_that_multiply_are_counted(tmp_path: Path, depth: int, calls: int) -> None:
    path = build.save(functions(depth, calls), tmp_path / "model.onnx")
    for open_it in (model_io.load, open_model):
        with pytest.raises(
            ValueError, match=r"model\.onnx.*nodes when functions are inlined, at most 32,768"
        ):
            open_it(path)


def test_functions_up_to_the_limit_are_inlined() -> None:
    assert MOST_NODES > 10**4
    assert len(model_io.load(functions(4, 10)).nodes) == 1002  # 10^3 Relus, MatMul and Relu


def test_weights_in_functions_are_counted() -> None:
    with pytest.raises(ValueError, match=r"bytes when functions are inlined, at most 268,435,456"):
        model_io.load(functions(4, 20, weight=1 << 17))


def test_attribute_that_functions_copy_is_counted() -> None:
    built = functions(3, 20)
    inner = built.functions[0]
    inner.attribute.append("weight")
    heavy = node("Constant", [], ["c"])
    heavy.attribute.add(name="value", ref_attr_name="weight", type=onnx.AttributeProto.TENSOR)
    inner.node.insert(0, heavy)
    for function in built.functions[1:]:
        function.attribute.append("weight")
        for call in function.node:
            call.attribute.add(name="weight", ref_attr_name="weight", type=onnx.AttributeProto.TENSOR)
    value = constant("w", np.zeros(1 << 18), np.float32)
    built.graph.node[0].attribute.append(helper.make_attribute("weight", value))
    with pytest.raises(
        ValueError, match=r"the graph comes to 419,\d\d\d,\d\d\d bytes when functions are inlined"
    ):
        model_io.load(built)


def test_function_that_calls_itself() -> None:
    built = functions(3, 2)
    built.functions[0].node[0].op_type, built.functions[0].node[0].domain = "f2", "local"
    with pytest.raises(ValueError, match=r"function 'f\d' calls itself"):
        model_io.load(built)


def test_functions_that_call_each_other_in_a_long_row() -> None:
    with pytest.raises(ValueError, match=r"101 functions that call each other .* at most 100"):
        model_io.load(functions(5000, 1))


def test_bodies_in_bodies_of_functions() -> None:
    built = functions(20, 1)
    for function in built.functions[1:]:
        call = function.node[0]
        body = helper.make_graph([call], "body", [], [build.value("Y", None)])
        yes = node("Constant", [], ["yes"], value=constant("yes", True, bool))
        inner = helper.make_graph(
            [node("If", ["yes"], ["Y"], then_branch=body, else_branch=body)],
            "inner",
            [],
            [build.value("Y", None)],
        )
        del function.node[:]
        function.node.extend([yes, node("If", ["yes"], ["Y"], then_branch=inner, else_branch=body)])
    with pytest.raises(ValueError, match=r"when functions are inlined"):
        model_io.load(built)


# Sparse tensors


def with_sparse(dims: tuple[int, ...], place: str, indices: object = (0,)) -> onnx.ModelProto:
    big = bombs.sparse(dims, indices)
    if place == "initializer":
        built = folded([], [])
        built.graph.sparse_initializer.append(big)
        return built
    fill = node("Constant", [], ["big"], "fill", sparse_value=big)
    if place == "attribute":
        return folded([fill], [])
    if place == "function":
        return functions(2, 2, nodes=[fill, node("Size", ["big"], ["size"])])
    body = helper.make_graph([node("Identity", ["big"], ["out"])], "body", [], [build.value("out", None)])
    body.sparse_initializer.append(big)
    choice = node("If", ["yes"], ["chosen"], "if", then_branch=body, else_branch=body)
    built = folded([choice], [constant("yes", True, bool)])
    built.graph.node[1].input[0] = "chosen"
    return built


PLACES = ("initializer", "attribute", "function", "body")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dims", [(1 << 31,), (1 << 20, 1 << 20), (1 << 62, 4)], ids=str)
def test_large_sparse_tensor(tmp_path: Path, place: str, dims: tuple[int, ...]) -> None:
    path = build.save(with_sparse(dims, place), tmp_path / "model.onnx")
    assert path.stat().st_size < 3500
    for open_it in (model_io.load, open_model):
        with pytest.raises(ValueError, match=r"model\.onnx.*sparse .* bytes when dense"):
            open_it(path)


@pytest.mark.parametrize("place", PLACES)
def test_small_sparse_tensor_becomes_dense(place: str) -> None:
    graph = model_io.load(with_sparse((6,), place, (2,)))
    assert "sparse" not in str(model_io.graph_proto.export_model(graph))


def test_runtime_gets_no_sparse_constant_in_a_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime 1.32 reads freed memory when it inlines one, and crashes now and then."""
    given: list[onnx.ModelProto] = []

    def start(provider: str, model: str | bytes, *rest: Any) -> ort.InferenceSession:
        given.append(onnx.load_from_string(Path(model).read_bytes() if isinstance(model, str) else model))
        return start_on(provider, model, *rest)

    monkeypatch.setattr(session, "start_on", start)
    built = with_sparse((6,), "function", (2,))
    model_io.load(built)
    open_model(build.save(built, tmp_path / "model.onnx"))
    assert len(given) > 1 and not any("sparse" in str(model) for model in given)


@pytest.mark.parametrize("indices", [(-1,), (6,), ((2, 0),), ((3, 1),), (((0,),),)], ids=str)
@pytest.mark.parametrize("place", PLACES)
def test_sparse_index_outside(place: str, indices: object) -> None:
    dims = (3, 2) if np.ndim(indices) > 1 else (6,)
    if indices == ((2, 0),):
        assert model_io.load(with_sparse(dims, place, indices)).nodes
        return
    with pytest.raises(ValueError, match=r"sparse .* ind"):
        model_io.load(with_sparse(dims, place, indices))


def escaping(place: str) -> onnx.ModelProto:
    """A sparse tensor or function whose values lie in a file outside of the model's folder."""
    built = with_sparse((6,), "initializer" if place == "indices" else place)
    if place == "initializer":
        tensor = built.graph.sparse_initializer[0].values
    elif place == "indices":
        tensor = built.graph.sparse_initializer[0].indices
    elif place == "attribute":
        tensor = built.graph.node[0].attribute[0].sparse_tensor.values
    elif place == "function":
        tensor = built.functions[0].node[0].attribute[0].sparse_tensor.values
    else:
        tensor = built.graph.node[0].attribute[0].g.sparse_initializer[0].values
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../secret.data")
    return built


@pytest.mark.parametrize("place", (*PLACES, "indices"))
def test_sparse_values_outside_of_the_folder(scene: Scene, place: str) -> None:
    (scene.folder / "secret.data").write_bytes(bytes(8))
    scene.write(escaping(place))
    message = scene.refused()
    assert "secret.data" in message and "outside the folder" in message


def test_function_with_external_weight(tmp_path: Path) -> None:
    """Oracle: the same function with the weight inside."""
    built = functions(1, 1, weight=8)
    tensor = built.functions[0].node[0].attribute[0].t
    (tmp_path / "weights.data").write_bytes(tensor.raw_data)
    expected = model_io.graph_proto.export_model(model_io.load(built)).graph
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="weights.data")
    path = build.save(built, tmp_path / "model.onnx")
    assert model_io.graph_proto.export_model(model_io.load(path)).graph == expected
    tensor.external_data[0].value = "../weights.data"
    with pytest.raises(ValueError, match="lies outside the folder"):
        model_io.load(build.save(built, path))


# Files


def test_tensors_that_share_external_data_many_times(tmp_path: Path) -> None:
    built = build.dense(64, layers=40)
    build.save_external(built, tmp_path / "model.onnx", "weights.data")
    build.edit_external(tmp_path / "model.onnx", offset="0")
    (tmp_path / "weights.data").write_bytes(bytes(64 * 64 * 4))
    with pytest.raises(ValueError, match=r"tensors claim 655,360 bytes, more than 16 times the 16,384"):
        model_io.load(tmp_path / "model.onnx")


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"offset": "x"}, "has the offset 'x', which is not a number"),
        ({"length": ""}, "has the length '', which is not a number"),
        ({"offset": str(1 << 70)}, f"has the offset {1 << 70}, a number beyond 64 bits"),
        ({"length": "9" * 5000}, f"has the length {'9' * 40}..., a number beyond 64 bits"),
        ({"offset": "-4"}, "claims bytes -4 to 16380, the file has 16384"),
    ],
)
def test_places_in_external_data_that_are_none(entries: dict[str, str], words: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    build.save_external(build.dense(64), path, "weights.data")
    build.edit_external(path, **entries)
    with pytest.raises(ValueError, match=re.escape(words)):
        model_io.load(path)


@pytest.mark.parametrize("dims", [(1 << 35, 1 << 35), (1 << 62, 256)])
def test_a_shape_beyond_64_bits_in_external_data(dims: tuple[int, int], tmp_path: Path) -> None:
    """The shape is at fault, whatever place the data have."""
    path = tmp_path / "model.onnx"
    build.save_external(build.dense(64), path, "weights.data")
    model = onnx.load(path, load_external_data=False)
    model.graph.initializer[0].dims[:] = dims
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ValueError, match=r"has a shape that no array can have: \[\d+, \d+\]$"):
        model_io.load(path)


@pytest.mark.parametrize("rows", [1 << 59, 1 << 60])
@pytest.mark.parametrize("dtype", [np.float64, np.int64])
def test_a_shape_without_elements_is_read_if_numpy_indexes_it(rows: int, dtype: type, tmp_path: Path) -> None:
    built, kind = build.dense(64), onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    built.graph.initializer.append(onnx.TensorProto(name="none", dims=[rows, 0], data_type=kind))
    path = build.save(built, tmp_path / "model.onnx")
    try:
        np.empty((rows, 0), dtype)
    except ValueError:
        with pytest.raises(ModelError, match="'none' has a shape that no array can have"):
            model_io.load(path)
    else:
        assert model_io.load(path).nodes


def test_what_may_be_one_message_leaves_room_in_one_of_protobuf() -> None:
    assert PROTOBUF_LIMIT < (1 << 31) - 1, "the largest that protobuf reads"


def test_model_file_beyond_protobuf(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    with path.open("wb") as file:
        file.truncate(1 << 36)  # a hole, which takes no disk
    for open_it in (model_io.load, open_model):
        with pytest.raises(ValueError, match=r"model\.onnx.*68,719,476,736 bytes, at most 2,147,483,647"):
            open_it(path)


def test_device_is_no_model() -> None:
    for open_it in (model_io.load, open_model):
        with pytest.raises(ValueError, match="'/dev/zero' is not a regular file"):
            open_it("/dev/zero")


def test_vectors_that_inference_would_take_for_sizes() -> None:
    """Oracle: what shape inference tells with and without following values is the same here."""
    built = folded([node("Cast", ["long"], ["big"], "cast", to=7)], [])
    built.graph.input.append(build.value("long", [1 << 31]))
    assert model_io.load(built).nodes


def test_long_row_of_nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Oracle: the count of nodes; each Relu after the product goes on with its layer."""
    nodes = [node("MatMul", ["x", "w"], ["r0"], "product")]
    nodes += [node("Relu", [f"r{i}"], [f"r{i + 1}"], f"relu{i}") for i in range(1500)]
    nodes += [node("MatMul", ["r1500", "w"], ["y"], "last")]
    ends = [build.value(name, ["n", 4]) for name in "xy"]
    built = build.model(nodes, ends[:1], ends[1:], {"w": np.eye(4, dtype=np.float32)})
    path, out = build.save(built, tmp_path / "model.onnx"), tmp_path / "out.onnx"
    options = ["--input", str(path), "--output", str(out), "--config", "MX9", "--set", "optimize=false"]
    assert quantize.main(options) == 0
    assert "Kept in float: nothing" in capsys.readouterr().out or out.exists()


@pytest.mark.parametrize(
    "dims", [(0, (1 << 63) - 1), (0, 1 << 31, 1 << 31), (1,) * 65], ids=lambda d: str(d)[:20]
)
def test_shape_that_no_array_can_have(scene: Scene, dims: tuple[int, ...]) -> None:
    built = build.dense(dtype=scene.dtype)
    built.graph.initializer[0].dims[:] = dims
    built.graph.initializer[0].raw_data = b"" if 0 in dims else built.graph.initializer[0].raw_data[:4]
    scene.write(built)
    assert "weight0" in scene.refused()


# Graphs without an order


def tangled(kind: str) -> onnx.ModelProto:
    built = build.dense(layers=3)
    if kind == "cycle":
        built.graph.node[0].input[0] = built.graph.node[4].output[0]
    elif kind == "itself":
        built.graph.node[1].input[0] = built.graph.node[1].output[0]
    elif kind == "twice":
        built.graph.node[2].output[0] = built.graph.node[0].output[0]
    else:
        body = helper.make_graph([node("Identity", ["late"], ["o"])], "b", [], [build.value("o", None)])
        built.graph.node.insert(0, node("If", ["t"], ["early"], "if", then_branch=body, else_branch=body))
        built.graph.node.append(node("Neg", ["early"], ["late"], "late"))
        built.graph.initializer.append(constant("t", True, bool))
    return built


@pytest.mark.parametrize("kind", ["cycle", "itself", "twice", "body"])
def test_nodes_that_feed_each_other(kind: str) -> None:
    with pytest.raises(ValueError, match="nodes '.* make '" if kind == "twice" else "feed each other"):
        model_io.load(tangled(kind))


def test_nodes_out_of_order_are_no_tangle() -> None:
    """Oracle: the same model in order; a body may make what has the name of something around it."""
    built = build.dense(layers=3)
    ordered = list(built.graph.node)
    del built.graph.node[:]
    built.graph.node.extend(reversed(ordered))
    body = helper.make_graph(
        [node("Neg", ["x"], ["z"]), node("Neg", ["z"], ["o"])], "b", [], [build.value("o", None)]
    )
    built.graph.node.append(node("If", ["t"], ["z"], "if", then_branch=body, else_branch=body))
    built.graph.initializer.append(constant("t", True, bool))
    assert len(model_io.load(built).nodes) == 7
