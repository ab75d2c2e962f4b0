"""Reading TOML as editors write it, and refusing other files with a message."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from transforms.files.named_file import read_text

_LONGEST = 1 << 24
"""Bytes of a file of settings: a rule for every layer of the largest models takes a tenth of it."""

_DEEP_KEY = re.compile(r"""(?<![\w"'-])(?:[\w"'-]++\s*+\.\s*+){100}""")
"""A key of more than a hundred parts: the parser's time grows with the square of their number."""


def read_toml(path: Path) -> dict[str, Any]:
    """Return the values in a UTF-8 file, which may begin with a byte order mark; ValueError, OSError."""
    return parse_toml(read_text(path, _LONGEST, "utf-8-sig"))


def parse_toml(text: str) -> dict[str, Any]:
    """Return the values of a document; ValueError if it is not TOML, or nested too deeply."""
    try:
        if not _DEEP_KEY.search(text):
            return tomllib.loads(text)
    except RecursionError:
        pass
    raise ValueError("values are nested too deeply")
