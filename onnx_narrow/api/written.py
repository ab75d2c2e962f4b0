"""Writing the model of a call: to its file, or to memory without one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnx_graphsurgeon as gs

from onnx_narrow.options.option import Keywords
from onnx_narrow.summaries.words import Sizes
from transforms import model_io
from transforms.files.output_file import refuse_other_ending, total_bytes
from transforms.files.paths import AnyPath
from transforms.pipelines.source import Source


def checked_path(path: AnyPath, source: Path | None = None, **how: bool) -> Path:
    """Return the path of a model to write, before any work.

    Raises as :func:`transforms.model_io.check_output` does, which takes the same arguments, and ValueError
    for a file that does not end in .onnx.
    """
    checked = model_io.check_output(path, source, **how)
    refuse_other_ending(checked, "an ONNX model", ".onnx")
    return checked


@dataclass(frozen=True)
class Output:
    """Where a model goes: a file, or memory (None); ``force``: an existing file is replaced.

    ``source``: the model whose size it is compared with.
    """

    source: Source
    path: Path | None
    force: bool = False
    external_data: bool = False
    functions: bool = True

    @classmethod
    def checked(cls, keywords: Keywords, *sources: Source) -> Output:
        """Return the output of a call by its keywords; its size is compared with that of the first source.

        Raises as :func:`checked_path` does.
        """
        how = {
            "force": keywords.get("force", False),
            "external_data": keywords.get("save_as_external_data", False),
        }
        for source in sources if "output" in keywords else ():
            checked_path(keywords["output"], source.path, **how)
        return cls(sources[0], keywords.get("output"), functions=keywords.get("functions", True), **how)

    def write(
        self, graph: gs.Graph, metadata: Mapping[str, str], exported: model_io.Exported | None
    ) -> tuple[onnx.ModelProto | None, Sizes]:
        """Write a model, whole or not at all; return it if it stays in memory, and its sizes.

        Raises as :func:`transforms.model_io.save` does.
        """
        before = self.source.stored_bytes(graph)
        how: dict[str, Any] = {"metadata": metadata, "functions": self.functions, "exported": exported}
        if self.path is None:
            model = model_io.to_proto(graph, **how)
            return model, Sizes(before, model.ByteSize())
        files = model_io.save(graph, self.path, external_data=self.external_data, force=self.force, **how)
        return None, Sizes(before, total_bytes(files), self.path)
