"""The order of packages: each imports only packages below it; the top of ``transforms`` holds rewrites alone.

Oracle: the imports in the source, read with :mod:`ast`.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from transforms.features import FEATURES

ROOT = Path(__file__).resolve().parents[2]
REWRITES = "rewrites"  # the files at the top of transforms
PACKAGES = [
    *(
        "files",
        "features",
        "graph",
        "functions",
        "model",
        "contrib_ops",
        "search",
        "scheme",
        "deploy",
        "plan",
        "algebra",
        "runtime",
        "opset",
        "channels",
        REWRITES,
    ),
    *(
        "run",
        "calibrate",
        "judge",
        "layers",
        "full_range",
        "finetune",
        "moves",
        "conversion",
        "compare",
        "precision",
        "origins",
        "pipelines",
    ),
]
"""From the ground up; a package imports itself and packages before it."""

TOOLS = ["cli", "options"]
"""The same for ``tools``, whose top imports all of them."""

LAYERS = ["ops", "transforms", "onnx_narrow", "tools"]
"""From the ground up."""

RECIPES = {"transforms.pipelines.for_runtime", "transforms.pipelines.in_memory"}
"""Where rows of features without marks stand."""

DOORS = [
    ("onnx_narrow", "tools"),
    ("onnx_narrow.__main__", "tools.__main__"),
    ("onnx_narrow.__main__", "tools.cli.interrupts"),
    ("onnx_narrow.__main__", "tools.cli.streams"),
]
"""Imports upwards: the command ``onnx-narrow`` runs the tools, and type checkers see them under its name."""

LONGEST_CHAIN = 31  # from a tool through the API to the ground, imports in functions and for types, too
LONGEST_FILE, LONGEST_FUNCTION = 300, 60


def _modules() -> dict[str, Path]:
    paths = (path for layer in LAYERS for path in (ROOT / layer).rglob("*.py"))
    return {_name(path): path for path in paths}


def _name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = _modules()


@cache
def _imports(module: str) -> tuple[str, ...]:
    """Return the modules of the project that one imports, inside functions, too."""
    found = []
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            found += [name if name in MODULES else node.module for name in inner]
    return tuple(name for name in found if name in MODULES and name != module)


def _package(module: str) -> str:
    """Return the package of a module; the modules of a feature stand beside those of ``pipelines``."""
    _, *inner = module.split(".")
    if inner[:1] == ["features"] and FEATURES.keys() & inner[1:2]:
        return PACKAGES[-1]
    return inner[0] if inner and inner[0] in PACKAGES else REWRITES


@pytest.mark.parametrize("module", [name for name in MODULES if name.startswith("transforms.")])
def test_packages_import_only_packages_below(module: str) -> None:
    own = PACKAGES.index(_package(module))
    own_feature = "transforms.features." if _package(module) == REWRITES else "none"
    targets = [name for name in _imports(module) if name.startswith("transforms.")]
    above = [name for name in targets if PACKAGES.index(_package(name)) > own]
    assert not [name for name in above if not name.startswith(own_feature)]


@pytest.mark.parametrize("feature", FEATURES)
def test_a_feature_is_imported_by_itself_and_by_rewrites(feature: str) -> None:
    folder = f"transforms.features.{feature}."
    users = [module for module in MODULES if any(name.startswith(folder) for name in _imports(module))]
    outside = [module for module in users if not module.startswith(folder)]
    others = [module for module in outside if module.split(".")[:-1] != ["transforms"]]
    assert others == [] if FEATURES[feature] else set(others) <= RECIPES


@pytest.mark.parametrize("module", [name for name in MODULES if name.startswith("tools.")])
def test_parts_of_tools_import_only_parts_below(module: str) -> None:
    order = [*TOOLS, None]
    own = order.index(_part(module))
    targets = [name for name in _imports(module) if name.startswith("tools.")]
    assert not [name for name in targets if order.index(_part(name)) > own]


def _part(module: str) -> str | None:
    inner = module.split(".")[1]
    return inner if inner in TOOLS else None


def test_layers_import_only_layers_below() -> None:
    upward = [
        (module, name)
        for module in MODULES
        for name in _imports(module)
        if LAYERS.index(name.split(".")[0]) > LAYERS.index(module.split(".")[0])
    ]
    assert upward == DOORS


@pytest.mark.parametrize("path", sorted((ROOT / "transforms").glob("*.py")), ids=lambda path: path.stem)
def test_files_at_the_top_are_rewrites(path: Path) -> None:
    """Each has a function of its own name, or that of a package; model_io loads and saves, and
    runtime_workarounds has several.
    """
    if path.stem in ("__init__", "model_io", "runtime_workarounds"):
        return
    names = set[str]()
    for node in ast.parse(path.read_text()).body:
        names |= {node.name} if isinstance(node, ast.FunctionDef) else set()
        names |= {alias.asname or "" for alias in node.names} if isinstance(node, ast.ImportFrom) else set()
    assert path.stem in names


def test_the_package_lists_its_rewrites() -> None:
    words = ast.get_docstring(ast.parse((ROOT / "transforms" / "__init__.py").read_text())) or ""
    stems = {path.stem for path in (ROOT / "transforms").glob("*.py")} - {"__init__"}
    assert stems == set(re.findall(r"``(\w+)``", words))


@pytest.mark.parametrize("layer", ["ops", "transforms", "tools"])
def test_packages_state_their_purpose(layer: str) -> None:
    for folder in (path.parent for path in (ROOT / layer).rglob("__init__.py")):
        words = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
        assert len(words.split()) >= 8, folder


def test_chains_of_imports_are_short() -> None:
    lengths: dict[str, int] = {}

    def length(module: str, above: tuple[str, ...]) -> int:
        if module in above:
            return 0  # a package and its own modules
        if module not in lengths:
            lengths[module] = 1 + max(
                (length(name, (*above, module)) for name in _imports(module)), default=0
            )
        return lengths[module]

    sys.setrecursionlimit(10_000)
    assert max(length(module, ()) for module in MODULES) <= LONGEST_CHAIN


@pytest.mark.parametrize("path", sorted(MODULES.values()), ids=lambda path: _name(path))
def test_files_and_functions_are_short(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= LONGEST_FILE
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            length = (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0
            assert length <= LONGEST_FUNCTION, node.name


def test_test_modules_have_names_of_their_own() -> None:
    """Folders of tests are no packages: pytest stops at the second module of one name."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
