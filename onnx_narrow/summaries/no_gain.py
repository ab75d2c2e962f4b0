"""The last line on a model that is not smaller than its float model."""

from __future__ import annotations

from collections.abc import Iterator

from onnx_narrow.summaries.words import Sizes
from transforms.files.spelling import as_option
from transforms.pipelines.smaller import smaller_presets
from transforms.pipelines.work import Work

_SMALLER = 0.95
"""Share of the bytes of the float file that a preset has to be below to be named."""


def no_gain_line(work: Work, sizes: Sizes) -> Iterator[str]:
    """Yield the line, none for a model that is smaller: its time has a line already.

    Without a target it names a preset that was built and is smaller, or says that none is. Options that
    store weights in fewer bits have a line of their own.
    """
    assert work.record.first is not None and work.source is not None, "the model was tried out"
    time = work.record.first.time
    if sizes.ratio >= 1:
        slower = ", and slower here" if time is not None and time.is_slower else ""
        other = "" if work.scheme.target else f": {_other(work, sizes)}"
        yield f"Not smaller than the float file{slower}{other}"


def _other(work: Work, sizes: Sizes) -> str:
    assert work.source is not None, "it was loaded"
    found = list(smaller_presets(work.source.load, int(_SMALLER * sizes.before)))
    if not found:
        return "no preset of integers makes it so"
    name, size = found[0]
    return f"{as_option('config', name)} alone makes {size / sizes.before:.2f} of its bytes"
