"""Random samples in memory, as the Python interface takes them: data sets, readers, generators."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import onnx_narrow
from tests.attack.draft import Draft, Random
from tests.attack.graphs.tool_runs import Fallen
from tests.attack.rolled import Feeds
from tests.attack.tried import Tries, on_model

_MANY = 40
"""Samples that are taken at the most of a source of ten; one without end says so itself."""


class ReadPastTheEnd(Exception):
    """A source was asked for more than it said it has."""


@dataclass
class Source:
    """Samples in some form: what is handed over, options with it, and the samples that count, None where
    they have to be refused."""

    data: Any
    right: list[Feeds] | None
    options: dict[str, Any]


class _DataSet:
    """A data set with indices; ``length`` None: it has none, and its end is what ``end`` raises."""

    def __init__(self, samples: list[Any], end: type[Exception] | None) -> None:
        self._samples, self._end = samples, end

    def __getitem__(self, i: int) -> Any:
        if self._end and i >= len(self._samples):
            raise self._end(i)
        if i >= _MANY:
            raise ReadPastTheEnd(i)
        return self._samples[i % len(self._samples)]


class _Sized(_DataSet):
    """The same with a length."""

    def __len__(self) -> int:
        return len(self._samples)


class _Loader:
    """What can be iterated again and again, as a loader of batches."""

    def __init__(self, samples: list[Any]) -> None:
        self._samples = samples

    def __iter__(self) -> Iterator[Any]:
        return iter(self._samples)

    def __len__(self) -> int:
        return len(self._samples) + 3  # an estimate, as loaders with workers give


class _Reader:
    """ONNX Runtime's reader of calibration data."""

    def __init__(self, samples: list[Any]) -> None:
        self._left = iter(samples)

    def get_next(self) -> Any:
        return next(self._left, None)


def _endless(samples: list[Any]) -> Iterator[Any]:
    for i in range(_MANY):
        yield samples[i % len(samples)]
    raise ReadPastTheEnd


class _Tensor:
    """A tensor of another library: it has to be detached, moved and converted."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def detach(self) -> _Tensor:
        return self

    def cpu(self) -> _Tensor:
        return self

    def numpy(self) -> np.ndarray:
        return self._array


def attack(seed: int, folder: Path) -> str | None:
    """Quantize with the samples of a seed; return None, or what fell in one line."""
    rng = np.random.default_rng([seed, 16])
    names = [
        str(name) for name in rng.choice(("x", "file", "self", "y.0"), int(rng.integers(1, 3)), replace=False)
    ]
    tries = on_model(_model(rng, names), folder)
    rows = rng.integers(1, 4, 10)
    feeds = [{name: rng.standard_normal((n, 4)).astype(np.float32) for name in names} for n in rows]
    source = FORMS[int(rng.integers(len(FORMS)))](rng, names, feeds)
    with tries.temporary_files():
        tries.attempt(type(source.data).__name__, _called, tries, source, rng)
    return tries.failure


def _model(rng: Random, names: list[str]) -> onnx.ModelProto:
    draft = Draft(rng)
    draft.op("Sum", [draft.op("MatMul", [name, draft.weight(4, 3)]) for name in names], "out")
    end = ["n", 4], np.float32
    return draft.model(dict.fromkeys(names, end), {"out": (["n", 3], np.float32)})


def _samples(rng: Random, names: list[str], feeds: list[Feeds]) -> list[Any]:
    """Return samples as dicts, tuples with a label behind them, bare arrays or tensors."""
    kind = int(rng.integers(4))
    if kind == 0:
        return list(feeds)
    wrap: Callable[[np.ndarray], Any] = _Tensor if kind == 1 else np.asarray
    rows: list[Any] = [[wrap(feed[name]) for name in names] for feed in feeds]
    if kind == 2 and len(names) == 1:
        return [row[0] for row in rows]
    return [(*row, 3) for row in rows]


def _sequence(rng: Random, names: list[str], feeds: list[Feeds]) -> Source:
    samples = _samples(rng, names, feeds)
    ways: tuple[Callable[[], Any], ...] = (
        *(lambda: samples, lambda: tuple(samples), lambda: iter(samples), lambda: _Loader(samples)),
        *(lambda: lambda: iter(samples), lambda: _DataSet(samples, IndexError)),
        *(
            lambda: _Sized(samples, IndexError),
            lambda: _Sized(samples, None),
            lambda: _Sized(samples, KeyError),
        ),
    )
    return Source(ways[int(rng.integers(len(ways)))](), feeds, {})


def _reader(rng: Random, names: list[str], feeds: list[Feeds]) -> Source:
    return Source(_Reader(list(feeds)), feeds, {})


def _limited(rng: Random, names: list[str], feeds: list[Feeds]) -> Source:
    """A source without end is read up to the limit."""
    samples, count = _samples(rng, names, feeds), int(rng.integers(1, 9))
    data = _endless(samples) if rng.random() < 0.5 else _Sized(samples, None)
    return Source(data, feeds[:count], {"limit": count})


def _of_none(rng: Random, names: list[str], feeds: list[Feeds]) -> Source:
    """No samples at all, or what is none."""
    array = feeds[0][names[0]]
    choices = ([], (), iter(()), {}, 5, np.float32(3), feeds[0], [None], [[]], [{}], _Reader([]), b"abc", "",
               [3], [{"no": array}], object(), [array.astype(str)])  # fmt: skip
    return Source(choices[int(rng.integers(len(choices)))], None, {})


FORMS = (_sequence, _sequence, _sequence, _reader, _limited, _of_none)


def _called(tries: Tries, source: Source, rng: Random) -> None:
    config = str(rng.choice(("A8W8", "U8S8")))
    asked = {"config": config, "fast": True, "time": False}
    try:
        done = onnx_narrow.quantize(tries.source, data=source.data, **asked, **source.options)
    except (ValueError, OSError, TypeError) as error:
        words = str(error)
        tries.notes.append(f"refused: {type(error).__name__}: {words[:80]}")
        if source.right is not None:
            raise Fallen(f"refused: {words}") from None
        if str(tempfile.tempdir) in words:
            raise Fallen(f"names a folder that is gone: {words}") from None
        if len(words.splitlines()) != 1 or type(error) not in (ValueError, TypeError, *_OF_FILES):
            raise Fallen(f"not a line of words: {type(error).__name__}: {words}") from None
        return
    except Exception as error:
        raise Fallen(f"ended in {type(error).__name__}: {error}") from error
    if source.right is None:
        raise Fallen("taken, though it has no samples")
    expected = onnx_narrow.quantize(tries.source, data=tries.save("right", source.right), **asked)
    if done.model.graph != expected.model.graph:
        raise Fallen("not the model that the same samples in a folder make")


_OF_FILES = (OSError, FileNotFoundError, IsADirectoryError, NotADirectoryError)
