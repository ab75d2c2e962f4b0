"""Options of tools that work for long: shared out to processes or a Dask cluster, or stopped and resumed."""

from __future__ import annotations

from pathlib import Path
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


def resume() -> Any:
    """Return the field of ``--resume`` of tools that fit or tune layers."""
    words = (
        "keep each layer that is fitted or tuned in this folder until the model is written; a run that was\n"
        "stopped goes on after them, with the same model, samples and options"
    )
    return option("--resume DIR", words, group=RUNNING, type=Path)
