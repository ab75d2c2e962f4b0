"""Import functions when they are first called, so that a job loads only the steps it enters."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Later:
    """A function of a module, imported when called.

    ``path``: ``module.function``, or only ``function`` if the module has the same name.
    """

    def __init__(self, package: str, path: str) -> None:
        """Take the package of the module."""
        module, _, self.__name__ = path.rpartition(".")
        self._module = f"{package}.{module or path}"

    def __call__(self, *arguments: Any) -> Any:
        """Import and call the function."""
        return getattr(import_module(self._module), self.__name__)(*arguments)

    def __repr__(self) -> str:
        return f"<function {self.__name__} of {self._module}>"


def later(package: str, *paths: str) -> tuple[Later, ...]:
    """Return functions of modules of a package, not imported yet; ``paths``: as of :class:`Later`."""
    return tuple(Later(package, path) for path in paths)
