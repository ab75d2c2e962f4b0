"""The operator that hands a tensor to Python while a model runs, in place: nothing of it is copied or kept.

It has the name of a standard operator, in a domain of its own: of the nodes that can run, ONNX Runtime takes
those called Size first, so that a tensor is seen, and freed, before the next is made. Models in which it
stands are never written to a file. It is registered with our own library. Its input is any tensor, its output
a float32 tensor without elements, and its attribute ``number`` says who looks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from ops._library import look

DOMAIN = "narrow.show"
OP = "Size"

Watcher = Callable[[memoryview, int, tuple[int, ...]], object]
"""Called with the bytes of a float32 tensor, which are there during the call alone, its element type as ONNX
counts them, and its shape; of a tensor of another type there are no bytes. What it raises ends the run."""

_numbers = itertools.count()


def watch(watcher: Watcher) -> int:
    """Return the number for nodes whose tensors a function looks at, until :func:`unwatch` is called."""
    number = next(_numbers)
    look(number, watcher)
    return number


def unwatch(number: int) -> None:
    """Forget who looks; models with nodes of the number cannot run any more."""
    look(number, None)
