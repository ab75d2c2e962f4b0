"""Samples that are partly outputs of an encoder, written once to a folder with these outputs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from onnx_narrow.api.sources import source_of, write_samples
from transforms.files.spelling import spelled
from transforms.graph.some_names import counted
from transforms.pipelines.source import Source
from transforms.run.events import Events, each_told
from transforms.run.fed_samples import FedSamples, fed_inputs
from transforms.runtime.session import OpenModel

if TYPE_CHECKING:
    from onnx_narrow.api.samples import SampleOptions


def fed(options: SampleOptions, data: Path, source: Source, folder: Path, events: Events) -> None:
    """Write the samples in the folder ``data`` to another, with the encoder's outputs on its own samples.

    ``source``: the model that they are inputs of. Raises ValueError or OSError for samples that do not fit.
    """
    assert options.feeds_from is not None, "asked for before"
    encoder = source_of(options.feeds_from)
    opened, inputs = encoder.open(options.run), source.open(options.run).inputs
    pairs = fed_inputs(inputs, opened, dict(options.feeds))
    if not pairs:
        raise ValueError(_why_none(opened, encoder, [model_input.name for model_input in inputs]))
    of_encoder = _encoder_samples(data, encoder)
    samples = FedSamples(inputs, data, opened, of_encoder, pairs, options.images, options.limit)
    write_samples(each_told(samples, events.phase("encoding", "sample"), len(samples)), folder)
    words = ", ".join(name if name == output else f"{output} to {name}" for name, output in pairs.items())
    events.note(f"Ran '{encoder}' on {counted(len(samples), 'sample')}, fed: {words}")


def _encoder_samples(data: Path, encoder: Source) -> Path:
    """Return the folder of an encoder's samples: named after it, inside the decoder's folder or next to it.

    Raises FileNotFoundError where there is none.
    """
    if encoder.path is None:
        words = "is a path: samples of the encoder lie in a folder of its name"
        raise ValueError(f"{spelled('{feeds_from}')} {words}")
    folders = [data / encoder.path.stem, data.parent / encoder.path.stem]
    folder = next((candidate for candidate in folders if candidate.is_dir()), None)
    if folder is None:
        raise FileNotFoundError(f"there are no samples of '{encoder}': no folder '{folders[0]}' or beside it")
    return folder


def _why_none(model: OpenModel, encoder: Source, names: Sequence[str]) -> str:
    outputs, way = ", ".join(model.outputs), spelled("{feeds:OUT=IN}")
    ends = f"no input of the model, {', '.join(names)}, is an output of '{encoder}', {outputs}"
    return f"{ends}: name them, {way}"
