"""The packages of a checkout under the names that they have where the package is installed.

In a checkout, and after ``pip install -e .``, ``ops``, ``transforms`` and ``tools`` are next to this package;
a wheel has them inside. ``onnx_narrow.ops`` is then another name of the module ``ops``, not a second copy.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

FOLDERS = ("ops", "transforms", "tools")
_HERE = Path(__file__).resolve().parent


def join() -> None:
    """Make ``onnx_narrow.ops`` and the other packages importable from the folder next to this package.

    Raises ImportError, naming the file, if Python finds another package of one of these names first.
    """
    if (_HERE / FOLDERS[0]).is_dir() or any(isinstance(finder, _Beside) for finder in sys.meta_path):
        return
    for name in FOLDERS:
        _check(name)
    sys.meta_path.insert(0, _Beside())


def _check(name: str) -> None:
    spec = importlib.util.find_spec(name)
    ours = _HERE.parent / name / "__init__.py"
    if spec is None:
        raise ImportError(f"'{ours.parent}' is not on sys.path: pip install -e '{ours.parents[1]}'")
    found = Path(spec.origin or next(iter(spec.submodule_search_locations or []), "")).resolve()
    if found != ours:
        raise ImportError(f"'{found}' is found for 'import {name}' in place of '{ours}': rename or move it")


class _Beside(MetaPathFinder, Loader):
    """Finds ``onnx_narrow.NAME`` as the module ``NAME``."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module, if it is in one of the neighbouring packages."""
        package, _, name = fullname.partition(".")
        if package != __package__ or name.partition(".")[0] not in FOLDERS:
            return None
        if importlib.util.find_spec(name) is None:
            return None
        return ModuleSpec(fullname, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module under its own name."""
        module = importlib.import_module(spec.name.partition(".")[2])
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module as it is: it has run."""
        seen = module.__spec__
        module.__spec__ = seen.loader_state if seen is not None else None
