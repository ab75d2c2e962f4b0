"""Oracle: the bytes and times given: a model gains by fewer bytes, if it is slower by clearly fewer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import onnx_narrow
from onnx_narrow.summaries.no_gain import no_gain_line
from onnx_narrow.summaries.words import Sizes
from tests.helpers import build

SLOWER = "and slower here"


def test_weights_in_blocks_are_told_to_be_packed_and_no_other_preset() -> None:
    """A model in MX6 with weights as float32; oracle: the words of the option."""
    model = build.dense(256)
    plain = onnx_narrow.quantize(model, config="MX6", input_shapes={"x": (1, 256)})
    assert "Weights in mx6 are stored as float32: storage='packed' makes the file smaller" in plain.notes
    (line,) = [note for note in plain.notes if note.startswith(("Gained nothing", "Not smaller"))]
    assert "config" not in line


@pytest.mark.parametrize(
    ("after", "is_slower", "line"),
    [
        (970, True, None),
        (979, True, None),
        (980, True, f"Gained nothing: 0.98 of the bytes of the float file, {SLOWER}"),
        (999, False, None),
        (1000, None, "Not smaller than the float file"),
        (1000, False, "Not smaller than the float file"),
        (1000, True, f"Gained nothing: not smaller than the float file, {SLOWER}"),
        (1300, True, f"Gained nothing: not smaller than the float file, {SLOWER}"),
    ],
)
def test_what_gains_nothing_is_said_so(after: int, is_slower: bool | None, line: str | None) -> None:
    """Without a time, as with ``--no-time``, bytes alone count."""
    time = None if is_slower is None else SimpleNamespace(is_slower=is_slower)
    record, scheme = SimpleNamespace(first=SimpleNamespace(time=time)), SimpleNamespace(target="ort-cpu")
    work: Any = SimpleNamespace(record=record, scheme=scheme, source="m.onnx")
    assert list(no_gain_line(work, Sizes(1000, after))) == ([] if line is None else [line])
