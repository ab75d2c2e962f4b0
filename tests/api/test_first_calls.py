"""Twenty calls that users try first. Oracle: the call as the reference has it, or the words here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onnx_narrow as on
from tests.examples.write_samples import IMAGES, LABELS

MODEL = str(Path(__file__).parents[1] / "examples" / "digits.onnx")
DATA, RIGHT = np.load(IMAGES)[:8], np.load(LABELS)[:8]
QUICK: dict[str, Any] = {"fast": True, "time": False}


class Reader:
    """A calibration reader that can be read once."""

    def __init__(self) -> None:
        self._left = iter([{"images": image[None]} for image in DATA])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._left, None)


def used() -> Reader:
    reader = Reader()
    on.quantize(MODEL, data=reader, **QUICK)
    return reader


def call(**keywords: Any) -> on.Result:
    return on.quantize(MODEL, **{"config": "A8W8", "data": list(DATA), **QUICK, **keywords})


EXPECTED = call().converted

TAKEN: dict[str, Callable[[], on.Result]] = {
    "a reader": lambda: call(data=Reader()),
    "one array of images": lambda: call(data=DATA),
    "numbers of 64 bits": lambda: call(data=DATA.astype(np.float64)),
    "integers": lambda: call(data=(16 * DATA).astype(np.uint8)),
    "pairs with labels": lambda: call(data=list(zip(DATA, RIGHT, strict=True))),
    "a generator": lambda: call(data=(image for image in DATA)),
    "keys as a mapping": lambda: call(config={"preset": "A8W8"}),
    "a scheme": lambda: call(config=on.preset("A8W8")),
}

REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "a reader used before": (lambda: call(data=used()), "reader or generator can be read once"),
    "a used reader for a report": (
        lambda: on.report(MODEL, MODEL, "never.html", data=used()),
        "reader or generator can be read once",
    ),
    "arrays of several lengths": (
        lambda: call(data={"images": DATA, "labels": RIGHT[:3]}),
        "arrays of several lengths, [0-9]+ in 'images', 3 in 'labels'",
    ),
    "names of files": (lambda: call(data=["a.png", "b.png"]), "a.png': a file is named by a pathlib.Path"),
    "a misspelt preset": (lambda: call(config="U8S9"), "'U8S9' .* did you mean 'U8S8'"),
    "INT8": (lambda: call(config="INT8"), "did you mean 'A8W8' or 'U8S8'"),
    "a misspelt key": (lambda: call(config={"weigth": "int8"}), "'weigth' .* did you mean 'weight'"),
    "a misspelt target": (lambda: call(target="ort_cpu"), "target is 'ort_cpu'.* did you mean 'ort-cpu'"),
    "a mean in words": (lambda: call(mean="127.5"), "mean is '127.5', not a number"),
    "another name": (lambda: call(data=[{"image": DATA[:1]}]), "'image' is not an input .* 'images'"),
    "no model": (lambda: on.quantize("no.onnx", data=DATA), "no.onnx"),
    "labels in columns": (
        lambda: on.evaluate(MODEL, MODEL, data=DATA, labels=RIGHT[:, None]),
        "labels must be integers of shape",
    ),
}


def test_there_are_twenty() -> None:
    assert len(TAKEN) + len(REFUSED) == 20


@pytest.mark.parametrize("name", TAKEN)
def test_natural_calls_do_what_they_mean(name: str) -> None:
    assert TAKEN[name]().converted == EXPECTED


@pytest.mark.parametrize("name", REFUSED)
def test_others_are_refused_in_a_line(name: str) -> None:
    wrong, words = REFUSED[name]
    with pytest.raises((TypeError, ValueError, OSError), match=words) as caught:
        wrong()
    assert "\n" not in str(caught.value) and "--" not in str(caught.value)


def test_labels_are_an_array_or_a_list() -> None:
    for labels in (RIGHT, RIGHT.tolist()):
        assert on.evaluate(MODEL, MODEL, data=DATA, labels=labels)["top1"]["agreement"] == 1
