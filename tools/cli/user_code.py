"""Code that a scheme names: announced before it runs, and run from elsewhere only if the user allows it."""

from __future__ import annotations

from pathlib import Path

from tools.cli.job_options import SchemeJob
from tools.cli.said import warn
from transforms.scheme import Scheme, read_scheme
from transforms.search.user_metric import split_place

_TABLE, _KEY = "auto_mixed_precision", "evaluate"


def check_code(scheme: Scheme, job: SchemeJob) -> None:
    """Say on stderr which file the scheme in ``job.config`` runs; return silently if it runs none.

    What the command line names is the user's own word and needs no other. Raises ValueError for a file
    outside the scheme's folder, links resolved, without ``job.allow_code``, and for that option without
    effect.
    """
    place = _place(scheme)
    if not place or _is_own_word(place, job):
        if job.allow_code:
            raise ValueError(f"--allow-code goes with a scheme whose key {_KEY} names a file")
        return
    file, function = split_place(place)
    path = Path(file).resolve()
    if not path.is_relative_to(Path(job.config).resolve().parent) and not job.allow_code:
        where = f"outside the folder of '{job.config}', whose key {_KEY} runs it"
        raise ValueError(f"'{path}' lies {where}: give --allow-code to allow it")
    if path.is_file():  # a missing file is reported later
        said = f"Running code: function '{function}' of '{path}', as '{job.config}' says"
        warn(said)


def _is_own_word(place: str, job: SchemeJob) -> bool:
    keys = [assignment.partition("=")[0].replace(" ", "") for assignment in job.assignments]
    if _KEY in job.given or f"{_TABLE}.{_KEY}" in keys:
        return True
    return _place(read_scheme(job.config)) != place


def _place(scheme: Scheme) -> str:
    return scheme.auto_mixed_precision.evaluate if scheme.auto_mixed_precision else ""
