"""A function of the user in a Python file, named as ``FILE.py:FUNCTION``, such as a metric."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from ops.legal_names import did_you_mean
from transforms.search.output_metrics import Outputs

UserMetric = Callable[[Sequence[Outputs]], float]
"""Takes the outputs of all samples in order, each a dictionary of arrays by name; higher is better."""


def load_metric(place: str) -> UserMetric:
    """Return the function of a file that is named ``FILE.py:FUNCTION``; the file is executed.

    The function is called with a list of dictionaries, the outputs of each sample by name, and returns one
    number, higher for better. Raises ValueError of one line, which names the place, for a missing file or
    function and a file that fails; so does the returned function if the user's fails or does not return a
    finite number.
    """
    function = load_function(place)

    def _metric(outputs: Sequence[Outputs]) -> float:
        try:
            value = function([dict(one) for one in outputs])
        except (Exception, SystemExit) as error:
            raise ValueError(f"evaluate '{place}' failed: {one_line(error)}") from error
        try:
            number = math.nan if isinstance(value, str) else float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            said = _shortened(repr(value))
            raise ValueError(f"evaluate '{place}' returned {said}, it must be a finite number")
        return number

    return _metric


def load_function(place: str, keyword: str = "evaluate") -> Callable[..., object]:
    """Return the function of a file that is named ``FILE.py:FUNCTION``; the file is executed.

    Raises ValueError of one line, which names ``keyword`` and place, for a missing file or function and a
    file that fails.
    """
    file, name = split_place(place, keyword)
    label = f"{keyword} '{place}'"
    return _function(_execute(Path(file), label), name, label)


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


def _function(module: ModuleType, name: str, label: str) -> Callable[..., object]:
    function = getattr(module, name, None)
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
