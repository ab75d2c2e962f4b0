"""The log of results. Oracle: squares, and how often each task was called."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.helpers import tasks
from transforms.run.task_log import TaskLog
from transforms.run.workers import Workers

NUMBERS = (0.1, -3.0, 2.5, 7.0)
SQUARES = [(number**2, 2 * number) for number in NUMBERS]


def items(folder: Path) -> dict[str, tasks.Square]:
    folder.mkdir(exist_ok=True)
    return {str(n): tasks.Square(n, str(folder)) for n in NUMBERS}


def test_numbers_read_back_to_the_last_bit(tmp_path: Path) -> None:
    values = {"a": 0.1 + 0.2, "b": math.inf, "c": -math.inf, "d": -0.0, "é\n": 5e-324, "e": 1e308}
    log = TaskLog(tmp_path / "log")
    for name, value in values.items():
        log.put(name, (value, 1.0))
    again = TaskLog(tmp_path / "log")
    for name, value in values.items():
        assert repr(again.get(name)) == repr(log.get(name)) == repr((value, 1.0))
    assert again.get("other") is None


@pytest.mark.parametrize(
    "torn", ['["b", 2', "[", '["b"]', '["b", "many"]', "\0\0\0", '["b", 2, null]', "\xff"]
)
def test_what_is_no_line_is_passed_over(tmp_path: Path, torn: str) -> None:
    TaskLog(tmp_path / "log").put("a", (1.0,))
    with (tmp_path / "log").open("ab") as file:
        file.write(b"\n" + torn.encode("latin-1"))
    log = TaskLog(tmp_path / "log")
    assert log.get("a") == (1.0,) and log.get("b") is None
    log.put("b", (3.0,))
    assert TaskLog(tmp_path / "log").get("b") == (3.0,)  # the torn line does not swallow what comes behind it


def test_the_last_number_of_a_name_counts(tmp_path: Path) -> None:
    for value in (1.0, 2.0):
        TaskLog(tmp_path / "log").put("a", (value,))
    assert TaskLog(tmp_path / "log").get("a") == (2.0,)


def test_results_are_on_disk_before_progress_is_told(tmp_path: Path) -> None:
    told: list[tuple[int, int, str]] = []

    def _tell(done: int, total: int, name: str) -> None:
        told.append((done, total, name))
        assert TaskLog(tmp_path / "log").get(name) is not None

    log = TaskLog(tmp_path / "log")
    assert log.run(tasks.square, items(tmp_path / "calls"), Workers(), _tell) == SQUARES
    assert told == [(i + 1, 4, str(number)) for i, number in enumerate(NUMBERS)]


def test_nothing_is_computed_twice(tmp_path: Path) -> None:
    TaskLog(tmp_path / "log").put("2.5", (99.0,))
    found = [*SQUARES[:2], (99.0,), SQUARES[3]]
    for _ in range(2):
        assert TaskLog(tmp_path / "log").run(tasks.square, items(tmp_path / "c"), Workers()) == found
    assert tasks.calls(tmp_path / "c") == {0.1: 1, -3.0: 1, 7.0: 1}


def test_an_interrupted_run_leaves_what_it_has(tmp_path: Path) -> None:
    def _interrupt(done: int, total: int, name: str) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        TaskLog(tmp_path / "log").run(tasks.square, items(tmp_path / "c"), Workers(), _interrupt)
    assert TaskLog(tmp_path / "log").run(tasks.square, items(tmp_path / "c"), Workers()) == SQUARES
    assert set(tasks.calls(tmp_path / "c").values()) == {1}
