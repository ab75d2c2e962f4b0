"""The notebooks of the examples run, and print what they show. Oracle: the notebooks themselves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.helpers.documents import ROOT
from tests.helpers.run_notebook import NOTEBOOKS

FIELDS = {"cell_type", "id", "metadata", "source"}


def read(notebook: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((ROOT / notebook).read_text(encoding="utf-8"))
    return content


def test_there_are_two() -> None:
    assert NOTEBOOKS == ["examples/photos_to_int8.ipynb", "examples/where_the_loss_is.ipynb"]


@pytest.mark.parametrize("notebook", NOTEBOOKS)
def test_cells_print_what_the_notebook_shows(notebook: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.helpers.run_notebook", notebook],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("notebook", NOTEBOOKS)
def test_form_is_that_of_version_4(notebook: str) -> None:
    """As https://nbformat.readthedocs.io describes it."""
    content = read(notebook)
    assert (content["nbformat"], content["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in content["cells"]}) == len(content["cells"])
    for number, cell in enumerate(cell for cell in content["cells"] if cell["cell_type"] == "code"):
        assert cell.keys() == FIELDS | {"execution_count", "outputs"}
        assert cell["execution_count"] == number + 1
    assert all(cell.keys() == FIELDS for cell in content["cells"] if cell["cell_type"] == "markdown")


@pytest.mark.parametrize("notebook", NOTEBOOKS)
def test_notebooks_name_no_place_of_this_machine(notebook: str) -> None:
    assert str(ROOT) not in (ROOT / notebook).read_text(encoding="utf-8")
