"""The samples that the options of a tool name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tools.cli.job_options import DataOptions
from tools.cli.said import warn

if TYPE_CHECKING:
    import onnx_graphsurgeon as gs

    from transforms.run.feeds import Feeds


def open_samples(job: DataOptions, graph: gs.Graph) -> Feeds:
    """Return the samples of ``--data`` as inputs of a graph, and report the files that are skipped."""
    from transforms.run.feeds import open_feeds
    from transforms.runtime.inputs import model_inputs

    assert job.data is not None, "asked for before"
    report_litter(job.data)
    return open_feeds(job.data, model_inputs(graph), images=job.images, limit=job.limit)


def report_litter(*folders: Path | None) -> None:
    """Say on stderr, one line for each folder, what in it is skipped as left there by operating systems."""
    from transforms.run.array_files import find_litter

    for folder in filter(None, folders):
        names = find_litter(folder)
        if names:
            files = "1 file" if len(names) == 1 else f"{len(names)} files"
            warn(f"Skipped in '{folder}': {files} of operating systems, such as {names[0]!r}")
