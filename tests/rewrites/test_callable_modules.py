"""Modules of rewrites that are called. Oracle: the function of the same name, on a copy of the graph."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import transforms
from tests.helpers.documents import ROOT
from transforms import model_io

REWRITES = sorted(
    path.stem
    for path in Path(transforms.__file__ or "").parent.glob("*.py")
    if path.stem not in ("__init__", "model_io", "runtime_workarounds")
)
COMPOSED = """
{imports}
graph = model_io.load("tests/examples/digits.onnx")
print(fuse_matmul(graph), insert_cast(graph, "bfloat16"), insert_cast(graph, "bfloat16"))
"""
IMPORTS = [
    "from transforms import model_io, fuse_matmul, insert_cast",
    "from transforms import insert_cast\nfrom transforms.insert_cast import insert_cast as other\n"
    "assert insert_cast is not other and insert_cast.insert_cast is other\n"
    "from transforms import fuse_matmul, model_io",
    "from transforms.insert_cast import insert_cast as other\n"
    "from transforms import fuse_matmul, insert_cast, model_io",
    "import transforms.insert_cast as insert_cast\nimport transforms.fuse_matmul, transforms.model_io\n"
    "fuse_matmul, model_io = transforms.fuse_matmul, transforms.model_io",
]


@pytest.mark.parametrize("imports", IMPORTS, ids=range(len(IMPORTS)))
def test_both_ways_to_import_in_either_order(imports: str) -> None:
    """In a fresh process each; the digits example has 16 tensors to round and no products to fuse."""
    command = [sys.executable, "-c", COMPOSED.format(imports=imports)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("0 16 0\n", "")


@pytest.mark.parametrize("name", REWRITES)
def test_each_rewrite_is_called_by_its_module(name: str) -> None:
    module = import_module(f"transforms.{name}")
    assert callable(module) and getattr(transforms, name) is module
    assert inspect.signature(module) == inspect.signature(getattr(module, name))
    with pytest.raises(TypeError, match=r"missing \d required positional argument"):
        module()


def test_type_checkers_see_the_functions() -> None:
    """They read the imports that are not carried out."""
    text = Path(transforms.__file__ or "").read_text(encoding="utf-8")
    assert all(f"    from transforms.{name} import {name} as {name}\n" in text for name in REWRITES)


def test_the_package_imports_nothing_before_it_is_asked() -> None:
    listed = "import sys, transforms; print([m for m in sys.modules if 'onnx' in m or 'numpy' in m])"
    done = subprocess.run([sys.executable, "-c", listed], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def test_other_modules_are_not_called() -> None:
    from transforms import runtime_workarounds

    assert not callable(model_io) and not callable(runtime_workarounds)


@pytest.mark.heavy
def test_mypy_finds_a_misspelt_keyword(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("from transforms import insert_cast\ninsert_cast(None, dtyp='bfloat16')\n")
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), str(script)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert 'Unexpected keyword argument "dtyp" for "insert_cast"; did you mean "dtype"?' in done.stdout
