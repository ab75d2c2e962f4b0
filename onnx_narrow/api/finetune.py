"""Tuning the weights of a quantized model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from onnx_narrow.api.call import Progress, call, notes_of
from onnx_narrow.api.quantize import sqnr_of
from onnx_narrow.api.result import Result
from onnx_narrow.api.sources import Data, Model, model_file, samples_folder
from onnx_narrow.api.workplace import destination, made, workplace
from tools import finetune as tool
from tools.jobs.finetune import finetune_file
from transforms.scheme.recorded_scheme import recorded_scheme


def finetune(
    float_model: Model,
    quantized: Model,
    output: str | Path | None = None,
    *,
    data: Data,
    force: bool = False,
    progress: Progress | None = None,
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
        source = model_file(float_model, folder, "float.onnx")
        given = {
            "float_model": source,
            "quantized": model_file(quantized, folder, "quantized.onnx"),
            "output": destination(output, folder),
            "data": samples_folder(data, source, folder / "samples", options.get("limit")),
            "force": force,
            **options,
        }
        tuned, said = call(tool.command(), finetune_file, given, progress)
        return Result(
            made(tuned.files[0]),
            None if output is None else Path(output),
            recorded_scheme(tuned.done.graph),
            sqnr=sqnr_of(tuned.first),
            notes=notes_of(said, output),
            warnings=said.warnings,
        )
