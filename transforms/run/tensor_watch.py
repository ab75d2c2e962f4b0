"""Nodes that hand tensors of a running model to a function, one after the other as they are made."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from ops import show
from transforms.graph import dtypes, walk

See = Callable[[str, NDArray[np.float32]], None]
"""Called with the name of a tensor and its numbers, in place: they are there during the call alone."""


class WatchedTypeError(ValueError):
    """A tensor that is watched is not of float32."""


class TensorWatch:
    """The nodes in a model, and who looks at their tensors during the runs of each thread."""

    def __init__(self, light: onnx.ModelProto, names: walk.Names) -> None:
        """Let nodes be put into a model, with names that are taken from now on."""
        self._light, self._names, self._looking = light, names, _Looking()
        self._seen: list[str] = []
        self._numbers: list[int] = []
        weakref.finalize(self, _forget, self._numbers)
        self.outputs: list[str] = []

    def node(self, name: str) -> onnx.NodeProto:
        """Return a node that hands a tensor over; what it makes goes to :meth:`end`."""
        if not self._seen:
            self._light.opset_import.add(domain=show.DOMAIN, version=1)
        number = show.watch(self._looking.watcher(name))
        self._numbers.append(number)
        output = self._names.derive(name, "seen")
        self._seen.append(output)
        return helper.make_node(show.OP, [name], [output], output, domain=show.DOMAIN, number=number)

    def end(self) -> list[onnx.NodeProto]:
        """Return the last node of the model, if tensors are watched: it makes ``outputs``, the one of all.

        The runtime wants a reader or an output for all that is made, and takes time for each pair of a node
        and an output.
        """
        self.outputs = [self._names.derive("all", "seen")] if self._seen else []
        return [helper.make_node("Concat", self._seen, [name], name, axis=0) for name in self.outputs]

    @contextmanager
    def seen_by(self, see: See | None) -> Iterator[None]:
        """Let tensors go to a function while the block runs a model; the block raises what that raises."""
        self._looking.see, self._looking.failure = see, None
        try:
            yield
        except Exception:  # the runtime's exceptions share no narrower class
            if self._looking.failure is not None:
                raise self._looking.failure from None
            raise
        finally:
            self._looking.see = self._looking.failure = None


def _forget(numbers: list[int]) -> None:
    for number in numbers:
        show.unwatch(number)


class _Looking(threading.local):
    """Who looks in a thread, and what that raised."""

    see: See | None = None
    failure: BaseException | None = None

    def watcher(self, name: str) -> show.Watcher:
        """Return what a node calls."""

        def _look(view: memoryview, element: int, shape: tuple[int, ...]) -> None:
            try:
                if element != dtypes.FLOAT:
                    kind = onnx.TensorProto.DataType.Name(element).lower()
                    raise WatchedTypeError(
                        f"'{name}' is a tensor({kind}), only tensors of float32 have ranges"
                    )
                if self.see:
                    self.see(name, np.ndarray(shape, np.float32, view))
            except BaseException as error:
                self.failure = error
                raise

        return _look
