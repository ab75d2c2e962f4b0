"""How many samples are read of a data set. Oracle: how often it was asked for one."""

from __future__ import annotations

import itertools
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from transforms.run import data_sets
from transforms.run.data_sets import Room, each_sample


class Endless:
    """A sample for any index, as of random data."""

    def __init__(self) -> None:
        self.asked = 0

    def __getitem__(self, index: int) -> int:
        self.asked += 1
        return index


class Long(Endless):
    def __len__(self) -> int:
        return 4


class Iterated(Long):
    """Iteration wins over indices, which have other samples."""

    def __iter__(self) -> Iterator[int]:
        for number in itertools.count(10):
            self.asked += 1
            yield number


class Unknown(Iterated):
    """Has a length by its class, but does not know it, as endless data sets of frameworks."""

    def __len__(self) -> int:
        raise TypeError("the data set is endless")


class Reader:
    """Like a calibration reader that begins again."""

    def __init__(self) -> None:
        self.asked = 0

    def get_next(self) -> int:
        self.asked += 1
        return self.asked

    def __len__(self) -> int:
        return 4


class Short(Long):
    def __getitem__(self, index: int) -> int:
        if index == 2:
            raise IndexError("list index out of range")
        return index


@pytest.mark.parametrize(
    ("kind", "limit", "expected"),
    [
        (Long, None, [0, 1, 2, 3]),
        (Long, 3, [0, 1, 2]),
        (Long, 9, [0, 1, 2, 3]),
        (Endless, 3, [0, 1, 2]),
        (Iterated, None, [10, 11, 12, 13]),
        (Iterated, 2, [10, 11]),
        (Unknown, 2, [10, 11]),
        (Reader, None, [1, 2, 3, 4]),
        (Reader, 2, [1, 2]),
    ],
)
def test_as_many_as_the_length_and_the_limit_say(
    kind: Callable[[], Any], limit: int | None, expected: list[int]
) -> None:
    data = kind()
    assert list(each_sample(data, limit)) == expected and data.asked == len(expected)
    assert list(each_sample(kind, limit)) == expected  # made when it is called


@pytest.mark.parametrize("kind", [Endless, Unknown, lambda: itertools.count()])
def test_no_end_in_sight(kind: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_sets, "MOST", 5)
    found = each_sample(kind())
    assert len(list(itertools.islice(found, 5))) == 5
    with pytest.raises(ValueError, match=r"^the data, a \w+, has no length and has not ended after 5"):
        next(found)
    assert len(list(each_sample(iter(range(5))))) == 5


class Empty(Long):
    def __len__(self) -> int:
        return 0


@pytest.mark.parametrize("data", [[], (), iter([]), lambda: [], Empty()])
def test_no_sample(data: Any) -> None:
    with pytest.raises(ValueError, match=r"^the data hold no sample(; a reader or gen.*)?$"):
        list(each_sample(data))


def test_a_length_that_is_not_true() -> None:
    with pytest.raises(
        ValueError, match=r"^the data have a length of 4, but no sample 2: list index out of range$"
    ):
        list(each_sample(Short()))


def test_samples_that_fill_a_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(data_sets.shutil, "disk_usage", lambda folder: usage(2000))
    room = Room(tmp_path)
    for _ in range(2):
        room.take(500)
    with pytest.raises(ValueError, match=r"^the first 3 samples take 1,001 bytes: .* at most 1,000, half of"):
        room.take(1)
