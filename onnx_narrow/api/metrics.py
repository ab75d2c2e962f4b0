"""Metrics that are Python functions, for schemes, which name a function in a file."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from transforms.files.cleanup import temporary_folder
from transforms.search.user_metric import UserMetric

_given: dict[str, UserMetric] = {}


@contextmanager
def place_of(metric: UserMetric | str | None) -> Iterator[str | None]:
    """Yield a metric as ``FILE.py:FUNCTION``; for a function the file is temporary, in its own folder.

    Schemes name metrics in this form, and processes load them from it.
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
    """Return the function that a caller passed as a metric; KeyError in other processes."""
    return _given[token]
