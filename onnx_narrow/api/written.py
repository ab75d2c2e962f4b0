"""Writing the model of a call: to its file, or into memory where none is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_graphsurgeon as gs

from onnx_narrow.api.usage import Given
from onnx_narrow.summaries.words import Sizes
from transforms import model_io
from transforms.files.output_file import refuse_other_ending, total_bytes
from transforms.pipelines.source import Source

ONNX = ("an ONNX model", ".onnx")
"""What is written, in words, and how its file ends."""


@dataclass(frozen=True)
class Output:
    """Where a model goes: a file, or memory (None); ``force``: an existing file is replaced."""

    path: Path | None
    force: bool = False
    external_data: bool = False
    functions: bool = True

    @classmethod
    def checked(cls, given: Given, *sources: Source) -> Output:
        """Return the output of a call by its keywords.

        Raises before any work as :func:`transforms.model_io.check_output` does, ValueError also for a file of
        another ending than .onnx.
        """
        path, force = given.get("output"), given.get("force", False)
        place, external_data = None if path is None else Path(path), given.get("save_as_external_data", False)
        for source in sources:
            if place is not None:
                model_io.check_output(place, source.path, force=force, external_data=external_data)
                refuse_other_ending(place, *ONNX)
        return cls(place, force, external_data, given.get("functions", True))


@dataclass(frozen=True)
class Written:
    """A model in its file or in memory, and its sizes."""

    model: onnx.ModelProto | None
    sizes: Sizes


def write(
    graph: gs.Graph,
    output: Output,
    source: Source,
    metadata: Mapping[str, str],
    exported: model_io.Exported | None,
) -> Written:
    """Write a model, whole or not at all. Raises as :func:`transforms.model_io.save` does."""
    before = source.stored_bytes(graph)
    if output.path is None:
        model = model_io.to_proto(graph, metadata=metadata, functions=output.functions, exported=exported)
        return Written(model, Sizes(before, model.ByteSize()))
    files = model_io.save(
        graph,
        output.path,
        metadata=metadata,
        external_data=output.external_data,
        force=output.force,
        functions=output.functions,
        exported=exported,
    )
    return Written(None, Sizes(before, total_bytes(files), output.path))
