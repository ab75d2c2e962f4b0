"""Run a notebook of ``examples``: ``python -m tests.helpers.run_notebook examples/NAME.ipynb [--update]``.

Cells run in order in one namespace, in a copy of the folder of the notebook, as Jupyter runs them there.
Printed is what a cell prints that differs from what the notebook shows; the end is 1 if any does.
``--update`` writes what was printed into the notebook. Needs no Jupyter: cells print what they show.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.helpers.documents import ROOT, agree
from tests.helpers.run_document import not_ignored

NOTEBOOKS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "examples").glob("*.ipynb"))


def main() -> int:
    """Run the notebook on the command line; return 0 if all cells print what it shows."""
    parser = argparse.ArgumentParser()
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--update", action="store_true")
    options = parser.parse_args()
    path = options.notebook.resolve()
    content = json.loads(path.read_text(encoding="utf-8"))
    cells = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(path.parent, folder, dirs_exist_ok=True)
        before = set(Path(folder).iterdir())
        os.chdir(folder)
        for i, (cell, printed) in enumerate(zip(cells, _printed(cells), strict=True), 1):
            if not agree(shown(cell), printed):
                wrong += 1
                print(f"{path.name}, cell {i} prints\n{printed}")
            cell["execution_count"] = i
            text = printed.splitlines(keepends=True)
            cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": text}] if text else []
        left = not_ignored(set(Path(folder).iterdir()) - before, "examples/")
        print("".join(f".gitignore does not cover '{name}'\n" for name in left), end="")
    if options.update:
        path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return int(wrong > 0 or bool(left))


def shown(cell: dict[str, Any]) -> str:
    """Return what a notebook shows that a cell prints."""
    return "".join("".join(output["text"]) for output in cell["outputs"])


def _printed(cells: list[dict[str, Any]]) -> list[str]:
    names: dict[str, Any] = {"__name__": "__main__"}
    found = []
    for cell in cells:
        stream = io.StringIO()
        with contextlib.redirect_stdout(stream):
            exec("".join(cell["source"]), names)
        found.append(stream.getvalue())
    return found


if __name__ == "__main__":
    sys.exit(main())
