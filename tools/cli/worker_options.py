"""Options of tools that share work out: to processes of this machine, or to a Dask cluster."""

from __future__ import annotations

from typing import Any

from tools.cli.option_values import MOST_AT_ONCE, whole
from tools.cli.options import RUNNING, option


def jobs(what: str) -> Any:
    """Return the field of ``--jobs``: how many processes do what."""
    return option("--jobs N", what, group=RUNNING, type=whole(1, MOST_AT_ONCE))


def dask() -> Any:
    """Return the field of ``--dask``."""
    words = (
        "the same on a Dask cluster whose workers see the folder TMPDIR: tcp://host:port of its scheduler,\n"
        "or 'local' for --jobs workers here"
    )
    return option("--dask ADDRESS", words, group=RUNNING)
