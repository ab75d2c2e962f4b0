"""The samples of a call, as they are or after a float model or an encoder has run on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from onnx_narrow.api.image_keywords import image_options
from onnx_narrow.api.sources import Data, Model, samples_folder, samples_of, write_samples
from onnx_narrow.api.usage import fields_in
from onnx_narrow.api.work_options import run_of
from onnx_narrow.options.option import Keywords
from transforms import model_io
from transforms.calibrate.calibration_data import CalibrationData
from transforms.files.cleanup import temporary_folder
from transforms.pipelines.source import Source
from transforms.run.array_files import find_litter, read_array
from transforms.run.data_sets import as_array
from transforms.run.events import Events
from transforms.run.image_options import ImageOptions
from transforms.runtime.inputs import ModelInput, model_inputs
from transforms.runtime.session import RunOptions

if TYPE_CHECKING:
    from transforms.compare.measure_run import Data as FolderData


@dataclass(frozen=True)
class SampleOptions:
    """The samples of a call, how they are prepared and how models run on them, from its keywords.

    ``output_names``: of the outputs that are saved, all without any; ``generate``: tokens that a language
    model continues each sample by, which are saved then, and no outputs but those that are named.
    """

    data: Data | None = None
    limit: int | None = None
    images: ImageOptions = field(default_factory=ImageOptions)
    sequences: bool = False
    states: Mapping[str, str] = field(default_factory=dict)
    feeds_from: Model | None = None
    feeds: Mapping[str, str] = field(default_factory=dict)
    memory_limit: int | None = None
    calibration_cache: Path | None = None
    random_data: int = 0
    output_names: Sequence[str] = ()
    generate: int = 0
    run: RunOptions = field(default_factory=RunOptions)

    @classmethod
    def of(cls, keywords: Keywords, run: RunOptions | None = None) -> SampleOptions:
        """Return the options of a call by its keywords; ``run``: how models run, overriding the keywords.

        Raises OSError for a cache that cannot be written, and as :func:`image_options` does.
        """
        if "calibration_cache" in keywords:
            model_io.check_output(keywords["calibration_cache"], force=True)
        return cls(**fields_in(cls, keywords), images=image_options(keywords), run=run or run_of(keywords))


@contextmanager
def open_data(options: SampleOptions, source: Source, events: Events) -> Iterator[CalibrationData | None]:
    """Yield the samples for the inputs of the float model, None without any; they last for the block.

    Random samples are made when the model is loaded. The float model runs sequences, an encoder runs on its
    own samples, and each step or sample is written to a temporary folder. Raises ValueError or OSError for
    samples that do not fit.
    """
    cache, limit = options.calibration_cache, options.memory_limit
    none = CalibrationData((), run=options.run, cache=cache, memory_limit=limit)
    if options.data is None:
        yield none if options.random_data else None
    elif not (options.sequences or options.feeds_from is not None):
        samples = samples_of(options.data, options.limit, limit, events)
        report_litter(events, samples)
        yield replace(none, source=samples, images=options.images, limit=options.limit)
    else:
        with open_folder(options, source, events) as written:
            yield replace(none, source=written.folder)


@contextmanager
def open_folder(
    options: SampleOptions, source: Source, events: Events, *, unrolls: bool = True, tells: bool = True
) -> Iterator[FolderData]:
    """Yield the samples for the inputs of a model as a folder that lasts for the block.

    Samples in memory are written to a temporary folder, and so are samples with outputs of an encoder or, if
    ``unrolls``, the steps of sequences as the model runs them. ``tells``: whether to report how images are
    fitted. Raises as :func:`open_data`.
    """
    from transforms.compare import measure_run  # imports take time that small jobs notice

    assert options.data is not None, "asked for before"
    with temporary_folder() as sample_folder, temporary_folder() as prepared_folder:
        inputs = partial(inputs_of, source)
        folder = samples_folder(options.data, inputs, sample_folder, options.limit, events)
        report_litter(events, folder)
        if options.feeds_from is not None:
            from onnx_narrow.api.fed import fed  # imports take time that small jobs notice

            fed(options, folder, source, prepared_folder, events)
        elif options.sequences and unrolls:
            from onnx_narrow.api.unrolled import unrolled

            unrolled(options, folder, source, prepared_folder, events)
        else:
            data = measure_run.Data(folder, options.images, options.run, options.limit)
            if tells:
                _tell(data, source.load(), events)
            if callable(options.images.transform):  # other processes do not have it
                write_samples(data.samples(inputs_of(source)), prepared_folder)
                data = replace(data, folder=prepared_folder, images=ImageOptions())
            yield data
            return
        yield measure_run.Data(prepared_folder, ImageOptions(), options.run)


def inputs_of(source: Source) -> Sequence[ModelInput]:
    """Return the inputs of a model."""
    return model_inputs(source.load())


def _tell(data: FolderData, graph: gs.Graph, events: Events) -> None:
    """Report how arrays and images are fitted to inputs; errors in samples are raised where they are read."""
    with suppress(ValueError, OSError):
        inputs = model_inputs(graph)
        next(iter(data.samples(inputs)))
        for change in data.fitting.lines():
            events.note(change)
        data.samples(inputs).tell_images(graph, events, data.options)


def labels_in(keywords: Keywords) -> NDArray[Any] | None:
    """Return the class numbers as an array, read from a file where a path is given; None without labels."""
    labels = keywords.get("labels")
    return read_array(labels) if isinstance(labels, Path) else None if labels is None else as_array(labels)


def report_litter(events: Events, *folders: object) -> None:
    """Warn, in one line for each folder, of files of operating systems in it that are skipped."""
    for folder in folders:
        names = find_litter(folder) if isinstance(folder, Path) else []
        if names:
            files = "1 file" if len(names) == 1 else f"{len(names)} files"
            events.warn(f"Skipped in '{folder}': {files} of operating systems, such as {names[0]!r}")
