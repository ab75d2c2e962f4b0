"""Nodes that pass tensors of a running model to a function as they are computed."""

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
"""Called with a tensor's name and its numbers in place, which are valid only during the call."""


class WatchedTypeError(ValueError):
    """A watched tensor is not float32."""


class TensorWatch:
    """The watching nodes of a model, and the function that sees their tensors in each thread."""

    def __init__(self, light: onnx.ModelProto, names: walk.Names) -> None:
        """Prepare nodes for a model, with names reserved from now on."""
        self._light, self._names, self._looking = light, names, _Looking()
        self._seen: list[str] = []
        self._numbers: list[int] = []
        weakref.finalize(self, _forget, self._numbers)
        self.outputs: list[str] = []

    def node(self, name: str) -> onnx.NodeProto:
        """Return a node that passes on a tensor; its output goes to :meth:`end`."""
        if not self._seen:
            self._light.opset_import.add(domain=show.DOMAIN, version=1)
        number = show.watch(self._looking.watcher(name))
        self._numbers.append(number)
        output = self._names.derive(name, "seen")
        self._seen.append(output)
        return helper.make_node(show.OP, [name], [output], output, domain=show.DOMAIN, number=number)

    def end(self) -> list[onnx.NodeProto]:
        """Return the last node of the model, if tensors are watched: it has the only output of all of them.

        The runtime requires a reader or an output for every result, and takes time for each pair of a node
        and an output.
        """
        self.outputs = [self._names.derive("all", "seen")] if self._seen else []
        return [helper.make_node("Concat", self._seen, [name], name, axis=0) for name in self.outputs]

    @contextmanager
    def seen_by(self, see: See | None) -> Iterator[None]:
        """Pass tensors to a function while the block runs a model; the block raises what that raises."""
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
    """The function of a thread, and the exception it raised."""

    see: See | None = None
    failure: BaseException | None = None

    def watcher(self, name: str) -> show.Watcher:
        """Return the callback of a node."""

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
