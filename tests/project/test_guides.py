"""Guides and reference are complete: rewrites, packages, formats.

Oracle: the code. What the guides say in their blocks is executed by test_documents.
"""

from __future__ import annotations

import re
from importlib import import_module
from importlib.util import find_spec

import pytest

from ops.formats import FORMATS, LINEAR
from ops.reference import ELEMENTS
from tests.helpers.documents import ROOT, blocks, prose, read
from tests.project.test_packages import PACKAGES, REWRITES

REWRITES_PAGE, COMPOSE, EXTEND = "docs/reference/rewrites.md", "docs/compose.md", "docs/extend.md"
FORMATS_PAGE, CODE = "docs/reference/formats.md", "CONTRIBUTING.md"


def section(document: str, heading: str) -> str:
    """Return the text under a heading, up to the next one of any level."""
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", prose(document), re.DOTALL | re.MULTILINE)
    assert found, heading
    return found[1]


def first_cells(text: str) -> list[str]:
    """Return the names in backticks of the first column of the tables of a text."""
    cells = [row.split("|")[1] for row in text.splitlines() if row.startswith("| ")]
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def rewrites() -> list[str]:
    modules = {path.stem for path in (ROOT / "transforms").glob("*.py")} - {
        "__init__",
        "model_io",
        "runtime_workarounds",
    }
    return sorted(modules)


@pytest.mark.parametrize("rewrite", rewrites())
def test_each_rewrite_has_a_section_with_a_drawing_a_run_and_its_output(rewrite: str) -> None:
    line = read(REWRITES_PAGE).split(f"\n### {rewrite}\n")[0].count("\n") + 2
    drawing, example = [block for block in blocks(REWRITES_PAGE) if block.line > line][:2]
    assert drawing.kind == "text drawing" and {"before", "after"} <= set(drawing.code.split())
    assert re.search(rf" import .*\b{rewrite}\b", example.code) and example.prints


def test_each_rewrite_is_in_the_table_of_their_order() -> None:
    named = set(re.findall(r"`(\w+)`", section(COMPOSE, "The usual order")))
    assert named >= set(rewrites())


@pytest.mark.parametrize("module", ["walk", "rewire", "dtypes", "shapes", "schemas", "dot_products"])
def test_helpers_that_a_rewrite_is_made_of_exist(module: str) -> None:
    text = section(EXTEND, "Add a rewrite")
    names = set(re.findall(rf"\b{module}\.(\w+)", text))
    assert names and all(hasattr(import_module(f"transforms.graph.{module}"), name) for name in names)


def test_packages_are_all_there_in_their_order() -> None:
    rows = [
        row for row in section(CODE, "Packages of transforms").splitlines() if row.startswith(("| `", "| ("))
    ]
    packages = [REWRITES if row.startswith("| (") else first_cells(row)[0] for row in rows]
    assert packages == PACKAGES


def test_names_to_start_from_are_in_their_packages() -> None:
    for row in section(CODE, "Packages of transforms").splitlines():
        package, *names = re.findall(r"`([^`]+)`", row) if row.startswith("| `") else [""]
        for name in names:
            module, _, part = name.partition(".")
            place = f"transforms.{package}"
            if find_spec(f"{place}.{module}") is None:
                assert hasattr(import_module(place), module), name
            elif part:
                assert hasattr(import_module(f"{place}.{module}"), part), name


def test_formats_and_elements_are_all_defined() -> None:
    tables = section(FORMATS_PAGE, "Number formats")
    for name, fmt in FORMATS.items():
        assert re.search(rf"^\| (?:\w+, )?{name}\b", tables, re.MULTILINE), name
        if fmt.op != LINEAR:
            assert f"| {name} | {fmt.block}" in tables
    rows = section(FORMATS_PAGE, "OCP Microscaling").splitlines()
    for name, element in ELEMENTS.items():
        (row,) = [row for row in rows if row.startswith(f"| `{name}`")]
        largest = "127/64" if name == "int8" else f"{element.largest:g}"
        assert largest in row and f"| {element.largest_exponent} |" in row
