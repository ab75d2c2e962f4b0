"""Folders in, folders out. Oracles: ONNX Runtime on the files that are written; the files copied."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.helpers import build
from tools import convert_fp32_to_bf16, quantize

CONFIG = '{"model": {"decoder": {"filename": "decoder.onnx"}}}'


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A decoder with its weights beside it, an encoder in a folder, a model without any, and two files."""
    folder = tmp_path / "package"
    (folder / "encoder").mkdir(parents=True)
    onnx.save(
        build.dense(64, layers=2),
        folder / "decoder.onnx",
        save_as_external_data=True,
        location="decoder.onnx.data",
        size_threshold=0,
    )
    onnx.save(build.dense(32, layers=1), folder / "encoder" / "encoder.onnx")
    onnx.save(onnx.parser.parse_model(LABELS), folder / "labels.onnx")
    (folder / "genai_config.json").write_text(CONFIG)
    (folder / "tokenizer.json").write_text("{}")
    return folder


LABELS = '<ir_version: 8, opset_import: ["": 17]> main (int64[N] x) => (int64[N] y) { y = Identity (x) }'


def files(folder: Path) -> set[str]:
    return {str(one.relative_to(folder)) for one in folder.rglob("*") if one.is_file()}


def outputs(path: Path) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(str(path))
    (one,) = session.get_inputs()
    size = [dim if isinstance(dim, int) else 2 for dim in one.shape]
    return session.run(None, {one.name: np.random.default_rng(0).random(size, np.float32)})


def test_models_are_quantized_and_all_else_is_copied(
    package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "made"
    assert quantize.main(["--input", str(package), "--output", str(target), "--config", "W8"]) == 0
    assert files(target) == files(package) - {"decoder.onnx.data"}  # the small weights are in the model
    for name in ("genai_config.json", "tokenizer.json", "labels.onnx"):
        assert (target / name).read_bytes() == (package / name).read_bytes()
    for name in ("decoder.onnx", "encoder/encoder.onnx"):
        found, wanted = outputs(target / name), outputs(package / name)
        assert np.allclose(found, wanted, atol=0.02 * np.abs(wanted).max())  # 8 bits, two layers
        assert any(t.data_type == onnx.TensorProto.INT8 for t in onnx.load(target / name).graph.initializer)
    said = capsys.readouterr().out
    assert all(f"{name}:\n" in said for name in ("decoder.onnx", "encoder/encoder.onnx", "labels.onnx"))


def test_models_are_converted_to_bf16(package: Path, tmp_path: Path) -> None:
    target = tmp_path / "made"
    (package / "labels.onnx").unlink()
    assert convert_fp32_to_bf16.main(["--input", str(package), "--output", str(target)]) == 0
    assert files(target) == files(package) - {"decoder.onnx.data"}
    found, wanted = outputs(target / "decoder.onnx"), outputs(package / "decoder.onnx")
    assert np.allclose(found, wanted, atol=0.02 * np.abs(wanted).max())


def test_each_model_has_its_own_samples(package: Path, tmp_path: Path) -> None:
    random, data = np.random.default_rng(1), tmp_path / "data"
    for name, width in (("decoder", 64), ("encoder", 32)):
        (data / name).mkdir(parents=True)
        for i in range(4):
            np.save(data / name / f"{i}.npy", random.random((2, width), np.float32))
    (package / "labels.onnx").unlink()
    arguments = ["--input", str(package), "--output", str(tmp_path / "made"), "--config", "A8W8", "--fast"]
    assert quantize.main([*arguments, "--data", str(data)]) == 0
    for name in ("decoder.onnx", "encoder/encoder.onnx"):
        assert any(n.op_type == "QuantizeLinear" for n in onnx.load(tmp_path / "made" / name).graph.node)


def test_a_model_that_fails_leaves_no_folder(
    package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (package / "encoder" / "encoder.onnx").write_bytes(b"\x08broken")
    arguments = ["--input", str(package), "--output", str(tmp_path / "made"), "--config", "W8"]
    assert quantize.main(arguments) == 1
    assert "encoder.onnx" in capsys.readouterr().err
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("output", "options", "message"),
    [
        ("package", (), "'package' exists; --force overwrites its files"),
        ("package/made", (), "may not lie in one another"),
        ("made", ("--export-ranges", "r.json"), "--export-ranges requires one model, not the folder"),
    ],
)
def test_refusals(
    package: Path,
    output: str,
    options: tuple[str, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(package.parent)
    before = files(package)
    arguments = ["--input", "package", "--output", output, "--config", "A8W8", "--random-data", "2", *options]
    assert quantize.main(arguments) == 1
    assert message in capsys.readouterr().err
    assert files(package) == before


def test_options_that_do_not_go_together_are_wrong_usage_here_too(
    package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--input", str(package), "--output", str(tmp_path / "made"), "--config", "A8W8"]
    with pytest.raises(SystemExit) as left:
        quantize.main([*arguments, "--min-sqnr", "30"])
    assert left.value.code == 2 and "--min-sqnr requires --data" in capsys.readouterr().err
    assert not (tmp_path / "made").exists()


def test_a_folder_without_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--input", str(tmp_path), "--output", str(tmp_path.parent / "made"), "--config", "W8"]
    assert quantize.main(arguments) == 1
    assert "has no .onnx file" in capsys.readouterr().err


def test_existing_files_are_overwritten_with_force(package: Path, tmp_path: Path) -> None:
    target = tmp_path / "made"
    target.mkdir()
    (target / "notes.txt").write_text("mine")
    (target / "tokenizer.json").write_text("old")
    arguments = ["--input", str(package), "--output", str(target), "--config", "W8", "--force"]
    assert quantize.main(arguments) == 0
    assert (target / "notes.txt").read_text() == "mine"
    assert (target / "tokenizer.json").read_text() == "{}"


def test_nothing_is_left_where_no_model_can_be_converted(package: Path, tmp_path: Path) -> None:
    for name in ("decoder.onnx", "encoder/encoder.onnx"):
        (package / name).unlink()
    assert quantize.main(["--input", str(package), "--output", str(tmp_path / "made"), "--config", "W8"]) == 3
    assert not (tmp_path / "made").exists()
