"""A function of the user in a Python file, named as ``FILE.py:FUNCTION``, such as a metric."""

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
"""A function of the user's, :class:`LoadedMetric` says how it is called; higher is better."""

ASKED = ("expected", "inputs", "places")
"""Parameters that a function may have beside the first: fields of :class:`SampleSet`."""


@dataclass(frozen=True)
class SampleSet:
    """Some samples in order: what a model makes of each, by the names of its outputs.

    ``expected``: what the float model makes; ``inputs``: what both are fed; ``places``: of the samples in the
    data, from 0, by which labels are found. Empty where they are not known.
    """

    outputs: Sequence[Outputs]
    expected: Sequence[Outputs] = ()
    inputs: Sequence[Outputs] = ()
    places: Sequence[int] = ()

    def without(self, number: int) -> SampleSet:
        """Return the samples without one of them."""
        kept = [i for i in range(len(self.outputs)) if i != number]
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return SampleSet(
            **{name: [value[i] for i in kept] if value else () for name, value in values.items()}
        )

    def of_float(self) -> SampleSet:
        """Return the same of the float model."""
        return replace(self, outputs=self.expected)


class LoadedMetric:
    """A function of the user's, called with outputs of samples: ``figures`` checks what it returns.

    It gets a list of dictionaries of arrays, the outputs of each sample by name, and by name those of
    ``ASKED`` that it has parameters of. It returns one number, or one for each sample; higher is better.
    ``said``: its name in errors.
    """

    def __init__(self, function: UserMetric, said: str) -> None:
        """Take the function; ValueError for parameters that nothing is known for."""
        self.said, self._function = said, function
        try:
            parameters = list(inspect.signature(function).parameters.values())[1:]
        except (TypeError, ValueError):  # of C, as sum
            parameters = []
        named = [one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
        self._asked = [one.name for one in named if one.name in ASKED]
        unknown = [one.name for one in named if one.name not in ASKED and one.default is one.empty]
        if unknown:
            legal = ", ".join(ASKED)
            raise ValueError(f"{said} has a parameter '{unknown[0]}': beside the outputs, legal are {legal}")

    def figures(self, samples: SampleSet) -> float | NDArray[np.float64]:
        """Return what the function says of samples: one finite number, or one for each, [samples]."""
        missing = [name for name in self._asked if not getattr(samples, name)]
        if missing:
            raise ValueError(f"{self.said} asks for {missing[0]}, which are not known here")
        asked = {name: list(getattr(samples, name)) for name in self._asked}
        try:
            value = self._function([dict(one) for one in samples.outputs], **asked)
        except (Exception, SystemExit) as error:
            raise ValueError(f"{self.said} failed: {one_line(error)}") from error
        try:
            found = np.asarray(math.nan if isinstance(value, str) else value, np.float64)
        except (TypeError, ValueError):
            found = np.asarray(math.nan)
        if found.shape not in ((), (len(samples.outputs),)) or not np.isfinite(found).all():
            said = _shortened(repr(value))
            raise ValueError(
                f"{self.said} returned {said}, it must be a finite number, or one for each sample"
            )
        return found if found.ndim else float(found)

    def __call__(self, samples: SampleSet | Sequence[Outputs]) -> float:
        """Return one number for samples, the mean of those of each."""
        known = samples if isinstance(samples, SampleSet) else SampleSet(samples)
        return float(np.mean(self.figures(known)))


def load_metric(place: str, key: str = "evaluate") -> LoadedMetric:
    """Return the function of a file that is named ``FILE.py:FUNCTION``; the file is executed.

    Raises ValueError of one line, which names the place, for a missing file or function and a file that
    fails; ``key``: the option that names it.
    """
    return LoadedMetric(load_function(place, key), f"{key} '{place}'")


def load_function(place: str, keyword: str = "evaluate") -> UserMetric:
    """Return the function of a file that is named ``FILE.py:FUNCTION``; the file is executed.

    Raises ValueError of one line, which names ``keyword`` and place, for a missing file or function and a
    file that fails.
    """
    file, name = split_place(place, keyword)
    label = f"{keyword} '{place}'"
    return _function(_execute(Path(file), label), name, label)


load_once = cache(load_function)
"""The same, executed at the first call for a place alone."""


def split_place(place: str, keyword: str = "evaluate") -> tuple[str, str]:
    """Return file and function of ``FILE.py:FUNCTION``; ValueError for other text."""
    file, colon, name = place.rpartition(":")
    if not (colon and file.endswith(".py") and name.isidentifier()):
        raise ValueError(f"{keyword} '{place}' is not FILE.py:FUNCTION")
    return file, name


def absolute_place(place: str) -> str:
    """Return ``FILE.py:FUNCTION`` with the whole path of the file, for processes in other folders."""
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
        found = sorted(key for key, value in vars(module).items() if callable(value) and key[0] != "_")
        raise ValueError(
            f"{label}: there is no function '{name}'{did_you_mean(name, found) or ','}"
            f" the file has {', '.join(found) or 'none'}"
        )
    return function


def one_line(error: BaseException) -> str:
    """Return an error of the user's code in one line, by its type."""
    return _shortened(f"{type(error).__name__}: {error}".rstrip(": "))


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 200 else f"{line[:197]}..."
