"""The kinds of attack: every module or package of this folder that offers ``attack(seed, folder)``."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from pathlib import Path

Attack = Callable[[int, Path], str | None]
_FOLDER = Path(__file__).parent
_OFFERS = re.compile(r"^def attack\(|^from .* import attack\b", re.MULTILINE)


def found() -> list[str]:
    """Return the names of all kinds in order, without importing them."""
    files = {path.stem: path for path in _FOLDER.glob("*.py")}
    files |= {path.parent.name: path for path in _FOLDER.glob("*/__init__.py")}
    return sorted(name for name, path in files.items() if _OFFERS.search(path.read_text(encoding="utf-8")))


def load(kind: str) -> Attack:
    """Return the function that runs one case of a kind."""
    attack: Attack = importlib.import_module(f"tests.attack.{kind}").attack
    return attack
