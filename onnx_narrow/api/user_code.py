"""Code that a scheme names: announced before it runs; outside the scheme's folder it needs permission."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from onnx_narrow.api.schemes import SchemeWish
from transforms.files.spelling import spelled
from transforms.run.events import Events
from transforms.scheme import Scheme
from transforms.scheme.mixing_rule import MIXING
from transforms.search.user_metric import split_place

_KEY = "evaluate"


def check_code(scheme: Scheme, wish: SchemeWish, events: Events, *, allow_code: bool) -> None:
    """Announce the file that a scheme from a file runs; return silently if it runs none.

    Code that a keyword names is the caller's own choice. Raises ValueError for a file outside the
    scheme's folder, links resolved, without ``allow_code``, and where ``allow_code`` has no effect.
    """
    place = _place(scheme)
    if not place or _is_own_word(place, wish):
        if allow_code:
            words = f"requires a scheme whose key {_KEY} names a file"
            raise ValueError(f"{spelled('{allow_code}')} {words}")
        return
    file, function = split_place(place)
    path = Path(file).resolve()
    if not path.is_relative_to(wish.folder or Path().resolve()) and not allow_code:
        where = f"outside the folder of '{wish.config}', whose key {_KEY} runs it"
        raise ValueError(f"'{path}' lies {where}: give {spelled('{allow_code}')} to allow it")
    if path.is_file():  # a missing file is reported later
        events.warn(f"Running code: function '{function}' of '{path}', as '{wish.config}' says")


def _is_own_word(place: str, wish: SchemeWish) -> bool:
    if isinstance(wish.config, Scheme | Mapping) or _KEY in wish.keys or f"{MIXING}.{_KEY}" in wish.assigned:
        return True
    return _place(wish.read()) != place


def _place(scheme: Scheme) -> str:
    return scheme.auto_mixed_precision.evaluate if scheme.auto_mixed_precision else ""
