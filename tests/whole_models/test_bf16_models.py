"""Both converters on real models with real data, in every format.

Oracles: onnx.checker; ONNX Runtime's Cast for what with_cast computes, to which customqdq and bf16 must be
equal bit for bit; for the distance to the float model the SNR that AMD Quark's customqdq reaches on the same
data, less 0.5 dB.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.helpers import real_models
from tests.helpers.spread import spread
from tools import convert_fp16_to_bf16, convert_fp32_to_bf16
from transforms import model_io
from transforms.model import graph_proto
from transforms.widen_bf16 import widen_bf16

pytestmark = pytest.mark.skipif(not real_models.NAMES, reason="the real models are not beside the project")

FORMATS = ("with_cast", "bf16", "simulate_bf16", "customqdq")
REFERENCE_DB = {
    "mnist_cntk": 51.3, "resnet8_cifar10": 34.8, "mobilenet_v1_025": 16.4, "minilm_l6_op13": 35.9,
    "superres_zoo": 49.0, "gtcrn_simple": 45.8, "dtln_1": 32.7, "vittrack": 40.4, "yolox_nano_ext": 20.9,
}  # fmt: skip
"""SNR of the reference's own conversion; it fails on the models that are missing here."""

SLACK_DB = 0.5
MAGIKA_DB = 5.1 + 20
"""The reference rounds inside magika's LayerNorm and is left with 5.1 dB."""

ACCURACY = ("top1", "retrieval_top1", "within2")
POINT = 0.01


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("converted")


def convert(name: str, style: str, folder: Path) -> Path:
    """Convert a model once per format and return the result."""
    target = folder / f"{name}.{style}.onnx"
    if not target.exists():
        source = real_models.MODELS / name / "model.onnx"
        tool = convert_fp16_to_bf16 if "fp16" in name else convert_fp32_to_bf16
        assert tool.main(["--input", str(source), "--output", str(target), "--format", style]) == 0
    return target


def least_snr(name: str) -> float:
    if name == "magika_v3_3":
        return MAGIKA_DB
    return REFERENCE_DB.get(name, 0.0) - SLACK_DB


@pytest.mark.parametrize(("name", "style"), spread(real_models.EACH, FORMATS, of=3))
def test_result_is_valid_and_runs(name: str, style: str, converted: Path) -> None:
    source = real_models.MODELS / name / "model.onnx"
    before = source.read_bytes()
    target = convert(name, style, converted)
    onnx.checker.check_model(target, full_check=True)
    assert source.read_bytes() == before
    expected, found = (
        [(t.name, t.type, t.shape) for t in (*s.get_inputs(), *s.get_outputs())]
        for s in (real_models.session(source), real_models.session(runnable(target, style)))
    )
    assert [t[:2] for t in found] == [t[:2] for t in expected]


def runnable(target: Path, style: str) -> Path | bytes:
    """Return the model, and for true bfloat16 one in which each bfloat16 node stands between Casts."""
    return _widened(target) if style == "bf16" else target


@cache
def _widened(target: Path) -> bytes:
    graph = model_io.load(target)
    widen_bf16(graph)
    return graph_proto.export_model(graph).SerializeToString()


@cache
def outputs_of_casts(target: Path, name: str) -> real_models.Outputs:
    """Return what with_cast computes on the first sample."""
    return real_models.first_outputs(target, name)


@pytest.mark.parametrize("style", ["customqdq", "bf16"])
@pytest.mark.parametrize("name", real_models.EACH)
def test_formats_compute_the_same_bits(name: str, style: str, converted: Path) -> None:
    expected = outputs_of_casts(convert(name, "with_cast", converted), name)
    found = real_models.first_outputs(runnable(convert(name, style, converted), style), name)
    for key, array in expected.items():
        np.testing.assert_array_equal(found[key].view(np.uint8), array.view(np.uint8), err_msg=key)


@pytest.mark.parametrize("name", real_models.EACH)
def test_distance_to_the_float_model(name: str, converted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = convert(name, "with_cast", converted)
    baseline = real_models.all_outputs(real_models.MODELS / name / "model.onnx", name)
    outputs = real_models.all_outputs(target, name)
    snr = real_models.snr_db(name, baseline, outputs)
    measured = real_models.metrics(name, baseline, outputs)
    pairs = {key: (measured[f"{key}_float"], measured[key]) for key in ACCURACY if f"{key}_float" in measured}
    with capsys.disabled():
        accuracy = ", ".join(f"{key} {a:.3f} -> {b:.3f}" for key, (a, b) in pairs.items())
        print(f"\n{name:22} SNR {snr:5.1f} dB, at least {least_snr(name):5.1f}  {accuracy}", end=" ")
    assert snr >= least_snr(name)
    assert all(after >= before - POINT for before, after in pairs.values())


@pytest.mark.parametrize(
    ("name", "style"), spread(["mnist_cntk", "silero_vad", "resnet8_cifar10_fp16"], FORMATS, of=3)
)
def test_second_conversion_has_nothing_to_do(
    name: str, style: str, converted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = convert(name, style, converted)
    again = tmp_path / "again.onnx"
    tool = convert_fp16_to_bf16 if "fp16" in name else convert_fp32_to_bf16
    assert tool.main(["--input", str(target), "--output", str(again), "--format", style]) == 3
    assert "Nothing to do" in capsys.readouterr().out
    assert not again.exists()


@pytest.mark.parametrize("name", real_models.EACH)
def test_conversion_is_deterministic(name: str, converted: Path, tmp_path: Path) -> None:
    assert (
        convert(name, "with_cast", tmp_path).read_bytes()
        == convert(name, "with_cast", converted).read_bytes()
    )
