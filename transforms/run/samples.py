"""The samples of a folder as feeds: .npz by input names, .npy and images for models with one input.

Images may lie in subfolders, one for each class.

For a language model with several inputs, .npy files hold tokens: a text, or one in each row.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from pathlib import Path
from types import MappingProxyType
from typing import Self

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import AnyArray
from transforms import features
from transforms.files.array_archive import read_arrays, read_headers
from transforms.files.array_header import ArrayHeader
from transforms.files.named_file import named
from transforms.run.array_files import (
    ARRAY_SUFFIXES,
    IMAGE_SUFFIXES,
    find_files,
    is_litter,
    natural_order,
    read_array,
    read_array_header,
)
from transforms.run.events import Events
from transforms.run.fitted import Fitting
from transforms.run.image_options import ImageOptions
from transforms.runtime.inputs import ModelInput, check_feed, taken_shape
from transforms.runtime.session import RunOptions

SAMPLE_SUFFIXES = (".npz", *ARRAY_SUFFIXES)
IDS = "input_ids"
"""The input for tokens, where there are several inputs."""

MASK, POSITIONS, TYPES = "attention_mask", "position_ids", "token_type_ids"
"""Inputs that grow with the tokens."""

GIVEN = "size, mean, std, layout or preprocess of images given"
"""Start of the error for options without effect."""

_CACHE = re.compile(r"past|cache", re.IGNORECASE)


class Samples:
    """The samples of a folder in natural order; iterating reads and checks one at a time."""

    def __init__(
        self,
        folder: Path,
        inputs: Sequence[ModelInput],
        images: ImageOptions | None = None,
        limit: int | None = None,
        fitting: Fitting | None = None,
    ) -> None:
        """List the folder, at most ``limit`` samples; ``fitting`` converts arrays to fit the inputs.

        Raises OSError or ValueError without samples, and without images if ``images`` is given.
        """
        found = find_files(folder, SAMPLE_SUFFIXES) or _of_classes(folder)
        if not found:
            raise ValueError(f"folder '{folder}' holds no .npz, .npy, .png or .jpg file")
        stems = {path: Path(name).stem for name, path in found.items()}
        self._open(list(found.values())[:limit], inputs, images, limit, stems, fitting)
        if self._images != ImageOptions() and not any(map(features.files_of, self._paths)):
            raise ValueError(f"{GIVEN}, but '{folder}' holds no image")

    @classmethod
    def of_files(
        cls,
        paths: Sequence[Path],
        inputs: Sequence[ModelInput],
        images: ImageOptions | None = None,
        fitting: Fitting | None = None,
    ) -> Self:
        """Return samples from files that are given as by :func:`sample_file`."""
        samples = cls.__new__(cls)
        samples._open(paths, inputs, images, None, fitting=fitting)
        return samples

    def _open(
        self,
        paths: Sequence[Path],
        inputs: Sequence[ModelInput],
        images: ImageOptions | None,
        limit: int | None,
        stems: Mapping[Path, str] = MappingProxyType({}),
        fitting: Fitting | None = None,
    ) -> None:
        self._inputs, self._images, self._paths = inputs, images or ImageOptions(), paths
        self._fitting = fitting
        self._stems = {path: stems.get(path, path.stem) for path in paths}
        self._check_stems()
        self._entries = [entry for path in paths for entry in self._rows(path)][:limit]

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._entries)

    @property
    def names(self) -> list[str]:
        """The names of the samples."""
        return [name for name, _, _ in self._entries]

    def tell_images(self, graph: gs.Graph, events: Events, run: RunOptions | None = None) -> None:
        """Report how images are scaled, if there are any, and warn if a graph was trained on others.

        Raises ValueError or OSError for images that cannot be read, or an input that takes none.
        """
        paths = [path for _, path, _ in self._entries if features.files_of(path)]
        files = features.files_of(paths[0]) if paths and len(self._inputs) == 1 else None
        if files is not None:
            events.note(files.line(paths, self._inputs[0], self._images))
            for warning in files.warnings(graph, self._read_by, self._images, run):
                events.warn(warning)

    def _read_by(self, images: ImageOptions) -> Samples:
        """Return the same samples, read with other options."""
        samples = copy(self)
        samples._images = images
        return samples

    def __iter__(self) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
        """Yield name (without suffix) and feed of each sample; ValueError when one does not fit the model."""
        for name, path, row in self._entries:
            yield name, self._checked(name, path, row)

    def feed(self, name: str) -> dict[str, np.ndarray]:
        """Return the feed of one of ``names``; ValueError when it does not fit."""
        return next(self._checked(*entry) for entry in self._entries if entry[0] == name)

    def _checked(self, name: str, path: Path, row: int | None) -> dict[str, np.ndarray]:
        feed = self._read(path, row)
        check_feed(self._inputs, feed, path.name if row is None else name)
        return feed

    def _rows(self, path: Path) -> Iterator[tuple[str, Path, int | None]]:
        """Yield the samples in a file: name, path, and the row if each row is a text."""
        if path.suffix.lower() == ".npy" and takes_tokens(self._inputs):
            shape = read_array_header(path).shape
            if len(shape) == 2:
                yield from ((f"{self._stems[path]}-{row + 1}", path, row) for row in range(shape[0]))
                return
        yield self._stems[path], path, None

    def _check_stems(self) -> None:
        seen: dict[str, Path] = {}
        for path, stem in self._stems.items():
            if stem in seen:
                raise ValueError(f"'{seen[stem].name}' and '{path.name}' would have the same result file")
            seen[stem] = path

    def _read(self, path: Path, row: int | None) -> dict[str, np.ndarray]:
        if path.suffix.lower() == ".npz":
            return _read_npz(path, self._inputs, self._fitting)
        if path.suffix.lower() == ".npy" and takes_tokens(self._inputs):
            return self._read_tokens(path, row)
        if len(self._inputs) != 1:
            names = ", ".join(f"'{wanted.name}'" for wanted in self._inputs)
            raise ValueError(f"sample '{path.name}': the model has inputs {names}, which takes a .npz file")
        only = self._inputs[0]
        if files := features.files_of(path):
            return {only.name: files.read(path, only, self._images)}
        _check_headers(self._inputs, {only.name: read_array_header(path)}, path.name, self._fitting)
        feed = {only.name: read_array(path)}
        return feed if self._fitting is None else self._fitting.of(feed, self._inputs)

    def _read_tokens(self, path: Path, row: int | None) -> dict[str, np.ndarray]:
        tokens = read_array(path) if row is None else read_array(path)[row]
        with named(path):
            if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
                raise ValueError(f"{tokens.dtype} {list(tokens.shape)} instead of tokens [n] or [texts, n]")
            return token_feed(tokens, self._inputs)


def sample_file(path: Path, number: int, *, steps: bool = False) -> Path:
    """Return ``path`` after checking that it may be a sample, or with ``steps`` a folder of steps.

    ``number``: of the sample, for errors. Raises FileNotFoundError, and ValueError for another suffix.
    """
    if not path.exists():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    if not (steps and path.is_dir()) and path.suffix.lower() not in SAMPLE_SUFFIXES:
        raise ValueError(f"sample {number}: '{path}' ends in none of {', '.join(SAMPLE_SUFFIXES)}")
    return path


def _of_classes(folder: Path) -> dict[str, Path]:
    """Return the images in class subfolders of a folder, by CLASS-NAME."""
    classes = [path for path in folder.iterdir() if path.is_dir() and not is_litter(path.name)]
    return {
        f"{class_folder.name}-{name}": path
        for class_folder in sorted(classes, key=lambda path: natural_order(path.name))
        for name, path in find_files(class_folder, IMAGE_SUFFIXES).items()
    }


def _check_headers(
    inputs: Sequence[ModelInput], headers: Mapping[str, ArrayHeader], name: str, fitting: Fitting | None
) -> None:
    check_feed(inputs, headers if fitting is None else fitting.of_headers(headers, inputs), name)


def _read_npz(path: Path, inputs: Sequence[ModelInput], fitting: Fitting | None) -> dict[str, np.ndarray]:
    """Return the arrays of an archive, read after their headers were checked against the model.

    An empty array, such as a cache before the first token, gets the type and width that the model takes.
    """
    with named(path):
        headers = read_headers(path)
    for wanted in inputs:
        if wanted.name in headers and 0 in headers[wanted.name].shape:
            headers[wanted.name] = ArrayHeader(wanted.dtype, taken_shape(wanted, headers[wanted.name]))
    _check_headers(inputs, headers, path.name, fitting)
    with named(path):
        arrays = read_arrays(path)
    feed = {
        name: arrays[name].astype(wanted.dtype, copy=False).reshape(wanted.shape)
        for name, wanted in headers.items()
    }
    return feed if fitting is None else fitting.of(feed, inputs)


def takes_tokens(inputs: Sequence[ModelInput]) -> bool:
    """Return whether a model has several inputs, one of them for tokens."""
    return len(inputs) > 1 and any(model_input.name == IDS for model_input in inputs)


def token_feed(tokens: AnyArray, inputs: Sequence[ModelInput]) -> dict[str, np.ndarray]:
    """Return the feed for a text of tokens [n]: a batch of one, without a past.

    Masks are ones, positions count from 0, types are zeros, and caches are empty: their first dimension is
    1, other free dimensions are 0. Raises ValueError for another input.
    """
    count = len(tokens)
    token_arrays = {
        IDS: tokens,
        MASK: np.ones(count),
        POSITIONS: np.arange(count),
        TYPES: np.zeros(count),
    }
    feed = {}
    for model_input in inputs:
        if model_input.name in token_arrays:
            feed[model_input.name] = (
                np.asarray(token_arrays[model_input.name]).reshape(1, count).astype(model_input.dtype)
            )
        elif _CACHE.search(model_input.name) and len(model_input.shape) > 1:
            shape = [
                1 if model_input.shape[0] is None else model_input.shape[0],
                *(size or 0 for size in model_input.shape[1:]),
            ]
            feed[model_input.name] = np.zeros(shape, model_input.dtype)
        else:
            raise ValueError(f"input '{model_input.name}' does not follow from tokens: it takes .npz samples")
    return feed
