"""Converting a model to BF16."""

from __future__ import annotations

from typing import Any

from tools.jobs.bf16 import convert_file

from onnx_narrow.api.bars import Watcher
from onnx_narrow.api.call import call
from onnx_narrow.api.result import Result, nothing_done, result_of
from onnx_narrow.api.sources import Data, Model, one_model
from onnx_narrow.api.workplace import destination, workplace
from tools.options.bf16 import command
from transforms import model_io
from transforms.conversion.inspect_bf16 import describe
from transforms.files.paths import AnyPath

_TOOLS = {"float32": "convert_fp32_to_bf16", "float16": "convert_fp16_to_bf16"}


def convert_bf16(
    model: Model,
    output: AnyPath | None = None,
    *,
    format: str | None = None,
    data: Data | None = None,
    target: str | None = None,
    force: bool = False,
    progress: Watcher | None = None,
    **options: Any,
) -> Result:
    """Convert a float32 or float16 model to BF16.

    Parameters
    ----------
    model : path, ModelProto or Graph
        The model; it is not changed.
    output : path, optional
        The model to write; without it nothing is written.
    format : str, optional
        ``"with_cast"`` (default), ``"bf16"``, ``"simulate_bf16"`` or ``"customqdq"``.
    data : folder, reader, iterable or callable, optional
        Samples, see :data:`onnx_narrow.api.sources.Data`; with ``min_sqnr``.
    target : str, optional
        The runtime that the model is made for, such as ``"ort-cuda"``.
    force : bool
        Whether an existing output is overwritten.
    progress : callable, optional
        Called with the phase, how many pieces are done, and of how many.
    **options
        Any option of ``onnx-narrow convert_fp32_to_bf16``, such as ``min_sqnr=40``.

    Returns
    -------
    Result

    Raises
    ------
    ValueError, OSError
        As :func:`onnx_narrow.quantize`.

    Examples
    --------
    >>> import onnx_narrow
    >>> result = onnx_narrow.convert_bf16("tests/examples/digits.onnx")
    >>> result.notes[0].startswith("Converted: ")
    True
    """
    with workplace() as folder:
        given = {
            "output": destination(output, folder),
            "format": format,
            "target": target,
            "force": force,
            **one_model(model, data, folder, options),
        }
        element = describe(model_io.load(given["input"])).element or ""
        source = element if element in _TOOLS else "float32"
        tool = _TOOLS[source]
        converted, said = call(
            command(tool, ""), lambda job: convert_file(tool, source, job), given, progress
        )
        if converted is None:
            raise nothing_done(said)
        tally = converted.done.tally
        assert tally is not None, "it was converted"
        return result_of(
            converted.files,
            converted.first,
            said,
            output,
            converted={"nodes": tally.converted, "tensors": converted.done.tensors},
            kept={why: sum(ops.values()) for why, ops in tally.kept.items()},
        )
