"""Products of matrices on one thread: how many there are would change the last bits of sums.

What weights are tuned to follows from these sums, and of two choices that are nearly alike the last bits can
take the one or the other. Products of tuning are many and small, too: threads that wait for each other cost
more than they bring.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np  # noqa: F401  # threads are those of libraries that are loaded
from threadpoolctl import threadpool_limits


@contextmanager
def products_on_one_thread() -> Iterator[None]:
    """Let NumPy's products of matrices run on one thread meanwhile, in the whole process.

    Also a decorator. ONNX Runtime has threads of its own.
    """
    with threadpool_limits(limits=1, user_api="blas"):
        yield


def start_products_on_one_thread() -> None:
    """Let them do so from now on, in a process that works for another one."""
    threadpool_limits(limits=1, user_api="blas")
