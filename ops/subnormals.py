"""Keep subnormal numbers in functions of this package, whatever the mode of the calling thread.

A thread may flush them to zero: a session with ``session.set_denormal_as_zero`` sets that for the thread
that creates it, a library linked with -ffast-math for the thread that loads it. Kernels that read and write
bits of floating-point numbers would then give other bits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from ops._library import flush_again, keep_subnormals

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def keeps_subnormals(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Make a function compute with subnormal numbers and restore the thread's mode afterwards.

    Threads that the function starts, and pools of linear algebra libraries, are not changed.
    """

    @wraps(function)
    def _keeping(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        flushes = keep_subnormals()
        try:
            return function(*args, **kwargs)
        finally:
            flush_again(flushes)

    return _keeping
