"""Subnormal numbers in the functions of this package: kept, whatever else the calling thread does with them.

A thread may treat them as zero: a session with ``session.set_denormal_as_zero`` sets that for the thread that
creates it, a library linked with -ffast-math for the one that loads it. What reads and writes bits of
floating-point numbers would give other bits there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from ops._library import flush_again, keep_subnormals

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def keeps_subnormals(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Make a function compute with subnormal numbers; afterwards the thread treats them as before.

    Threads that the function starts, or that a library of linear algebra holds ready, are not changed.
    """

    @wraps(function)
    def keeping(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        flushes = keep_subnormals()
        try:
            return function(*args, **kwargs)
        finally:
            flush_again(flushes)

    return keeping
