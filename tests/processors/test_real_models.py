"""Sums of real models in 8 bits are exact on a processor whose sums saturate, in an emulator.

Oracle: the same model there with weights in uint8, of which no sum saturates, bit for bit.
Printed beside it: the SQNR there and without optimization, whose kernels round elsewhere. Samples
are not those that the file was made with; states of streams are those of the float model.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnx_narrow
from tests.helpers import real_models
from tests.helpers.emulated import HASWELL, run_on
from tests.processors import run_models
from tests.processors.run_models import Arrays
from tests.processors.widen import widened

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(not real_models.NAMES, reason="the real models are not there"),
]

GIVEN = 8
"""Samples to quantize with."""

UNSEEN = 16
"""Samples to judge on, at most."""

ASKED: Mapping[str, Mapping[str, str]] = {
    "U8S8": {"config": "U8S8"},
    "A8W8": {"config": "A8W8"},
    "ort-cpu": {"target": "ort-cpu"},
}


@pytest.mark.parametrize("name", real_models.NAMES)
def test_no_sum_saturates(name: str, tmp_path: Path) -> None:
    source, feeds = real_models.MODELS / name / "model.onnx", _unseen(name)
    for asked, options in ASKED.items():
        result = onnx_narrow.quantize(source, data=_given(name), time=False, **options)
        run_models.write(tmp_path / asked, result.model, feeds)
        run_models.write(tmp_path / f"{asked} widened", widened(result.model), feeds)
    run_models.write(tmp_path / "float" / "model", onnx.load(source), feeds)
    run_on(HASWELL, run_models.__file__, tmp_path)
    wanted = _joined(run_models.run(tmp_path / "float" / "model", is_optimized=False))
    saturated = []
    for asked in ASKED:
        made, exact = (_joined(run_models.made(tmp_path / f"{asked}{end}")) for end in ("", " widened"))
        saturated += [f"{asked}: {key}" for key in made if not np.array_equal(made[key], exact[key])]
        plain = _joined(run_models.run(tmp_path / asked, is_optimized=False))
        here, without = (real_models.snr_db(name, wanted, outputs) for outputs in (made, plain))
        print(f"{name:18} {asked:8} ordinary {here:6.2f} dB, unoptimized {without:6.2f} dB")
    assert not saturated


def _given(name: str) -> list[Arrays]:
    """Return samples of those for calibration, spread over all."""
    known = real_models.task(name).calib
    places = np.linspace(0, len(known) - 1, min(GIVEN, len(known)))
    return [known[int(i)] for i in places]


def _unseen(name: str) -> list[Arrays]:
    """Return samples of those to judge on: few rows of few feeds, with states of the float model."""
    data, score = real_models.task(name), real_models.score_module()
    runner = score.Runner(real_models.session(real_models.MODELS / name / "model.onnx"))
    states = score.run(runner, data)[1] if data.stream else [{}] * len(data.feeds)
    places = sorted({int(i) for i in np.linspace(0, len(data.feeds) - 1, UNSEEN)})
    rows = max(1, UNSEEN // len(places))
    feeds = ({**data.feeds[i], **states[i]} for i in places)
    typed = [{key: np.asarray(array, runner.t[key]) for key, array in feed.items()} for feed in feeds]
    return typed if data.stream else [{key: array[:rows] for key, array in feed.items()} for feed in typed]


def _joined(outputs: list[Arrays]) -> Arrays:
    """Return the outputs of all samples, one after another."""
    return {name: np.concatenate([np.atleast_1d(one[name]) for one in outputs]) for name in outputs[0]}
