"""The operator that passes a tensor in place to Python while a model runs; nothing is copied or kept.

It has the name of a standard operator in a domain of its own: of the nodes that can run, ONNX Runtime takes
those called Size first, so that a tensor is seen, and freed, before the next is computed. Models that
contain it are never written to a file. It is registered with our own library. Its input is any tensor, its
output a float32 tensor without elements, and its attribute ``number`` identifies the watcher.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from ops._library import look

DOMAIN = "narrow.show"
OP = "Size"

Watcher = Callable[[memoryview, int, tuple[int, ...]], object]
"""Called with the bytes of a float32 tensor, which are valid only during the call, its ONNX element type,
and its shape; for a tensor of another type there are no bytes. An exception it raises ends the run."""

_numbers = itertools.count()


def watch(watcher: Watcher) -> int:
    """Return the number for nodes whose tensors a function watches, until :func:`unwatch` is called."""
    number = next(_numbers)
    look(number, watcher)
    return number


def unwatch(number: int) -> None:
    """Forget a watcher; models with nodes of its number can no longer run."""
    look(number, None)
