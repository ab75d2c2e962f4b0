"""Functions that are imported when they are first called: a job loads the steps that it enters."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Later:
    """A function of a module: ``path`` is its name in a module of that name, or both with a dot between."""

    def __init__(self, package: str, path: str) -> None:
        """Take the package of the module."""
        module, _, self.__name__ = path.rpartition(".")
        self._module = f"{package}.{module or path}"

    def __call__(self, *given: Any) -> Any:
        """Import and call the function."""
        return getattr(import_module(self._module), self.__name__)(*given)

    def __repr__(self) -> str:
        return f"<function {self.__name__} of {self._module}>"


def later(package: str, *paths: str) -> tuple[Later, ...]:
    """Return functions of modules of a package."""
    return tuple(Later(package, path) for path in paths)
