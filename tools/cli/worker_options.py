"""Options of tools that share work out: to processes of this machine, or to a Dask cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from tools.cli.needs import Need
from tools.cli.option_values import MOST_AT_ONCE, whole
from tools.cli.options import RUNNING, option


class SharedJob(Protocol):
    """A job whose work may be shared out."""

    @property
    def jobs(self) -> int | None:
        """How many processes work."""

    @property
    def given(self) -> Mapping[str, str]:
        """The options on the command line."""

    @property
    def dask(self) -> str | None:
        """The address of a scheduler, or ``local``."""


def jobs(what: str, needs: Need, default: int | None) -> Any:
    """Return the field of ``--jobs``: how many processes do what."""
    kind = whole(1, MOST_AT_ONCE)
    return option("--jobs N", what, group=RUNNING, needs=(needs,), type=kind, default=default)


def dask(needs: Need) -> Any:
    """Return the field of ``--dask``."""
    words = (
        "the same on a Dask cluster whose workers see the folder TMPDIR: tcp://host:port of its scheduler,\n"
        "or 'local' for --jobs workers here"
    )
    return option("--dask ADDRESS", words, group=RUNNING, needs=(needs,))


def why_not_on_a_cluster(job: SharedJob) -> str | None:
    """Return the error of options that do not fit a cluster that is there already, or None."""
    if job.dask in (None, "local"):
        return None
    if "jobs" in job.given:
        return f"--jobs goes with --dask local: the cluster at '{job.dask}' has its own workers"
    return None
