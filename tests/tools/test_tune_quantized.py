"""``tools.quantize`` tunes what it has made where its scheme says so. Oracle: the model without tuning."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.helpers import real_models
from tools import quantize
from transforms.scheme import read_scheme

EXAMPLES = Path(__file__).parents[1] / "examples"
MODEL = EXAMPLES / "digits.onnx"


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits")
    for i, image in enumerate(np.load(EXAMPLES / "digits_test_images.npy")[:120]):
        np.save(folder / f"{i}.npy", image[None])
    return folder


def run(target: Path, *arguments: str) -> int:
    return quantize.main(["--input", str(MODEL), "--output", str(target), *arguments])


def error(model: Path) -> float:
    images = np.load(EXAMPLES / "digits_test_images.npy")[120:]
    wanted, found = (
        real_models.session(file).run(None, {"images": images})[0].astype(np.float64)
        for file in (MODEL, model)
    )
    return float(((wanted - found) ** 2).sum() / (wanted**2).sum())


@pytest.mark.parametrize("config", ["W4A8_ADAQUANT", "A8W8_ADAROUND", "MX6_ADAQUANT"])
def test_tuned_presets(
    config: str, samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ("--data", str(samples), "--fast")  # settings by outputs leave little to gain in A8W8
    assert run(tmp_path / "plain.onnx", "--config", config.rpartition("_")[0], *data) == 0
    few = ("--set", "finetune.num_iterations=50")
    assert run(tmp_path / "tuned.onnx", "--config", config, *data, *few) == 0
    printed = capsys.readouterr().out
    assert "Tuned: 3 of 3 layers on 120 samples" in printed
    assert error(tmp_path / "tuned.onnx") < error(tmp_path / "plain.onnx")
    stored = {p.key: p.value for p in onnx.load(tmp_path / "tuned.onnx").metadata_props}
    (tmp_path / "scheme.toml").write_text(stored["onnx_narrow.scheme"])
    tuning = read_scheme(tmp_path / "scheme.toml").finetune
    assert tuning is not None and tuning.num_iterations == 50


def test_limit_is_the_smaller_of_both(
    samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scheme = tmp_path / "scheme.toml"
    scheme.write_text('preset = "MX9"\n[finetune]\nalgorithm = "gptq"\ndata_size = 12\n')
    more = ("--data", str(samples), "--limit", "20")
    assert run(tmp_path / "tuned.onnx", "--config", str(scheme), *more) == 0
    assert "on 12 samples" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [(), ("--random-data", "4")])
def test_samples_are_needed(
    arguments: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path / "tuned.onnx", "--config", "MX9_ADAQUANT", *arguments) == 1
    assert capsys.readouterr().err.splitlines() == [
        "tools.quantize: error: fine-tuning (adaquant) needs samples: give --data DIR"
    ]
    assert not (tmp_path / "tuned.onnx").exists()
