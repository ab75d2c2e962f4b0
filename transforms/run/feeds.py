"""What a model is calibrated with: feeds from a folder, a reader or any iterable, each of them checked."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from numpy.typing import ArrayLike

from ops.array_types import Feed
from transforms.run.run_model import ModelInput, check_feed
from transforms.run.samples import ImageOptions, Samples


@runtime_checkable
class Reader(Protocol):
    """ONNX Runtime's CalibrationDataReader: a feed at each call, then None."""

    def get_next(self) -> Mapping[str, ArrayLike] | None:
        """Return the next feed, None behind the last."""


Source = str | Path | Reader | Iterable[Mapping[str, ArrayLike]]


class Feeds:
    """The named feeds of a source, in order, checked one by one as they are taken.

    ``len()`` raises TypeError where the number is not known beforehand; ``is_repeatable`` tells whether the
    feeds can be taken more than once.
    """

    def __init__(
        self,
        take: Callable[[], Iterable[tuple[str, Feed]]],
        inputs: Sequence[ModelInput],
        *,
        count: int | None = None,
        is_repeatable: bool = True,
    ) -> None:
        """Keep how to take the named feeds for the inputs."""
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
            checked = {key: _native(array) for key, array in feed.items()}
            check_feed(self._inputs, checked, name)
            _refuse_nan(checked, name)
            yield name, checked
        if name is None:
            raise ValueError("the calibration data hold no sample")

    def hash(self) -> str:
        """Return a SHA-256 of all feeds: the arrays with their names, types and shapes, in order.

        ValueError when they could then not be taken again.
        """
        if not self.is_repeatable:
            raise ValueError("the data come from a reader or a generator, which can not be read twice")
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
) -> Feeds:
    """Return the feeds of a source for a model's inputs, at most ``limit`` of them.

    A source is a folder of .npz, .npy and image files (:class:`transforms.run.samples.Samples`, ``images``
    says how to read the last), an object with ``get_next()`` as ONNX Runtime's CalibrationDataReader, or an
    iterable of feeds by input name. Samples of the last two are named by their number, from 0. Raises
    OSError or ValueError for a folder without samples, a limit below 1, or image options without images.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit of {limit} samples, at least 1 is needed")
    if isinstance(source, str | Path):
        samples = Samples(Path(source), inputs, images, limit)
        return Feeds(lambda: samples, inputs, count=len(samples))
    if images not in (None, ImageOptions()):
        raise ValueError("size, mean, std or layout of images given, but the samples come from no folder")
    if isinstance(source, Reader):
        reader = source
        return Feeds(lambda: _number(_read(reader), limit), inputs, is_repeatable=False)
    repeatable = iter(source) is not source
    count = min(len(source), limit or len(source)) if isinstance(source, Sized) else None
    return Feeds(lambda: _number(source, limit), inputs, count=count, is_repeatable=repeatable)


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
            yield f"random{i}", {one.name: _random(one, random) for one in inputs}

    return Feeds(_take, inputs, count=count)


def model_inputs(graph: gs.Graph) -> tuple[ModelInput, ...]:
    """Return the inputs of a graph, as a session on it would describe them.

    Raises ValueError for an input without type and shape, of a type that NumPy does not have, or that is no
    tensor.
    """
    return tuple(_describe(tensor) for tensor in graph.inputs)


def _describe(tensor: gs.Tensor) -> ModelInput:
    if isinstance(tensor, gs.Variable) and tensor.type != "tensor_type":
        kind = str(tensor.type).removesuffix("_type").replace("_", " ")
        raise ValueError(f"input '{tensor.name}' is of type {kind}, samples hold only tensors")
    if tensor.dtype is None or tensor.shape is None:
        raise ValueError(f"input '{tensor.name}' has no declared type and shape")
    if isinstance(tensor.dtype, int):  # how graph-surgeon writes the types that NumPy does not have
        kind = onnx.TensorProto.DataType.Name(tensor.dtype)
        raise ValueError(f"input '{tensor.name}' of type {kind} can not be fed from arrays")
    dtype = np.dtype(tensor.dtype)
    shape = tuple(size if isinstance(size, int) and size >= 0 else None for size in tensor.shape)
    return ModelInput(tensor.name, np.dtype(np.str_) if dtype.kind == "O" else dtype, shape)


def _read(reader: Reader) -> Iterator[Mapping[str, ArrayLike]]:
    while feed := reader.get_next():  # some readers end with an empty feed
        yield feed


def _number(source: Iterable[Any], limit: int | None) -> Iterator[tuple[str, Feed]]:
    for i, feed in enumerate(islice(source, limit)):
        if not isinstance(feed, Mapping):
            raise ValueError(f"sample '{i}': a {type(feed).__name__} instead of arrays by input name")
        yield str(i), feed


def _native(array: ArrayLike) -> np.ndarray:
    array = np.asarray(array)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _refuse_nan(feed: Feed, sample: str) -> None:
    for name, array in feed.items():
        if array.dtype.kind == "f" and np.isnan(array).any():
            raise ValueError(f"sample '{sample}', input '{name}': it holds NaN")


def _random(one: ModelInput, random: np.random.Generator) -> np.ndarray:
    shape = [1 if size is None else size for size in one.shape]
    if one.dtype.kind == "f":
        return random.standard_normal(shape).astype(one.dtype)
    if one.dtype.kind == "U":
        return np.full(shape, "")
    return random.integers(0, 2, shape).astype(one.dtype)
