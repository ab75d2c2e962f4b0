"""Large weights stay in their files: what is read, and written, is the same as if they were in memory."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.benchmarks.transformer import Size, transformer
from transforms import model_io
from transforms.files import mapped_file
from transforms.files.mapped_file import file_of, map_file
from transforms.graph import walk
from transforms.graph.lazy_values import LARGE, Computed, is_weightless, load_values
from transforms.model import read_model
from transforms.model.mapped_weights import pieces, without_raw_data
from transforms.model.read_model import ModelError
from transforms.runtime import session
from transforms.saturate import saturate

WIDE = Size(layers=1, width=256, heads=4, vocabulary=300, positions=16)
TOOLS = (
    *(
        ("tools.convert_fp32_to_bf16", "--format", name)
        for name in ("with_cast", "customqdq", "simulate_bf16")
    ),
    ("tools.convert_fp32_to_bf16", "--format", "bf16"),
    *(("tools.quantize", "--config", name) for name in ("BFP16", "MX6", "BF16", "FP16")),
    ("tools.quantize", "--config", "MX6", "--storage", "packed"),
    ("tools.quantize", "--config", "W4A8", "--random-data", "1"),
    ("tools.quantize", "--config", "A16W8", "--random-data", "1", "--set", "balance_channels=true"),
    ("tools.quantize", "--config", "A8W8", "--random-data", "1", "--set", "equalize_layers=true"),
)


QUICK = TOOLS[0], TOOLS[5], TOOLS[-1]
"""Those of the default suite: with Casts, in blocks, in integers."""


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return transformer(WIDE)


def external(model: onnx.ModelProto, path: Path, shift: int = 0) -> Path:
    """Write a model with its weights beside it, each ``shift`` bytes after a multiple of 64."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    with path.with_suffix(".bin").open("wb") as file:
        for tensor in copy.graph.initializer:
            file.write(bytes(-file.tell() % 64 + shift))
            place, raw = file.tell(), tensor.raw_data
            file.write(raw)
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
            entries = {"location": f"{path.stem}.bin", "offset": place, "length": len(raw)}
            for key, value in entries.items():
                tensor.external_data.add(key=key, value=str(value))
    onnx.save(copy, path)
    return path


@pytest.mark.parametrize("shift", (0, 1, 2))
def test_external_data_are_mapped(model: onnx.ModelProto, tmp_path: Path, shift: int) -> None:
    """Oracle: the arrays in the model that was written."""
    graph = model_io.load(external(model, tmp_path / "model.onnx", shift))
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    large = [t for t in walk.constants(graph) if arrays[t.name].nbytes >= LARGE]
    assert large
    for tensor in large:
        assert isinstance(tensor._values, Computed) if shift else file_of(tensor._values)
        assert tensor.values.tobytes() == arrays[tensor.name].tobytes()
        assert isinstance(tensor._values, Computed) or not shift  # nothing is kept


def test_a_large_file_is_read_in_place(
    model: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Oracle: the graph that is read into memory."""
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    plain = model_io.load(path)
    monkeypatch.setattr(read_model, "IN_PLACE", 0)
    mapped = model_io.load(path)
    assert mapped.source_sha256 == plain.source_sha256
    assert any(is_weightless(t._values) for t in walk.constants(mapped))
    assert model_io.graph_proto.export_model(mapped) == model_io.graph_proto.export_model(plain)


@pytest.mark.parametrize("damage", ("cut", "zeros", "tag", "length"))
def test_damaged_files_are_refused_in_place_as_in_memory(
    model: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    """Oracle: the error without mapping."""
    content = model.SerializeToString()
    path = tmp_path / "model.onnx"
    tensor = helper.make_tensor("w", TensorProto.FLOAT, [1 << 15], bytes(1 << 17), raw=True)
    short = onnx.ModelProto()
    short.CopyFrom(model)
    short.graph.initializer.append(tensor)
    short.graph.initializer[-1].dims[0] += 1
    damaged = {
        "cut": content[:-100],
        "zeros": bytes(1000),
        "tag": b"\x0b" + content,
        "length": short.SerializeToString(),
    }
    path.write_bytes(damaged[damage])
    with pytest.raises(ModelError) as plain:
        model_io.load(path)
    monkeypatch.setattr(read_model, "IN_PLACE", 0)
    with pytest.raises(ModelError) as mapped:
        model_io.load(path)
    assert str(mapped.value) == str(plain.value)


def test_pieces_are_the_bytes_of_the_message(model: onnx.ModelProto) -> None:
    """Oracle: protobuf's own serialization."""
    light, weights = model_io.graph_proto.export_light(model_io.load(model))
    assert weights
    helper.set_model_props(light, {"key": "value"})
    found = b"".join(bytes(piece) for piece in pieces(light, weights))
    model_io.detached_weights.fill(light, weights)
    assert found == light.SerializeToString(deterministic=True)


def test_scan_hands_on_all_but_large_raw_data(model: onnx.ModelProto) -> None:
    """Oracle: protobuf parses the rest to the model without those data."""
    content = model.SerializeToString()
    light, places = without_raw_data(memoryview(content), LARGE)
    expected = onnx.ModelProto()
    expected.CopyFrom(model)
    for place in places:
        tensor = expected.graph.initializer[place.number]
        assert content[place.begin : place.end] == tensor.raw_data
        tensor.ClearField("raw_data")
    assert onnx.ModelProto.FromString(light) == expected
    assert max(len(tensor.raw_data) for tensor in expected.graph.initializer) < LARGE


@pytest.mark.parametrize("prepacked", (False, True))
def test_sessions_on_mapped_weights(
    model: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepacked: bool
) -> None:
    """Oracle: the session on the same model in memory, bit for bit if both prepare weights for kernels."""
    monkeypatch.setattr(session, "_MOST_COPIED", 1 << 31 if prepacked else 0)
    feed = {name: np.ones((2, 16), np.int64) for name in ("input_ids", "attention_mask")}
    mapped = model_io.load(external(model, tmp_path / "model.onnx"))
    found = session.open_session(mapped).run(feed)
    expected = session.open_session(model_io.load(model)).run(feed)
    np.testing.assert_allclose(found["last_hidden_state"], expected["last_hidden_state"], 1e-4, 1e-5)
    if prepacked:
        assert found["last_hidden_state"].tobytes() == expected["last_hidden_state"].tobytes()


def test_a_file_that_changed_is_not_read_again(model: onnx.ModelProto, tmp_path: Path) -> None:
    """Oracle: the arrays that were mapped, which a replaced file leaves as they are."""
    path = external(model, tmp_path / "model.onnx")
    feed = {name: np.ones((2, 16), np.int64) for name in ("input_ids", "attention_mask")}
    graph = model_io.load(path)
    expected = session.open_session(graph).run(feed)["last_hidden_state"]
    data = path.with_suffix(".bin")
    other = tmp_path / "other"
    other.write_bytes(bytes(data.stat().st_size))
    other.replace(data)
    assert session.open_session(graph).run(feed)["last_hidden_state"].tobytes() == expected.tobytes()


@pytest.mark.heavy
@pytest.mark.parametrize("tool", TOOLS, ids=" ".join)
def test_outputs_are_those_of_the_path_in_memory(
    model: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: tuple[str, ...]
) -> None:
    """Oracle: the same tool on weights that are copied into memory when they are loaded."""
    source = external(model, tmp_path / "model.onnx")
    main = importlib.import_module(tool[0]).main
    arguments = [*tool[1:], "--input", str(source), "--save_as_external_data", "--output"]
    written = []
    for folder in (tmp_path / "mapped", tmp_path / "read"):
        folder.mkdir()
        assert main([*arguments, str(folder / "result.onnx")]) == 0
        written.append({file.name: file.read_bytes() for file in folder.iterdir()})
        monkeypatch.setattr("transforms.model.read_model.weight_at", _copied)
    assert written[0].keys() == written[1].keys()
    assert written[0] == written[1]


@pytest.mark.parametrize(
    "tool",
    [tool if tool in QUICK else pytest.param(tool, marks=pytest.mark.heavy) for tool in TOOLS],
    ids=" ".join,
)
def test_outputs_of_a_file_read_in_place_are_those_of_one_read_into_memory(
    model: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: tuple[str, ...]
) -> None:
    """Oracle: the same tool on the same file, which is below the limit that lets its weights stay there."""
    source = tmp_path / "model.onnx"
    onnx.save(model, source)
    main = importlib.import_module(tool[0]).main
    written = []
    for name in ("read", "mapped"):
        target = tmp_path / name / "result.onnx"
        target.parent.mkdir()
        assert main([*tool[1:], "--input", str(source), "--output", str(target)]) == 0
        written.append(target.read_bytes())
        monkeypatch.setattr(read_model, "IN_PLACE", 0)
    assert written[0] == written[1]


def _copied(content: np.ndarray, offset: int, tensor: TensorProto) -> np.ndarray:
    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    count = int(np.prod(tensor.dims))
    return np.frombuffer(content.tobytes(), dtype, count, offset).reshape(tuple(tensor.dims))


def test_a_large_scalar_is_clipped() -> None:
    """Oracle: the array that NumPy clips; of an array without axes it makes a number that is no array."""
    values = np.array(np.float32(3.4e38))
    graph = gs.Graph(
        nodes=[gs.Node("Add", inputs=[gs.Variable("x", np.float32, [1]), gs.Constant("c", values)])]
    )
    graph.nodes[0].outputs = [gs.Variable("y", np.float32, [1])]
    assert saturate(graph) == 1
    (tensor,) = walk.constants(graph)
    assert isinstance(tensor.values, np.ndarray)
    assert saturate(graph) == 0


def _file_pages() -> int:
    """Return the bytes of mapped files that count as memory of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssFile"))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell")
def test_pages_that_were_read_are_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: the system; numbers that are asked for earlier are still there."""
    size, most = 1 << 22, 1 << 23
    monkeypatch.setattr(mapped_file, "_PAGES", most)
    numbers = np.arange(10 * size // 4, dtype=np.float32)
    numbers.tofile(tmp_path / "weights")
    weights = np.split(map_file(tmp_path / "weights").view(np.float32), 10)
    before = _file_pages()
    for weight, expected in zip(weights, np.split(numbers, 10), strict=True):
        np.testing.assert_array_equal(load_values(weight), expected)
        assert _file_pages() < before + most + size
    np.testing.assert_array_equal(weights[0], numbers[: size // 4])
