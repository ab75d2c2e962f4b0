"""Code that a scheme names: said before it runs, and run from elsewhere only where the user allows it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from transforms.scheme import Scheme, read_scheme
from transforms.search.user_metric import split_place

_TABLE, _KEY = "auto_mixed_precision", "evaluate"


def check_code(scheme: Scheme, options: argparse.Namespace) -> None:
    """Say on stderr which file the scheme in ``options.config`` runs; return without a word if it runs none.

    What the command line names is the user's own word and needs no other. Raises ValueError for a file
    outside the scheme's folder, links resolved, without ``options.allow_code``, and for that option without
    effect.
    """
    place = _place(scheme)
    if not place or _is_own_word(place, options):
        if options.allow_code:
            raise ValueError(f"--allow-code goes with a scheme whose key {_KEY} names a file")
        return
    file, function = split_place(place)
    path = Path(file).resolve()
    if not path.is_relative_to(Path(options.config).resolve().parent) and not options.allow_code:
        where = f"outside the folder of '{options.config}', whose key {_KEY} runs it"
        raise ValueError(f"'{path}' lies {where}: give --allow-code to let it")
    if path.is_file():  # what is not there is an error of its own, later
        said = f"Running code: function '{function}' of '{path}', as '{options.config}' says"
        print(said, file=sys.stderr, flush=True)


def _is_own_word(place: str, options: argparse.Namespace) -> bool:
    keys = [assignment.partition("=")[0].replace(" ", "") for assignment in options.set]
    if _KEY in options.given or f"{_TABLE}.{_KEY}" in keys:
        return True
    return _place(read_scheme(options.config)) != place


def _place(scheme: Scheme) -> str:
    return scheme.auto_mixed_precision.evaluate if scheme.auto_mixed_precision else ""
