"""Paths given by callers: a string, or any object that Python's file functions accept as one."""

from __future__ import annotations

import os
from typing import TypeAlias

AnyPath: TypeAlias = str | os.PathLike[str]
"""A string, a pathlib.Path, or another object with ``__fspath__``."""
