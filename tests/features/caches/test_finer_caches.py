"""Which caches stay in 8 bits beside others in 4. Oracle: sums of made-up divergences, and the files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx
import pytest

import onnx_narrow
from transforms.features.caches import finer_caches
from transforms.features.caches.finer_caches import within

EXAMPLE = Path(__file__).parents[3] / "examples/text"
ALONE = {"a": 0.004, "b": 0.001, "c": 0.02, "d": 0.003, "e": 0.011}


@pytest.mark.parametrize("factor", (0.5, 1, 3))
@pytest.mark.parametrize("most", (0.0005, 0.0041, 0.008, 0.015))
def test_the_most_attentions_of_least_divergence_are_kept(most: float, factor: float) -> None:
    """Together they leave a multiple of the sum of what each leaves alone on one text."""
    measured = []

    def _measure(labels: Sequence[str]) -> float:
        measured.append(list(labels))
        return factor * sum(ALONE[label] for label in labels)

    kept = within(ALONE, most, _measure(list(ALONE)), _measure)
    order = sorted(ALONE, key=lambda label: ALONE[label])
    count = max(i for i in range(6) if factor * sum(ALONE[label] for label in order[:i]) <= most)
    assert kept == order[:count]
    assert len(measured) <= 2  # all, and those that are kept


def test_what_is_kept_is_measured_until_it_is_within_the_bound() -> None:
    """Small divergences that do not add up: fewer are kept each time."""
    found = within(ALONE, 0.015, 0.05, lambda labels: 0.02 if len(labels) > 2 else 0.014)
    assert found == ["b", "d"]
    assert within(ALONE, 0.015, float("nan"), lambda labels: float("nan")) == []


def test_some_attentions_have_4_bits_and_others_8(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a model that loses too much with all."""
    monkeypatch.setattr(finer_caches, "MOST_NATS", 0.06)
    given = {"config": "W8", "data": EXAMPLE / "calibration.npy", "kv_cache": "int4", "time": False}
    made = onnx_narrow.quantize(EXAMPLE / "decoder.onnx", **given)  # type: ignore[arg-type]
    kinds = [one.type.tensor_type.elem_type for one in made.model.graph.input if "past" in one.name]
    assert sorted(kinds) == [onnx.TensorProto.UINT8] * 2 + [onnx.TensorProto.INT8] * 2
    line = next(
        line for line in str(made).splitlines() if "Stored in int8: 2 caches, since all in int4 cost" in line
    )
    assert float(line.split("divergence of ")[1].split()[0]) > 0.06
    nats = next(line for line in str(made).splitlines() if line.startswith("Outputs: KL divergence of "))
    assert float(nats.split()[4]) <= 0.06 + 0.005  # and what weights of 8 bits lose
