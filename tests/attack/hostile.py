"""Hostile files: made to cost time or memory, to reach outside of their folder, or to mislead a reader."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.attack import hostile_data, hostile_graphs
from tests.attack.hostile_case import Case
from tests.attack.tool_run import fault, fingerprint, run_tool

_KINDS = [*hostile_graphs.KINDS, *hostile_data.KINDS]
_SECRET = b"not yours"


def attack(seed: int, folder: Path) -> str | None:
    """Run one case that is a function of ``seed`` alone; return None if all held, else what fell."""
    random = np.random.default_rng(seed)
    make = _KINDS[int(random.integers(0, len(_KINDS)))]
    inside, outside = folder / "in", folder / "out"
    for place in (inside, outside):
        place.mkdir()
    (folder / "secret.data").write_bytes(_SECRET * 1000)
    case: Case = make(inside, random)
    before = _inputs(folder)
    arguments = [
        word.replace("IN/", f"{inside}/").replace("OUT/", f"{outside}/") for word in case.options.split()
    ]
    outcome = run_tool(case.tool, arguments, folder)
    what = f"{case.tool} on {make.__name__.strip('_')}"
    (folder / "notes.txt").write_text(
        f"{make.__name__.strip('_')}: {'refused' if outcome.code else 'done'}\n", encoding="utf-8"
    )
    if before != _inputs(folder):
        return f"{what}: the input changed"
    if (folder / "ran").exists():
        return f"{what}: code of a file was run"
    found = fault(outcome, case.names, outside, case.written)
    if found is None and case.must_fail and outcome.code == 0:
        found = "it was taken"
    leaked = [path for path in outside.rglob("*") if path.is_file() and _SECRET in path.read_bytes()]
    if leaked and not case.follows:
        found = f"a file outside of the folder was copied to {leaked[0]}"
    return f"{what}: {found}" if found else None


def _inputs(folder: Path) -> dict[str, str]:
    """Return what no tool may change: everything but a calibration cache, to which they add."""
    found = fingerprint(folder / "in") | {"secret": (folder / "secret.data").read_text()}
    return {path: content for path, content in found.items() if not path.endswith("ranges.json")}
