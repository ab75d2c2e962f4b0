"""Mixed precision."""

from __future__ import annotations

from typing import Any

from tools.jobs.mix import mix_file

from onnx_narrow.api.bars import Watcher
from onnx_narrow.api.call import call
from onnx_narrow.api.metrics import place_of
from onnx_narrow.api.quantize import of_finished
from onnx_narrow.api.result import Result
from onnx_narrow.api.sources import Data, Model, config_file, one_model
from onnx_narrow.api.workplace import destination, workplace
from tools import auto_mixed_precision as tool
from transforms.files.paths import AnyPath
from transforms.scheme import Scheme
from transforms.search.user_metric import UserMetric


def mix_precision(
    model: Model,
    output: AnyPath | None = None,
    *,
    config: AnyPath | Scheme,
    data: Data,
    target: str | list[str] | None = None,
    evaluate: UserMetric | str | None = None,
    force: bool = False,
    progress: Watcher | None = None,
    **options: Any,
) -> Result:
    """Give layers cheaper formats as far as a target for the outputs allows.

    Parameters
    ----------
    model : path, ModelProto or Graph
        The float model; it is not changed.
    output : path, optional
        The model to write; without it nothing is written.
    config : str, path or Scheme
        The baseline: a preset such as ``"S16S8_MIXED_S8S8"`` or ``"BF16"``, or a scheme.
    data : folder, reader, iterable or callable
        Samples, see :data:`onnx_narrow.api.sources.Data`.
    target : str or list of str, optional
        Formats that layers may get, such as ``"mx6"``; those of the scheme by default.
    evaluate : callable or str, optional
        A metric of your own, with ``evaluate_target=0.01`` or ``metric="evaluate"``: it gets a list with a
        dict of arrays for each sample, the outputs by name, and returns a number; higher is better. In
        processes (``jobs``) it has to be a function of a file: ``"FILE.py:FUNCTION"``.
    force : bool
        Whether an existing output is overwritten.
    progress : callable, optional
        Called with the phase, how many pieces are done, and of how many.
    **options
        Any option of ``onnx-narrow auto_mixed_precision``, such as ``sqnr_target=30`` or
        ``strategy="budget"``.

    Returns
    -------
    Result

    Raises
    ------
    ValueError, OSError
        As :func:`onnx_narrow.quantize`.
    """
    if callable(evaluate) and (options.get("jobs", 1) != 1 or options.get("dask")):
        raise ValueError("evaluate is a callable, which other processes do not have: give 'FILE.py:FUNCTION'")
    with workplace() as folder, place_of(evaluate, folder) as place:
        given = {
            "output": destination(output, folder),
            "config": config_file(config, folder),
            "target": target,
            "evaluate": place,
            "force": force,
            **one_model(model, data, folder, options),
        }
        (_, finished), said = call(tool.command(), mix_file, given, progress)
        assert finished is not None, "there is an output"
        return of_finished(finished, said, output)
