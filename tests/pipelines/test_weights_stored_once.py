"""A matrix that several layers use is stored once. Oracle: the matrices of the model; bytes of its file."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnx_narrow
from tests.helpers.shared_layers import MATRICES, WORDS, shared_encoder
from transforms.pipelines.work import SCHEME_ENTRY

_FORMS = {
    "once": {},
    "copies": {"copies": True},
    "turned": {"copies": True, "gemm": True},
}


def _written(folder: Path, form: str, config: str, **options: object) -> tuple[onnx.ModelProto, float]:
    """Return the model that is made, and its bytes beside those of the model with each matrix once."""
    onnx.save(shared_encoder(**_FORMS[form]), folder / "m.onnx")
    onnx_narrow.quantize(folder / "m.onnx", folder / "q.onnx", config=config, **options)
    return onnx.load(folder / "q.onnx"), (folder / "q.onnx").stat().st_size / shared_encoder().ByteSize()


def _matrices(model: onnx.ModelProto, kinds: set[int]) -> list[int]:
    """Return the sizes of the stored matrices in some types, in order."""
    return sorted(
        int(np.prod(tensor.dims))
        for tensor in model.graph.initializer
        if tensor.data_type in kinds and len(tensor.dims) > 1
    )


@pytest.mark.parametrize("form", _FORMS)
def test_products_at_run_time_share_integers(form: str, tmp_path: Path) -> None:
    model, share = _written(tmp_path, form, "A8W8_DYNAMIC")
    stored = _matrices(model, {onnx.TensorProto.INT8, onnx.TensorProto.UINT8})
    assert stored == sorted(int(np.prod(shape)) for shape in MATRICES.values())
    assert share < 0.28


@pytest.mark.parametrize("form", _FORMS)
@pytest.mark.parametrize("matmul_nbits", [False, True])
def test_blocks_of_four_bits_are_stored_once(form: str, matmul_nbits: bool, tmp_path: Path) -> None:
    model, share = _written(tmp_path, form, "W4", matmul_nbits=matmul_nbits)
    readers = [
        node
        for node in model.graph.node
        if node.op_type == ("MatMulNBits" if matmul_nbits else "DequantizeLinear")
    ]
    weights = {node.input[1 if matmul_nbits else 0] for node in readers}
    assert len(weights) == len(MATRICES)
    assert share < 0.18


def test_outliers_of_a_weight_are_moved_at_all_places_or_none(tmp_path: Path) -> None:
    """Oracle: the scheme that the file records. Before, each use moved other channels."""
    model, _ = _written(tmp_path, "once", "A8W8_DYNAMIC")
    entries = {entry.key: entry.value for entry in model.metadata_props}
    moves = tomllib.loads(entries[SCHEME_ENTRY])["outliers"]
    for name in "abj":
        alike = {moves.get(f"{name}{use}", "") for use in range(8)}
        assert len(alike) == 1, (name, alike)
    assert any(moves.values())


def test_samples_store_it_once_too(tmp_path: Path) -> None:
    data = [np.random.default_rng(i).integers(0, WORDS, (1, 24)) for i in range(4)]
    for config in ("U8S8", "W4"):
        _, share = _written(tmp_path, "copies", config, data=data, fast=True, force=True)
        assert share < 0.28
