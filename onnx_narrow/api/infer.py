"""Running a model on samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from onnx_narrow.api.image_keywords import Preprocess
from onnx_narrow.api.result_folders import check_folder
from onnx_narrow.api.samples import SampleOptions, open_folder
from onnx_narrow.api.saved_outputs import save_outputs
from onnx_narrow.api.sources import Data, Model, placed, source_of
from onnx_narrow.api.told import Told, Watcher
from onnx_narrow.api.usage import checked
from onnx_narrow.summaries import inference
from onnx_narrow.summaries.timing import cost_lines
from transforms.compare.measure_run import Data as FolderData
from transforms.compare.measure_run import measure_both
from transforms.files.cleanup import temporary_folder
from transforms.files.paths import AnyPath
from transforms.pipelines.source import Source
from transforms.run.events import Events


def infer(
    model: Model,
    output: AnyPath,
    *,
    data: Data,
    time: Model | None = None,
    output_names: Sequence[str] | str = (),
    generate: int = 0,
    force: bool = False,
    limit: int | None = None,
    image_size: int | Sequence[int] | None = None,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    layout: str | None = None,
    preprocess: Preprocess | None = None,
    sequences: bool = False,
    states: Mapping[str, str] | None = None,
    feeds_from: Model | None = None,
    feeds: Mapping[str, str] | None = None,
    provider: str = "cpu",
    threads: int | None = None,
    progress: Watcher | Events | None = None,
) -> dict[str, Path]:
    """Run a model on samples and save its outputs as .npy files, for :func:`onnx_narrow.evaluate`.

    Parameters
    ----------
    model : path, ModelProto or Graph
        The model to run.
    output : path
        The folder for results: a file for each sample, in a sub-folder for each output if there are several.
    data : folder, file, array, reader, iterable or callable
        Samples, see :data:`onnx_narrow.api.sources.Data`; those in memory are written to a temporary folder.
    output_names : list of str
        Save only these outputs.
    generate : int
        Save so many tokens that a language model continues each sample by; outputs only by ``output_names``.
    time : path, ModelProto or Graph, optional
        A model whose time and memory are compared on the same samples; models in memory are written to a
        temporary folder for that. Time is that of the processor, on one thread unless ``threads`` says more.
    force : bool
        Whether results go into a folder that is not empty.
    limit, image_size, mean, std, layout, preprocess, sequences, states, feeds_from, feeds : optional
        How samples are read, as in :func:`onnx_narrow.quantize`.
    provider, threads : str and int
        Execution provider of ONNX Runtime, and threads; all cores by default.
    progress : callable, optional
        Called with the phase, how many pieces are done, and of how many.

    Returns
    -------
    dict of str to Path
        The folder of the results of each output by its name.

    Raises
    ------
    TypeError, ValueError, OSError
        As :func:`onnx_narrow.quantize`.

    Examples
    --------
    >>> import numpy, onnx_narrow, tempfile
    >>> samples = [numpy.full((2, 1, 8, 8), i / 8, "float32") for i in range(8)]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found = onnx_narrow.infer("tests/examples/digits.onnx", folder, data=samples)
    ...     print(len(list(found["logits"].glob("*.npy"))))
    8
    """
    keywords = checked("infer", locals())
    results, source = Path(output), source_of(model)
    check_folder(results, force=force)
    beside = None if time is None else _beside(time)
    options = SampleOptions.of(keywords)
    with Told(progress) as told:
        told.expect(
            "" if feeds_from is None else "encoding", "loading", "running", "timing" if beside else ""
        )
        with open_folder(options, source, told, unrolls=False) as folder:
            saved = save_outputs(source, folder, results, options, told)
            told.tell(inference.lines(saved, results))
            if beside is not None:
                _compare_time(beside, source, folder, told)
    return dict(saved.folders)


def _beside(model: Model) -> Source:
    """Return the model to compare times with; FileNotFoundError, before any work, if it does not exist."""
    source = source_of(model)
    if source.path is not None and not source.path.is_file():
        raise FileNotFoundError(f"model '{source}' does not exist")
    return source


def _compare_time(beside: Source, source: Source, samples: FolderData, told: Told) -> None:
    """Report the time and memory of both models, which other processes open from files."""
    told.phase("timing")
    with temporary_folder() as folder:
        files = placed(beside, folder, "float.onnx"), placed(source, folder, "model.onnx")
        told.tell(cost_lines(measure_both(*files, samples)))
