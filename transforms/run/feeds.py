"""The data of calibration: feeds from a folder, a reader or any iterable, each of them checked."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ops.array_types import Feed
from transforms.files.array_archive import native
from transforms.files.paths import AnyPath
from transforms.run.data_sets import NO_SAMPLE, Reader, arrays_of, each_sample, length_of
from transforms.run.fitted import Fitting
from transforms.run.image_options import ImageOptions
from transforms.run.samples import GIVEN, Samples, sample_file, takes_tokens, token_feed
from transforms.runtime.inputs import ModelInput, check_feed, random_array

T = TypeVar("T")


Source = AnyPath | Reader | Iterable[Any]


class Feeds:
    """The named feeds of a source, in order, checked one by one.

    ``len()`` raises TypeError if the number is unknown; ``is_repeatable`` tells whether the feeds can be
    iterated more than once.
    """

    def __init__(
        self,
        take: Callable[[], Iterable[tuple[str, Feed]]],
        inputs: Sequence[ModelInput],
        *,
        count: int | None = None,
        is_repeatable: bool = True,
    ) -> None:
        """Take the function that yields named feeds, and the inputs to check them against."""
        self._take, self._inputs, self._count = take, tuple(inputs), count
        self.is_repeatable = is_repeatable

    def __len__(self) -> int:
        if self._count is None:
            raise TypeError("the number of samples is not known beforehand")
        return self._count

    def __iter__(self) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
        """Yield name and feed of each sample.

        ValueError, naming sample and input, when one does not fit the model or holds NaN; ValueError when
        there is none.
        """
        name = None
        for name, feed in self._take():
            checked = {key: native(np.asarray(array)) for key, array in feed.items()}
            check_feed(self._inputs, checked, name)
            _refuse_nan(checked, name)
            yield name, checked
        if name is None:
            raise ValueError(NO_SAMPLE)

    def hash(self) -> str:
        """Return a SHA-256 of all feeds: arrays with names, types and shapes, in order.

        ValueError if the feeds are not repeatable.
        """
        if not self.is_repeatable:
            raise ValueError("the data come from a reader or a generator, which cannot be read twice")
        digest = hashlib.sha256()
        for _, feed in self:
            for name in sorted(feed):
                array = feed[name]
                digest.update(f"{name}\0{array.dtype.str}{array.shape}\0".encode())
                digest.update(array.tobytes())
            digest.update(b"\n")
        return digest.hexdigest()


def open_feeds(
    source: Source,
    inputs: Sequence[ModelInput],
    *,
    images: ImageOptions | None = None,
    limit: int | None = None,
    fitting: Fitting | None = None,
) -> Feeds:
    """Return the feeds of a source for a model's inputs, at most ``limit`` of them.

    A source is a folder of .npz, .npy and image files (:class:`transforms.run.samples.Samples`, ``images``
    says how to read the last), an object with ``get_next()`` as ONNX Runtime's CalibrationDataReader, or an
    iterable, which ends as :func:`transforms.run.data_sets.each_sample` says. A sample of the last two is a
    feed by input name, an array or a tuple in the order of the inputs, or the path (a PathLike, no string) of
    a file as in a folder; it is named by its number, from 0. Arrays are brought into the form of the inputs
    by ``fitting``, if that is given. Raises OSError or ValueError for a folder
    without samples, ValueError for an empty list, a limit below 1, or image options without images.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit of {limit} samples, at least 1 is needed")
    if isinstance(source, str | os.PathLike):
        samples = Samples(Path(source), inputs, images, limit, fitting)
        return Feeds(lambda: samples, inputs, count=len(samples))
    has_files = isinstance(source, list) and any(isinstance(sample, os.PathLike) for sample in source)
    if images not in (None, ImageOptions()) and not has_files:
        raise ValueError(f"{GIVEN}, but the samples come from no folder")
    length = length_of(source)
    if length == 0:
        raise ValueError(NO_SAMPLE)
    count = None if length is None else min(length, limit or length)
    is_repeatable = not isinstance(source, Reader) and iter(source) is not source

    def _take() -> Iterator[tuple[str, Feed]]:
        return _named(source, inputs, images, limit, fitting)

    return Feeds(_take, inputs, count=count, is_repeatable=is_repeatable)


def random_feeds(inputs: Sequence[ModelInput], count: int, seed: int = 0) -> Feeds:
    """Return ``count`` feeds of random numbers, the same for the same seed.

    Floats are standard normal, integers and booleans are 0 or 1, strings are empty; a free dimension is 1.
    Ranges from such data say little about real data.
    """
    if count < 1:
        raise ValueError(f"{count} random samples, at least 1 is needed")

    def _take() -> Iterator[tuple[str, Feed]]:
        random = np.random.default_rng(seed)
        for i in range(count):
            yield f"random{i}", {wanted.name: random_array(wanted, random) for wanted in inputs}

    return Feeds(_take, inputs, count=count)


def spread(samples: Sequence[T], most: int) -> list[T]:
    """Return at most ``most`` samples, evenly spread and in order."""
    count = min(most, len(samples))
    return [samples[i * len(samples) // count] for i in range(count)]


def batch_feeds(feeds: Sequence[Feed], inputs: Sequence[ModelInput], size: int) -> list[Feed]:
    """Return feeds of ``size`` samples each, joined along the first axis; the last may be smaller.

    Raises ValueError if the first dimension of an input is fixed, or samples differ in other dimensions.
    """
    if size == 1:
        return list(feeds)
    for tensor in inputs:
        if not tensor.shape or tensor.shape[0] is not None:
            where = f"input '{tensor.name}' {list(tensor.shape)}"
            raise ValueError(f"batch size {size}: the first dimension of {where} is not free")
    return [_join(feeds[i : i + size], i) for i in range(0, len(feeds), size)]


def _named(
    source: Reader | Iterable[Any],
    inputs: Sequence[ModelInput],
    images: ImageOptions | None,
    limit: int | None,
    fitting: Fitting | None,
) -> Iterator[tuple[str, Feed]]:
    """Yield each sample by its number as a feed; a file with several texts gives several samples."""
    for i, sample in enumerate(each_sample(source, limit)):
        if isinstance(sample, os.PathLike):
            samples = Samples.of_files([sample_file(Path(sample), i)], inputs, images, fitting)
            names = [str(i)] if len(samples) == 1 else [f"{i}-{row + 1}" for row in range(len(samples))]
            yield from ((name, feed) for name, (_, feed) in zip(names, samples, strict=True))
        else:
            feed = by_name(arrays_of(sample), inputs, i)
            yield str(i), feed if fitting is None else fitting.of(feed, inputs)


def by_name(arrays: Feed | list[np.ndarray], inputs: Sequence[ModelInput], number: int) -> Feed:
    """Return the arrays of a sample by the names of inputs; ValueError where there are too few.

    One array of tokens is enough for a language model, as in a file. Raises
    TypeError for a string in place of numbers.
    """
    if isinstance(arrays, Mapping):
        return arrays
    names = [wanted.name for wanted in inputs]
    if len(arrays) == 1 and arrays[0].ndim == 1 and arrays[0].dtype.kind in "iu" and takes_tokens(inputs):
        return token_feed(arrays[0], inputs)
    if len(arrays) < len(names):
        raise ValueError(f"sample {number} has {len(arrays)} arrays, the model has inputs {', '.join(names)}")
    for array, wanted in zip(arrays, inputs, strict=False):
        if array.dtype.kind == "U" and array.ndim == 0 and wanted.dtype.kind != "U":
            raise TypeError(f"sample {number} is the string '{array}': a file is named by a pathlib.Path")
    return dict(zip(names, arrays, strict=False))


def _refuse_nan(feed: Feed, sample: str) -> None:
    for name, array in feed.items():
        if array.dtype.kind == "f" and np.isnan(array).any():
            raise ValueError(f"sample '{sample}', input '{name}': it holds NaN")


def _join(feeds: Sequence[Feed], first: int) -> Feed:
    joined = {}
    for name in feeds[0]:
        shapes = {feed[name].shape[1:] for feed in feeds}
        if len(shapes) > 1:
            raise ValueError(f"samples {first} to {first + len(feeds) - 1} differ in shape, input '{name}'")
        joined[name] = np.concatenate([feed[name] for feed in feeds])
    return joined
