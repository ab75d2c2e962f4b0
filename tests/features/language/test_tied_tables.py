"""Embeddings that a head reads too, stored in int8 by default. Oracle: NumPy's rows, divergence and bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper
from scipy.special import log_softmax

import onnx_narrow
from tests.rewrites.test_store_embeddings import _language

ROWS, WIDTH = 1000, 128
CONFIGS = ("W8", "W4", "A8W8_DYNAMIC")


def _saved(folder: Path, head: str = "tied", *, loud: float = 1) -> Path:
    model = _language(ROWS, WIDTH, head)
    del model.graph.output[:-1]  # logits alone
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor).copy()
        if tensor.name in ("table", "own"):
            values /= np.float32(WIDTH**0.25)
            values[:, 0] *= np.float32(loud)
        elif tensor.name == "turned":
            values /= np.float32(WIDTH**0.25)
        elif tensor.name == "w" and loud != 1:
            values[0], values[:, 0] = 0, 0
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    onnx.save(model, folder / "m.onnx")
    return folder / "m.onnx"


def _made(source: Path, config: str, **options: object) -> tuple[onnx.ModelProto, list[str]]:
    target = source.with_name("q.onnx")
    result = onnx_narrow.quantize(source, target, config=config, force=True, time=False, **options)
    return onnx.load(target), str(result).splitlines()


def _tables(model: onnx.ModelProto) -> list[str]:
    """Return the types of stored matrices with as many numbers as the table has."""
    found = [one for one in model.graph.initializer if np.prod(one.dims) == ROWS * WIDTH]
    return [onnx.TensorProto.DataType.Name(one.data_type) for one in found]


def _logits(model: onnx.ModelProto) -> np.ndarray:
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return session.run(None, {"tokens": np.random.default_rng(5).integers(0, ROWS, (2, 24))})[0]


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("head", ["tied", "gemm"])
def test_a_table_that_a_head_reads_is_stored_once_in_int8(config: str, head: str, tmp_path: Path) -> None:
    source = _saved(tmp_path, head)
    (kept, _), (model, lines) = _made(source, config, embeddings="float"), _made(source, config)
    assert _tables(kept).count("FLOAT") == 1 and _tables(model) == ["INT8"]
    assert any(line.startswith("Stored in int8 with its head: 1 tied embedding") for line in lines)
    float_table = numpy_helper.to_array(
        next(one for one in onnx.load(source).graph.initializer if one.name == "table")
    )
    arrays = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
    stored = next(array for array in arrays.values() if array.shape == (ROWS, WIDTH))
    steps = np.abs(float_table).max(1, keepdims=True) / 127
    np.testing.assert_array_equal(stored, np.rint(float_table / steps).astype(np.int8))
    before, after = (log_softmax(_logits(one).astype(np.float64), -1) for one in (kept, model))
    assert 0 < (np.exp(before) * (before - after)).sum(-1).mean() < 0.005


@pytest.mark.parametrize("config", ["W8", "W4"])
@pytest.mark.parametrize("head", ["copy", "gemm of a copy"])
def test_a_copy_of_the_table_is_stored_with_it(config: str, head: str, tmp_path: Path) -> None:
    model, lines = _made(_saved(tmp_path, head), config)
    assert _tables(model) == ["INT8"]
    assert any(line.startswith("Stored in int8 with its head: 1 tied embedding") for line in lines)
    kept, _ = _made(_saved(tmp_path, head), config, embeddings="float")
    assert sorted(_tables(kept)) == ["FLOAT", "INT8" if config == "W8" else "UINT4"]


@pytest.mark.parametrize("head", ["tied", "gemm"])
def test_the_runtime_has_a_kernel_for_the_head(head: str, tmp_path: Path) -> None:
    """Oracle: operators of the session. With a scale that lookups share, it decoded the table in each run."""
    _made(_saved(tmp_path, head), "W8")
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "o.onnx")
    onnxruntime.InferenceSession(tmp_path / "q.onnx", options)
    operators = [node.op_type for node in onnx.load(tmp_path / "o.onnx").graph.node]
    assert operators.count("MatMulNBits") == 2 and "DequantizeLinear" not in operators


def test_products_in_blocks_have_it_as_their_operators(tmp_path: Path) -> None:
    model, _ = _made(_saved(tmp_path), "W4", matmul_nbits=True)
    operators = [node.op_type for node in model.graph.node]
    assert operators.count("MatMulNBits") == 2 and operators.count("GatherBlockQuantized") == 1
    assert _tables(model) == ["UINT8"]


def test_a_table_that_int8_costs_too_much_stays_float(tmp_path: Path) -> None:
    """Oracle: a channel of 400 times the others, which means nothing, takes the range of each row."""
    model, lines = _made(_saved(tmp_path, loud=400), "W8")
    assert _tables(model) == ["FLOAT"]
    assert any(line.startswith("Float, 'table': in int8 it costs ") for line in lines)


def test_what_the_scheme_names_stays_float(tmp_path: Path) -> None:
    for options in ({"exclude_nodes": ["head"]}, {"assignments": {"layers.lookup": "float32"}}):
        model, lines = _made(_saved(tmp_path), "W8", **options)
        assert _tables(model) == ["FLOAT"] and not any("on random tokens" in line for line in lines)


def test_models_without_a_head_are_made_as_ever(tmp_path: Path) -> None:
    """Oracle: the bytes with ``embeddings="float"``."""
    source = _saved(tmp_path, "none")
    for config in ("W8", "W4"):
        one, other = (_made(source, config, **options)[0] for options in ({}, {"embeddings": "float"}))
        assert one.graph.SerializeToString() == other.graph.SerializeToString()
