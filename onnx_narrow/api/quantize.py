"""Quantizing a model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from onnx_narrow.api.call import call
from onnx_narrow.api.result import Result, nothing_done, result_of
from onnx_narrow.api.sources import Data, Model, config_file, one_model
from onnx_narrow.api.workplace import destination, workplace
from tools import quantize as tool
from tools.cli.progress import Watcher
from tools.cli.said import Said
from tools.jobs.quantize import quantize_file
from tools.jobs.work import Finished
from tools.summaries.quantize import kept_in_float
from transforms.files.paths import AnyPath
from transforms.moves.improve import Move
from transforms.pipelines.steps import Step
from transforms.scheme import Scheme


def quantize(
    model: Model,
    output: AnyPath | None = None,
    *,
    config: AnyPath | Scheme | None = None,
    data: Data | None = None,
    target: str | None = None,
    force: bool = False,
    progress: Watcher | None = None,
    steps: Sequence[Step] | None = None,
    moves: Sequence[Move] | None = None,
    **options: Any,
) -> Result:
    """Quantize a float model.

    Parameters
    ----------
    model : path, ModelProto or Graph
        The float32 or float16 model; it is not changed.
    output : path, optional
        The model to write; without it nothing is written.
    config : str, path or Scheme
        A preset such as ``"A8W8"``, the path of a scheme in TOML, or a scheme; ``"A8W8"`` without a target.
    data : folder, reader, iterable or callable, optional
        Samples, see :data:`onnx_narrow.api.sources.Data`.
    target : str, optional
        The runtime that the model is made for, such as ``"ort-cpu"``.
    force : bool
        Whether an existing output is overwritten.
    progress : callable, optional
        Called with the phase, how many pieces are done, and of how many.
    steps : sequence of functions, optional
        The steps to take, each a function of a :class:`transforms.pipelines.work.Work`, instead of
        ``transforms.pipelines.recipes.QUANTIZE``.
    moves : sequence of functions, optional
        What the step ``decide`` tries, each a function of a :class:`transforms.moves.improve.Best`, instead
        of ``transforms.pipelines.decide.MOVES``.
    **options
        Any option of ``onnx-narrow quantize`` with underscores, such as ``exclude_nodes=["/head/*"]``,
        ``limit=100`` or ``storage="packed"``; ``assignments={"percentile": 99.9}`` sets keys of the scheme.

    Returns
    -------
    Result
        The model, its scheme, and what was done.

    Raises
    ------
    ValueError
        If options do not fit, nothing can be quantized, or the model cannot be; a ModelError names the node.
    OSError
        If a file cannot be read or written.

    Examples
    --------
    >>> import numpy, onnx_narrow
    >>> samples = [numpy.full((2, 1, 8, 8), i / 8, "float32") for i in range(8)]
    >>> result = onnx_narrow.quantize("tests/examples/digits.onnx", config="A8W8", data=samples)
    >>> result.scheme.activation
    'int8'
    """
    if steps is not None and options.get("fast"):
        raise ValueError("fast and steps both choose the steps: give one of them")
    with workplace() as folder:
        given = {
            "output": destination(output, folder),
            "config": config_file(config or "A8W8", folder) if config or not target else None,
            "target": target,
            "force": force,
            **one_model(model, data, folder, options),
        }
        work = partial(quantize_file, steps=steps, moves=moves)
        finished, said = call(tool.command(), work, given, progress)
        if finished is None:
            raise nothing_done(said)
        return of_finished(finished, said, output)


def of_finished(finished: Finished, said: Said, output: AnyPath | None) -> Result:
    """Return the result of a quantization, whose model is written."""
    work, record = finished.work, finished.work.record
    assert record.first is not None, "the model was tried out"
    return result_of(
        finished.files,
        record.first,
        said,
        output,
        scheme=work.scheme,
        converted={f"{name} {role}": count for (name, role), count in record.tensors.items()},
        kept=dict(kept_in_float(work.graph)),
        decided=list(record.decisions.tried),
        steps=record.steps,
    )
