"""Damaged files: bytes, fields or words of small valid inputs are changed, and a tool is run on them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.attack.damage import damage_bytes, damage_model, damage_text
from tests.attack.tool_run import fault, fingerprint, run_tool
from tests.attack.valid_files import Scene, lay_out, scenes

_MAY_CHANGE = ("ranges.json", "layers.npz")  # a tool adds to the one, and takes the other away when done


def attack(seed: int, folder: Path) -> str | None:
    """Run one case that is a function of ``seed`` alone; return None if all held, else what fell."""
    random = np.random.default_rng(seed)
    kinds = scenes()
    kind = list(kinds)[int(random.integers(0, len(kinds)))]
    scene = kinds[kind](random)
    name = scene.damaged[int(random.integers(0, len(scene.damaged)))]
    inside, outside = folder / "in", folder / "out"
    outside.mkdir()
    lay_out(inside, scene.files | {name: _damage(name, scene, random)})
    before = fingerprint(inside)
    outcome = run_tool(scene.tool, scene.arguments(inside, outside), folder)
    after = fingerprint(inside)
    (folder / "notes.txt").write_text(f"{kind.split()[0]}: {'refused' if outcome.code else 'done'}\n")
    what = f"{scene.tool} on damaged {name}"
    for path in before.keys() | after.keys():
        if before.get(path) != after.get(path) and Path(path).name not in _MAY_CHANGE:
            return f"{what}: the input {path} changed"
    found = fault(outcome, _names(scene), outside, scene.written)
    return f"{what}: {found}" if found else None


def _names(scene: Scene) -> list[str]:
    """Return what an error may name: a file, or what the scheme is about."""
    return [*(Path(name).name for name in scene.files), "'no*'", "relu2", "sample '", "input 'x'", "/in/"]


def _damage(name: str, scene: Scene, random: np.random.Generator) -> bytes:
    content = scene.files[name]
    if name.endswith(".onnx") and random.random() < 0.7:
        return damage_model(content, random)
    if name.endswith((".toml", ".json")) and random.random() < 0.8:
        return damage_text(content, random)
    return damage_bytes(content, random)
