"""Attribute a failed run to the sample or to the quantized model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import onnx_graphsurgeon as gs

from ops.array_types import Feed
from transforms.files.runtime_message import said_by_runtime
from transforms.graph.typed import source_files
from transforms.runtime.inputs import SizesError
from transforms.runtime.session import RunOptions, open_session

Samples = Mapping[str, Feed]


@contextmanager
def failing(samples: Samples, floats: gs.Graph, run: RunOptions | None, made: str) -> Iterator[None]:
    """Turn what a run raises into a ValueError that names a sample, if the float model fails on it, too.

    Else it names ``made``, the model that runs. The float model is the file that ``floats`` was loaded from,
    or ``floats`` itself if there is none. A ValueError, as of a model that cannot be opened, passes
    unchanged.
    """
    try:
        yield
    except ValueError as error:
        if not isinstance(error, SizesError):
            raise
        raise ValueError(_blamed(samples, floats, run, made, str(error))) from error
    except Exception as error:  # the runtime's exceptions share no narrower class
        raise ValueError(_blamed(samples, floats, run, made, said_by_runtime(error))) from error


def _blamed(samples: Samples, floats: gs.Graph, run: RunOptions | None, label: str, said: str) -> str:
    file = next((path for path in source_files(floats) if path.is_file()), None)
    model = open_session(file or floats, run)
    for name, feed in samples.items():
        try:
            model.run(feed)
        except Exception as error:  # the runtime's exceptions share no narrower class
            return f"sample '{name}': the model fails: {said_by_runtime(error)}"
    runs = f"'{file}'" if file else "the float model"
    return f"{label} fails: {said}; {runs} runs on the same samples"
