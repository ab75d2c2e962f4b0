"""A package runs in onnxruntime-genai after its models are in few bits. Oracle: the float package in it.

Needs ``pip install onnxruntime-genai``.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.helpers.decoder import HEADS, WIDTH, WORDS, decoder
from tools import convert_fp32_to_bf16, quantize

genai = pytest.importorskip("onnxruntime_genai")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "package"
    folder.mkdir()
    onnx.save(decoder(), folder / "model.onnx")
    (folder / "genai_config.json").write_text(json.dumps(_config()))
    return folder


def _config() -> dict[str, object]:
    caches = {"past_key_names": "past.%d.key", "past_value_names": "past.%d.value"}
    decoder = {
        "filename": "model.onnx",
        "head_size": 32,
        "hidden_size": WIDTH,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "num_hidden_layers": 1,
        "session_options": {"provider_options": []},
        "inputs": {"input_ids": "input_ids", "attention_mask": "attention_mask", **caches},
        "outputs": {
            "logits": "logits",
            "present_key_names": "present.%d.key",
            "present_value_names": "present.%d.value",
        },
    }
    model = {"type": "llama", "bos_token_id": 1, "eos_token_id": WORDS - 1, "pad_token_id": 0}
    return {
        "model": {**model, "context_length": 64, "vocab_size": WORDS, "decoder": decoder},
        "search": {"do_sample": False, "max_length": 24, "past_present_share_buffer": False},
    }


def said(folder: Path) -> list[int]:
    """Return what a model says after three tokens."""
    model = genai.Model(str(folder))
    options = genai.GeneratorParams(model)
    options.set_search_options(max_length=16)
    generator = genai.Generator(model, options)
    generator.append_tokens(np.int32([[3, 17, 40]]))
    while not generator.is_done():
        generator.generate_next_token()
    return [int(token) for token in generator.get_sequence(0)]


@pytest.mark.parametrize(
    "options", [("--config", "W8"), ("--config", "W4", "--matmul-nbits", "--embeddings", "int8")]
)
def test_a_package_in_few_bits_is_read(package: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    target = tmp_path / "made"
    assert quantize.main(["--input", str(package), "--output", str(target), *options]) == 0
    wanted, found = said(package), said(target)
    assert len(found) == len(wanted) == 16
    assert found[:4] == wanted[:4]  # the first choice of random weights stands out enough


@pytest.mark.parametrize(("kind", "stored"), [("int8", "INT8"), ("int4", "UINT8")])
def test_caches_in_few_bits_are_fed_back(package: Path, tmp_path: Path, kind: str, stored: str) -> None:
    """The config names caches, and not their type."""
    target, samples = tmp_path / "made", tmp_path / "samples"
    samples.mkdir()
    np.save(samples / "0.npy", np.random.default_rng(0).integers(1, WORDS, (1, 32)))
    options = ["--config", "W8", "--kv-cache", kind, "--data", str(samples)]
    assert quantize.main(["--input", str(package), "--output", str(target), *options]) == 0
    kinds = {one.type.tensor_type.elem_type for one in onnx.load(target / "model.onnx").graph.input}
    assert onnx.TensorProto.DataType.Value(stored) in kinds and onnx.TensorProto.FLOAT not in kinds
    assert said(target)[:4] == said(package)[:4]


def test_a_package_in_bf16_is_read(package: Path, tmp_path: Path) -> None:
    target = tmp_path / "made"
    assert convert_fp32_to_bf16.main(["--input", str(package), "--output", str(target)]) == 0
    assert said(target)[:8] == said(package)[:8]
