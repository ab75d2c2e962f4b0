"""A metric that a caller has as a function, where schemes name a function of a file."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from transforms.files.cleanup import temporary_folder
from transforms.search.user_metric import UserMetric

_given: dict[str, UserMetric] = {}


@contextmanager
def place_of(metric: UserMetric | str | None) -> Iterator[str | None]:
    """Yield a metric as ``FILE.py:FUNCTION``; the file of a function is made meanwhile, in its own folder.

    Schemes name metrics so, and processes load them.
    """
    if not callable(metric):
        yield metric
        return
    token = uuid.uuid4().hex
    with temporary_folder() as folder:
        file = folder / "metric.py"
        file.write_text(f"from {__name__} import given\n\nevaluate = given({token!r})\n", encoding="utf-8")
        _given[token] = metric
        try:
            yield f"{file}:evaluate"
        finally:
            del _given[token]


def given(token: str) -> UserMetric:
    """Return the function of a caller; KeyError in other processes."""
    return _given[token]
