"""What is said of a tuning that gains nothing: whether weights were fitted before. Oracle: the record."""

from __future__ import annotations

from pathlib import Path

import pytest

import onnx_narrow
from tests.helpers import tunable
from transforms.finetune import finetune_model
from transforms.scheme import preset

SAID = "Weights were rounded by outputs on samples when the model was quantized"


@pytest.mark.parametrize(("fitted", "gains"), [("auto", False), ("auto", True), (False, False)])
def test_fitted_weights_are_named_where_nothing_is_gained(
    fitted: bool | str, gains: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, path = tunable.conv_net(), tmp_path / "q.onnx"
    feeds = tunable.samples(model, 12)
    monkeypatch.setattr(finetune_model.HeldOutJudge, "accepts", lambda self, gain: gains)
    scheme = preset("MX6").with_(fit_weights=fitted)
    onnx_narrow.quantize(model, path, config=scheme, data=feeds, time=False)
    done = onnx_narrow.finetune(model, path, data=feeds)
    assert any(note.startswith(SAID) for note in done.notes) == (fitted == "auto" and not gains)
