"""The tool from the command line: exit codes, what it says, what it writes. Oracle: ONNX Runtime on samples
that tuning has not seen."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from onnx_narrow.api.finetune_rule import rule_of
from tests.helpers import build, tunable
from tests.helpers.output_error import OutputError
from tools import finetune, quantize
from tools.cli.calls import keep_products_on_one_thread
from tools.cli.job import parse
from transforms import model_io
from transforms.model import provenance
from transforms.pipelines.tune import tuning_options
from transforms.runtime.session import RunOptions

MODEL = tunable.conv_net()
DATA, UNSEEN = tunable.samples(MODEL, 40), tunable.samples(MODEL, 60)[40:]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return what each test gets a copy of."""
    folder = tmp_path_factory.mktemp("made")
    build.save(MODEL, folder / "float.onnx")
    (folder / "data").mkdir()
    for i, feed in enumerate(DATA):
        np.savez(folder / "data" / f"{i:02}.npz", **feed)  # type: ignore[arg-type]
    given = ["--input", "float.onnx", "--output", "quantized.onnx", "--config", "W4A8"]
    given += ["--data", "data", "--fast"]
    assert quantize.main([str(folder / a) if a.endswith("onnx") or a == "data" else a for a in given]) == 0
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """Return a folder with float.onnx, quantized.onnx (W4A8) and samples in data."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path


def _run(folder: Path, *more: str, output: str = "tuned.onnx") -> int:
    paths = {"--float": "float.onnx", "--quantized": "quantized.onnx", "--output": output, "--data": "data"}
    given = [part for flag, name in paths.items() for part in (flag, str(folder / name))]
    return finetune.main([*given, *more])


def _error(folder: Path, name: str) -> float:
    return (
        OutputError(model_io.load(folder / "float.onnx"), UNSEEN).each(model_io.load(folder / name)).relative
    )


def test_the_tuned_model_is_better(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(folder, "--verbose") == 0
    said = capsys.readouterr().out
    assert _error(folder, "tuned.onnx") < 0.5 * _error(folder, "quantized.onnx")
    for name in ("conv", "depthwise", "transposed", "dense"):
        assert f"{name} " in said
    assert "Tuned: 4 of 4 layers on 40 samples" in said and "Outputs on held-out samples: " in said
    onnx.checker.check_model(onnx.load(folder / "tuned.onnx"), full_check=True)


def test_the_model_says_how_it_was_made(folder: Path) -> None:
    assert _run(folder, "--algorithm", "gptq") == 0
    metadata = model_io.load(folder / "tuned.onnx").info.metadata
    assert provenance.option(metadata, "algorithm") == "gptq"
    assert 'weight = "int4"' in metadata[provenance.PREFIX + "scheme"]


@pytest.mark.parametrize("algorithm", ["gptq", "coordinate_descent", "adaquant", "adaround"])
def test_algorithms(folder: Path, algorithm: str) -> None:
    assert _run(folder, "--algorithm", algorithm) == 0
    assert _error(folder, "tuned.onnx") < _error(folder, "quantized.onnx")


def _weights(path: Path) -> bytes:
    model = onnx.load(path)
    return b"".join(tensor.SerializeToString() for tensor in model.graph.initializer)


@pytest.mark.parametrize(
    "options",
    [
        ["--num-iterations", "3"],
        ["--learning-rate", "0.5"],
    ],
)
def test_options_of_gradient_steps_matter(folder: Path, options: list[str]) -> None:
    assert _run(folder, "--algorithm", "adaquant", output="one.onnx") == 0
    assert _run(folder, "--algorithm", "adaquant", *options, output="two.onnx") == 0
    assert _weights(folder / "one.onnx") != _weights(folder / "two.onnx")


@pytest.mark.parametrize(
    "options",
    [
        ["--data-size", "6"],
        ["--limit", "6"],
        ["--target-op-type", "Gemm", "Conv"],
        ["--batch-size", "4"],
        ["--following-relu"],
    ],
)
def test_options_matter(folder: Path, options: list[str]) -> None:
    assert _run(folder, output="one.onnx") == 0
    assert _run(folder, *options, output="two.onnx") == 0
    assert _weights(folder / "one.onnx") != _weights(folder / "two.onnx")


@pytest.mark.heavy
@pytest.mark.parametrize("options", [["--memory-limit", "1K"], ["--threads", "1"], ["--output-index", "0"]])
def test_options_that_change_no_number(folder: Path, options: list[str]) -> None:
    assert _run(folder, output="one.onnx") == 0
    assert _run(folder, *options, output="two.onnx") == 0
    assert _weights(folder / "one.onnx") == _weights(folder / "two.onnx")


@pytest.mark.parametrize(("limit", "holds"), [("1K", False), ("1G", True)])
def test_a_memory_limit_that_cannot_hold(
    folder: Path, limit: str, holds: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """The input of a layer and its output are there at once, whatever is kept in files."""
    assert _run(folder, "--memory-limit", limit) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "imit" in line]
    assert not lines if holds else len(lines) == 1
    words = r"Memory limit: 1,0\d\d bytes cannot hold, one sample has tensors of [\d,]+ bytes in one step"
    assert holds or re.fullmatch(words, lines[0])


def test_selective_update(folder: Path) -> None:
    assert _run(folder, "--selective-update") == 0
    assert _error(folder, "tuned.onnx") < _error(folder, "quantized.onnx")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--target-op-type", "MatMul"], "operator type 'MatMul': no layer of it can be tuned"),
        (["--output-index", "1"], "output 1 is not there, the model has 1"),
        (["--data-size", "1"], "1 sample, at least 2 are needed"),
        (["--infer-device", "cuda:0"], "inference on 'cuda:0' needs onnxruntime-gpu"),
        (["--infer-device", "hip:0"], "inference on 'hip:0' needs onnxruntime-migraphx or onnxruntime-rocm"),
        (["--optim-device", "hip:0"], "linear algebra on 'hip:0' needs CuPy built for ROCm and a HIP device"),
        (["--provider", "cuda:0"], "inference on 'cuda:0' needs onnxruntime-gpu"),
        (["--optim-device", "cuda:0"], "linear algebra on 'cuda:0' needs CuPy"),
    ],
)
def test_what_can_not_be_done(
    folder: Path,
    options: list[str],
    reason: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert _run(folder, *options) == 1
    assert reason in capsys.readouterr().err
    assert not (folder / "tuned.onnx").exists()


@pytest.mark.parametrize(
    "options",
    [
        ["--num-iterations", "3"],
        ["--learning-rate", "0.1"],
        ["--algorithm", "none"],
        ["--algorithm", "adaquant", "--learning-rate", "-1"],
        ["--algorithm", "adaquant", "--num-iterations", "0"],
        ["--limit", "5", "--data-size", "3"],
        ["--target-op-type", "Relu"],
        ["--infer-device", "tpu"],
    ],
)
def test_wrong_usage(folder: Path, options: list[str]) -> None:
    with pytest.raises(SystemExit) as left:
        _run(folder, *options)
    assert left.value.code == 2


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--memory-limit", "much"], "--memory-limit: much is not a size"),
        (["--memory-limit", "5Q"], "--memory-limit: 5Q is not a size"),
        (
            ["--algorithm", "adaquant", "--learning-rate", "fast"],
            "rate: fast is not a number above 0",
        ),
    ],
)
def test_values_that_are_no_numbers_are_named(
    folder: Path, options: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        _run(folder, *options)
    assert left.value.code == 2 and reason in capsys.readouterr().err


def test_samples_that_do_not_fit(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(folder / "data" / "05.npz", x=np.zeros((1, 4, 8, 8), np.float32))
    assert _run(folder) == 1
    assert "sample '05.npz', input 'x': shape [1, 4, 8, 8]" in capsys.readouterr().err


def test_another_float_model(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build.save(tunable.conv_net(seed=5), folder / "float.onnx")
    assert _run(folder) == 1
    assert "no layer can be tuned" in capsys.readouterr().err


def test_a_quantized_model_in_the_place_of_the_float_one(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "float.onnx").write_bytes((folder / "quantized.onnx").read_bytes())
    assert _run(folder) == 1
    said = capsys.readouterr().err
    assert "the float model is not the one that was quantized: the model is quantized already: " in said


def test_inputs_are_never_overwritten(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("quantized.onnx", "float.onnx"):
        before = (folder / name).read_bytes()
        assert _run(folder, "--force", output=name) == 1
        assert (folder / name).read_bytes() == before
    assert "never overwritten" in capsys.readouterr().err


def test_external_data_of_the_float_model_is_never_overwritten(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = onnx.load(folder / "float.onnx")
    external = {"save_as_external_data": True, "location": "tuned.onnx", "size_threshold": 0}
    onnx.save(model, folder / "float.onnx", **external)
    before = (folder / "tuned.onnx").read_bytes()
    assert _run(folder, "--force", output="tuned.onnx") == 1
    assert "tuned.onnx' belongs to the input" in capsys.readouterr().err
    assert _run(folder, "--force", "--save_as_external_data", output="other.onnx") == 0
    assert (folder / "tuned.onnx").read_bytes() == before


def test_an_existing_output_takes_force(folder: Path) -> None:
    (folder / "tuned.onnx").write_bytes(b"before")
    assert _run(folder) == 1
    assert (folder / "tuned.onnx").read_bytes() == b"before"
    assert _run(folder, "--force") == 0
    assert (folder / "tuned.onnx").read_bytes() != b"before"


def test_options_reach_the_walk() -> None:
    """Those whose effect on a small model is nothing but time or memory, or needs more rows than it has."""
    given = ["--float", "f", "--quantized", "q", "--output", "o", "--data", "d", "--algorithm", "adaround"]
    given += ["--early-stop", "--fixed-seed", "7"]
    rule = rule_of(parse(finetune.main.parser(), given).keywords())
    walk = tuning_options(rule, RunOptions(), memory_limit=5, device="cpu")
    assert walk.solver.early_stop
    assert walk.seed == 7
    assert walk.memory_limit == 5
    assert walk.solver.iterations == 1000 and walk.solver.learning_rate is None


def test_products_are_on_one_thread_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many there are would change the last bits of sums, and the result with them."""
    for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "2")
    keep_products_on_one_thread()
    assert os.environ["OPENBLAS_NUM_THREADS"] == os.environ["MKL_NUM_THREADS"] == "1"
