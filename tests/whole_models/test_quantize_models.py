"""Quantized real models reach what other tools reach on the same data, or what their task needs.

Oracle: the figures in :mod:`tests.helpers.quantized_models`. The whole table is marked ``heavy``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import real_models
from tests.helpers.quantized_models import BARS, PER_CHANNEL, measure, quantize
from tests.helpers.spread import spread
from transforms.scheme.presets import PLAIN

pytestmark = pytest.mark.skipif(not real_models.NAMES, reason="the real models are not there")

QUICK = [
    ("resnet8_cifar10", "A8W8"),
    ("superres_zoo", "MXINT8"),
    ("mnist_cntk", "A16W8"),
    ("vittrack", "MX9"),
]
"""A model and preset of each kind for the suite of every day."""


def _reaches(name: str, config: str, bars: tuple[float, float], folder: Path, **changes: object) -> bool:
    target = folder / "quantized.onnx"
    quantize(name, config, target, **changes)
    found = measure(name, target)
    kind = " per channel" if changes else ""
    wanted = f"of {bars[0]:.1f} dB and {bars[1]:.3f}"
    print(f"{name:18} {config + kind:18} {found.snr:6.1f} dB  {found.metric:.3f} {wanted}")
    return found.finite and found.snr >= bars[0] and found.metric >= bars[1]


@pytest.mark.parametrize(("name", "config"), spread(QUICK, of=2))
def test_some_models_and_presets(name: str, config: str, tmp_path: Path) -> None:
    assert _reaches(name, config, BARS[name][config], tmp_path)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("name", "config"), [(name, config) for name, bars in BARS.items() for config in bars]
)
def test_presets_reach_the_reference_or_the_task(name: str, config: str, tmp_path: Path) -> None:
    assert _reaches(name, config, BARS[name][config], tmp_path)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("name", "config"), [(name, config) for name, bars in PER_CHANNEL.items() for config in bars]
)
def test_scales_per_channel_reach_the_runtimes_own_quantization(
    name: str, config: str, tmp_path: Path
) -> None:
    assert _reaches(name, config, PER_CHANNEL[name][config], tmp_path, per_channel=True)


@pytest.mark.heavy
@pytest.mark.parametrize("config", [name for name in PLAIN if name != "FOUND"])
@pytest.mark.parametrize("name", BARS)
def test_every_preset_makes_a_valid_model_without_nan(name: str, config: str, tmp_path: Path) -> None:
    quantize(name, config, tmp_path / "quantized.onnx")
    found = measure(name, tmp_path / "quantized.onnx")
    print(f"{name:18} {config:12} {found.snr:6.1f} dB  {found.metric:.3f}")
    assert found.finite
