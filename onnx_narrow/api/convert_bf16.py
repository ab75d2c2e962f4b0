"""Converting a model to BF16."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from onnx_narrow.api.call import Progress, call, notes_of
from onnx_narrow.api.quantize import sqnr_of
from onnx_narrow.api.result import Result
from onnx_narrow.api.sources import Data, Model, model_file, samples_folder
from onnx_narrow.api.workplace import destination, made, workplace
from tools.jobs.bf16 import convert_file
from tools.jobs.bf16_options import command
from transforms import model_io
from transforms.pipelines.inspect_bf16 import describe

_TOOLS = {"float32": "convert_fp32_to_bf16", "float16": "convert_fp16_to_bf16"}


def convert_bf16(
    model: Model,
    output: str | Path | None = None,
    *,
    format: str | None = None,
    data: Data | None = None,
    target: str | None = None,
    force: bool = False,
    progress: Progress | None = None,
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
        source = model_file(model, folder)
        element = describe(model_io.load(source)).element
        tool = _TOOLS.get(element or "", _TOOLS["float32"])
        given = {
            "input": source,
            "output": destination(output, folder),
            "format": format,
            "data": samples_folder(data, source, folder / "samples", options.get("limit")),
            "target": target,
            "force": force,
            **options,
        }
        kind = "float16" if tool == _TOOLS["float16"] else "float32"
        converted, said = call(command(tool, ""), lambda job: convert_file(tool, kind, job), given, progress)
        if converted is None:
            raise ValueError(" ".join(line.strip() for line in said.lines))
        tally = converted.done.tally
        return Result(
            made(converted.files[0]),
            None if output is None else Path(output),
            converted={"nodes": tally.converted if tally else 0, "tensors": converted.done.tensors},
            kept={why: sum(ops.values()) for why, ops in (tally.kept if tally else {}).items()},
            sqnr=sqnr_of(converted.first),
            notes=notes_of(said, output),
            warnings=said.warnings,
        )
