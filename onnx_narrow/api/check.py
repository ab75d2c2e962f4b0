"""Checking a model against the rules of a deployment target."""

from __future__ import annotations

from onnx_narrow.api.sources import Model, source_of
from onnx_narrow.api.told import Told, Watcher
from onnx_narrow.api.usage import checked
from onnx_narrow.summaries.target import target_lines
from transforms.deploy.check_target import check_target
from transforms.run.events import Events
from transforms.scheme import targets
from transforms.scheme.targets import ON_CPU

_TIME = {ON_CPU: ", by its rules; tools.infer --time compares its time with the float model's"}
"""What the rules of a target do not cover, and the tool that measures it."""


def check(model: Model, target: str, *, progress: Watcher | Events | None = None) -> list[str]:
    """Return each rule of a deployment target that a model breaks, in words; empty if it fits.

    Parameters
    ----------
    model : path, ModelProto or Graph
        The model to look at.
    target : str
        The runtime that it is for, one of :func:`onnx_narrow.targets`.
    progress : Events, optional
        Told what ``onnx-narrow check`` prints: what runs in low precision there, what not, and why.

    Raises
    ------
    TypeError, ValueError
        For an unknown target; a ModelError where ``model`` is not a model.
    OSError
        If the model cannot be read.

    Examples
    --------
    >>> import onnx_narrow
    >>> onnx_narrow.check("tests/examples/digits.onnx", "ort-cpu")
    ['nothing is quantized: it computes in low precision after uint8 or int8']
    """
    checked("check", locals())
    row = targets.target(target)
    with Told(progress) as told:
        graph = source_of(model).load()
        told.tell(target_lines(graph, row))
        broken = check_target(graph, row)
        told.note(f"  Sources: {'; '.join(row.sources)}")
        told.tell(f"Breaks: {rule}" for rule in broken)
        told.note(f"Fits {row.name}: {'no' if broken else f'yes{_TIME.get(row.name, str())}'}")
    return broken
