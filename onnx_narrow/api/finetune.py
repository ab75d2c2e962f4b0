"""Tuning the weights of a quantized model."""

from __future__ import annotations

from typing import Any

from tools.jobs.finetune import finetune_file

from onnx_narrow.api.bars import Watcher
from onnx_narrow.api.call import call
from onnx_narrow.api.result import Result, result_of
from onnx_narrow.api.sources import Data, Model, two_models
from onnx_narrow.api.workplace import destination, workplace
from tools import finetune as tool
from transforms.files.paths import AnyPath
from transforms.scheme.sources import recorded_scheme


def finetune(
    float_model: Model,
    quantized: Model,
    output: AnyPath | None = None,
    *,
    data: Data,
    force: bool = False,
    progress: Watcher | None = None,
    **options: Any,
) -> Result:
    """Tune the weights of a quantized model by samples.

    Parameters
    ----------
    float_model, quantized : path, ModelProto or Graph
        The float model, and the model that was quantized from it; neither is changed.
    output : path, optional
        The model to write; without it nothing is written.
    data : folder, reader, iterable or callable
        Samples, see :data:`onnx_narrow.api.sources.Data`; every fifth is held out.
    force : bool
        Whether an existing output is overwritten.
    progress : callable, optional
        Called with the phase, how many pieces are done, and of how many.
    **options
        Any option of ``onnx-narrow finetune``, such as ``algorithm="adaround"``.

    Returns
    -------
    Result
        The model is the quantized one if tuning does not gain beyond its standard error; ``notes`` say so.

    Raises
    ------
    ValueError, OSError
        As :func:`onnx_narrow.quantize`.
    """
    with workplace() as folder:
        given = {
            "output": destination(output, folder),
            "force": force,
            **two_models(float_model, quantized, data, folder, options),
        }
        tuned, said = call(tool.command(), finetune_file, given, progress)
        scheme = recorded_scheme(tuned.done.graph)
        return result_of(tuned.files, tuned.first, said, output, scheme=scheme)
