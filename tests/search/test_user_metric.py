"""Functions that users write. Oracle: what each file below says."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from transforms.search.user_metric import SampleSet, load_metric

OUTPUTS = [{"y": np.array([1.0, 2.0])}, {"y": np.array([3.0, 5.0])}]


def write(folder: Path, text: str, name: str = "metric.py") -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return f"{folder / name}:accuracy"


def test_the_function_gets_the_outputs_of_all_samples(tmp_path: Path) -> None:
    text = "def accuracy(outputs):\n    return sum(one['y'].sum() for one in outputs) / len(outputs)\n"
    value = load_metric(write(tmp_path, text))(OUTPUTS)
    assert value == 5.5 and type(value) is float


def test_files_may_hold_data_classes_and_have_one_name(tmp_path: Path) -> None:
    text = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass Score:\n    value: int\n"
        "def accuracy(outputs: list) -> float:\n    return Score({}).value\n"
    )
    (tmp_path / "other").mkdir()
    first = load_metric(write(tmp_path, text.format(1)))
    second = load_metric(write(tmp_path / "other", text.format(2)))
    assert (first(OUTPUTS), second(OUTPUTS)) == (1.0, 2.0)


def test_a_file_written_anew_in_the_same_second_is_read_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's own cache of bytecode goes by seconds and size; nothing is left beside the user's file."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    for value in (1, 2):
        place = write(tmp_path, f"def accuracy(outputs):\n    return {value}\n")
        os.utime(tmp_path / "metric.py", (1e9, 1e9))
        assert load_metric(place)(OUTPUTS) == value
    assert [path.name for path in tmp_path.iterdir()] == ["metric.py"]


def test_what_the_function_does_to_the_list_stays_there(tmp_path: Path) -> None:
    metric = load_metric(write(tmp_path, "def accuracy(o):\n    o[0].clear()\n    o.clear()\n    return 1\n"))
    assert metric(OUTPUTS) == 1.0
    assert len(OUTPUTS) == 2 and "y" in OUTPUTS[0]


@pytest.mark.parametrize("place", ["metric.py", "metric:f", "metric.py:", "metric.py:1f", ":f", "a.py:b.c"])
def test_what_is_no_place(place: str) -> None:
    with pytest.raises(ValueError, match=f"^evaluate '{place}' is not FILE.py:FUNCTION$"):
        load_metric(place)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "def accurate(o): pass\nx = 3\n",
            "there is no function 'accuracy', did you mean 'accurate'? the file has accurate",
        ),
        ("accuracy = 3\n", "there is no function 'accuracy', the file has none"),
        ("1 / 0\n", "the file failed: ZeroDivisionError: division by zero"),
        ("raise SystemExit(2)\n", "the file failed: SystemExit: 2"),
        ("def accuracy(:\n", "the file failed: SyntaxError: "),
    ],
)
def test_files_that_will_not_do(text: str, words: str, tmp_path: Path) -> None:
    place = write(tmp_path, text)
    with pytest.raises(ValueError) as caught:
        load_metric(place)
    assert str(caught.value).startswith(f"evaluate '{place}': {words}")
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    place = f"{tmp_path / 'none.py'}:f"
    with pytest.raises(ValueError) as caught:
        load_metric(place)
    assert str(caught.value) == f"evaluate '{place}': there is no file '{tmp_path / 'none.py'}'"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return outputs[0]['z']", "failed: KeyError: 'z'"),
        ("raise ValueError('one\\n  two')", "failed: ValueError: one two"),
        ("raise ValueError('x' * 999)", "failed: ValueError: xxx"),
        ("assert False", "failed: AssertionError"),
        ("import sys; sys.exit()", "failed: SystemExit"),
        ("return float('nan')", "returned nan, it must be a finite number"),
        ("return -1e999", "returned -inf, it must be a finite number"),
        ("return None", "returned None, it must be a finite number"),
        ("return '0.5'", "returned '0.5', it must be a finite number"),
        ("import numpy; return numpy.ones(3)", "returned array([1., 1., 1.]), it must be a finite number"),
    ],
)
def test_functions_that_fail_or_return_no_number(body: str, words: str, tmp_path: Path) -> None:
    place = write(tmp_path, f"def accuracy(outputs):\n    {body}\n")
    metric = load_metric(place)
    with pytest.raises(ValueError) as caught:
        metric(OUTPUTS)
    assert str(caught.value).startswith(f"evaluate '{place}' {words}")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < len(place) + 250


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    text = "import numpy\ndef accuracy(outputs):\n    return numpy.float32(0.25)\n"
    assert load_metric(write(tmp_path, text))(OUTPUTS) == 0.25


def test_a_function_gets_what_it_has_parameters_for(tmp_path: Path) -> None:
    text = "def accuracy(made, places, expected, *, inputs, more=3):\n    return [places[0], len(expected)]\n"
    metric = load_metric(write(tmp_path, text))
    samples = SampleSet(OUTPUTS, OUTPUTS, OUTPUTS, [4, 9])
    assert list(np.atleast_1d(metric.figures(samples))) == [4.0, 2.0] and metric(samples) == 3.0
    with pytest.raises(ValueError, match=r"asks for places, which are not known here$"):
        metric(OUTPUTS)


def test_a_parameter_that_nothing_is_known_for(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has a parameter 'labels': beside the outputs, legal are "):
        load_metric(write(tmp_path, "def accuracy(outputs, labels):\n    return 1\n"))
