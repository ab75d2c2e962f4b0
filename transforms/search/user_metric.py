"""Load a user's function, such as a metric, from a Python file named as ``FILE.py:FUNCTION``."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ops.legal_names import did_you_mean
from transforms.search.output_metrics import Outputs

UserMetric = Callable[..., Any]
"""A user's function, called as :class:`LoadedMetric` describes; higher is better."""

ASKED = ("expected", "inputs", "places")
"""Parameters that a function may have in addition to the first: fields of :class:`SampleSet`."""


@dataclass(frozen=True)
class SampleSet:
    """Samples in order: the outputs of a model for each, by name.

    ``expected``: the outputs of the float model; ``inputs``: the feeds; ``places``: the indices of the
    samples in the data, from 0, to look up labels. Fields that are not known are empty.
    """

    outputs: Sequence[Outputs]
    expected: Sequence[Outputs] = ()
    inputs: Sequence[Outputs] = ()
    places: Sequence[int] = ()

    def without(self, number: int) -> SampleSet:
        """Return the samples without one of them."""
        remaining = [i for i in range(len(self.outputs)) if i != number]
        values = {attribute.name: getattr(self, attribute.name) for attribute in fields(self)}
        return SampleSet(
            **{name: [value[i] for i in remaining] if value else () for name, value in values.items()}
        )

    def of_float(self) -> SampleSet:
        """Return the samples with the outputs of the float model."""
        return replace(self, outputs=self.expected)


class LoadedMetric:
    """A user's function, called with the outputs of samples; ``figures`` checks what it returns.

    It gets a list of dictionaries of arrays, the outputs of each sample by name, and as keywords those of
    ``ASKED`` that it has parameters for. It returns one number, or one for each sample; higher is better.
    ``said``: its name in errors.
    """

    def __init__(self, function: UserMetric, said: str) -> None:
        """Take the function; ValueError for a parameter without default that is not in ``ASKED``."""
        self.said, self._function = said, function
        try:
            parameters = list(inspect.signature(function).parameters.values())[1:]
        except (TypeError, ValueError):  # a function written in C, such as sum
            parameters = []
        by_name = [
            item for item in parameters if item.kind in (item.POSITIONAL_OR_KEYWORD, item.KEYWORD_ONLY)
        ]
        self._asked = [item.name for item in by_name if item.name in ASKED]
        unknown = [item.name for item in by_name if item.name not in ASKED and item.default is item.empty]
        if unknown:
            legal = ", ".join(ASKED)
            raise ValueError(f"{said} has a parameter '{unknown[0]}': beside the outputs, legal are {legal}")

    def figures(self, samples: SampleSet) -> float | NDArray[np.float64]:
        """Return the result of the function: one finite number, or one for each sample, [samples].

        Raises ValueError if the function fails, returns anything else, or asks for an unknown field.
        """
        missing = [name for name in self._asked if not getattr(samples, name)]
        if missing:
            raise ValueError(f"{self.said} asks for {missing[0]}, which are not known here")
        asked = {name: list(getattr(samples, name)) for name in self._asked}
        try:
            value = self._function([dict(sample) for sample in samples.outputs], **asked)
        except (Exception, SystemExit) as error:
            raise ValueError(f"{self.said} failed: {one_line(error)}") from error
        # anything but numbers becomes NaN, which is refused
        try:
            figures = np.asarray(math.nan if isinstance(value, str) else value, np.float64)
        except (TypeError, ValueError):
            figures = np.asarray(math.nan)
        if figures.shape not in ((), (len(samples.outputs),)) or not np.isfinite(figures).all():
            text = _shortened(repr(value))
            raise ValueError(
                f"{self.said} returned {text}, it must be a finite number, or one for each sample"
            )
        return figures if figures.ndim else float(figures)

    def __call__(self, samples: SampleSet | Sequence[Outputs]) -> float:
        """Return one number for samples, the mean if the function returns one for each."""
        sample_set = samples if isinstance(samples, SampleSet) else SampleSet(samples)
        return float(np.mean(self.figures(sample_set)))


def load_metric(place: str, key: str = "evaluate") -> LoadedMetric:
    """Execute a file and return its function, given as ``FILE.py:FUNCTION``.

    Raises ValueError of one line, which names the place, for a missing file or function, and for a file that
    fails. ``key``: the option that names it, for errors.
    """
    return LoadedMetric(load_function(place, key), f"{key} '{place}'")


def load_function(place: str, keyword: str = "evaluate") -> UserMetric:
    """Execute a file and return its function, given as ``FILE.py:FUNCTION``.

    Raises ValueError of one line, which names ``keyword`` and place, for a missing file or function, and for
    a file that fails.
    """
    file, name = split_place(place, keyword)
    label = f"{keyword} '{place}'"
    return _function(_execute(Path(file), label), name, label)


load_once = cache(load_function)
"""As :func:`load_function`, but a file is executed only at the first call for a place."""


def split_place(place: str, keyword: str = "evaluate") -> tuple[str, str]:
    """Return file and function of ``FILE.py:FUNCTION``; ValueError for other text."""
    file, colon, name = place.rpartition(":")
    if not (colon and file.endswith(".py") and name.isidentifier()):
        raise ValueError(f"{keyword} '{place}' is not FILE.py:FUNCTION")
    return file, name


def absolute_place(place: str) -> str:
    """Return ``FILE.py:FUNCTION`` with the absolute path of the file, for processes in other folders."""
    file, name = split_place(place)
    return f"{Path(file).resolve()}:{name}"


def _execute(path: Path, label: str) -> ModuleType:
    if not path.is_file():
        raise ValueError(f"{label}: there is no file '{path}'")
    name = f"user code {path.resolve()}"  # not importable, and unique to the file
    loader = SourceFileLoader(name, str(path))
    spec = spec_from_file_location(name, path, loader=loader)
    assert spec is not None, "it has a loader"
    module = module_from_spec(spec)
    sys.modules[name] = module  # data classes look their module up here
    try:  # no cached bytecode: it may be that of an older file of equal size, written in the same second
        exec(loader.source_to_code(loader.get_data(str(path)), str(path)), vars(module))
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ValueError(f"{label}: the file failed: {one_line(error)}") from error
    return module


def _function(module: ModuleType, name: str, label: str) -> UserMetric:
    function: UserMetric | None = getattr(module, name, None)
    if not callable(function):
        names = sorted(key for key, value in vars(module).items() if callable(value) and key[0] != "_")
        raise ValueError(
            f"{label}: there is no function '{name}'{did_you_mean(name, names) or ','}"
            f" the file has {', '.join(names) or 'none'}"
        )
    return function


def one_line(error: BaseException) -> str:
    """Return an error of the user's code in one line, with its type."""
    return _shortened(f"{type(error).__name__}: {error}".rstrip(": "))


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 200 else f"{line[:197]}..."
