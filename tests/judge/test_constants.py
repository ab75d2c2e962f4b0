"""Numbers that decide about models stand in one table. Oracle: the source, read with :mod:`ast`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2] / "transforms"
TABLE = ROOT / "judge" / "constants.py"
MOST = 39

GUARDS = {
    *("_NOT_FINITE", "_EXACT"),  # of arithmetic
    *("GOOD", "_STUDENT", "_LEAST", "_PER_NEPER", "_LONG"),  # of words
    *("_UNPACKED", "_MEMORY", "_ONE_KIND"),  # of time and memory: results are the same
    "_BOTH",  # the number of a part
}
"""Numbers elsewhere that decide nothing."""

DECIDING = [
    *(
        path
        for package in ("judge", "moves")
        for path in sorted((ROOT / package).glob("*.py"))
        if path != TABLE
    ),
    *(ROOT / "pipelines" / f"{name}.py" for name in ("build", "check_outputs", "decide", "quantize_graph")),
    *(ROOT / "finetune" / f"{name}.py" for name in ("finetune_model", "fit_weights", "held_out", "put_back")),
]


def _numbers(path: Path) -> Iterator[str]:
    """Yield the names of a module to which a number is given, alone or in a sequence or sum of numbers."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            parts = [part for part in ast.walk(node.value) if isinstance(part, ast.Constant)]
            if any(type(part.value) in (int, float) for part in parts):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                yield from (one.id for each in targets for one in ast.walk(each) if isinstance(one, ast.Name))


def test_numbers_that_decide_stand_in_one_table() -> None:
    found = {name for path in DECIDING for name in _numbers(path)}
    assert found == GUARDS


def test_the_table_is_short_and_says_what_each_means() -> None:
    names = list(_numbers(TABLE))
    assert len(names) <= MOST and len(set(names)) == len(names)
    body = ast.parse(TABLE.read_text()).body
    said = [node for node in body[1:] if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)]
    assert len(said) == len(names)


def test_each_number_is_used() -> None:
    text = "".join(path.read_text() for path in ROOT.rglob("*.py") if path != TABLE)
    assert not [name for name in _numbers(TABLE) if name not in text]
