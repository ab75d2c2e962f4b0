"""The last line on a model that gains nothing over its float model."""

from __future__ import annotations

from collections.abc import Iterator

from onnx_narrow.summaries.quantize import formats_of_blocks
from onnx_narrow.summaries.words import Sizes
from transforms.files.spelling import as_option
from transforms.pipelines.work import Work

_AS_LARGE = 0.98
"""Share of the bytes of the float file from which on a slower model gains nothing."""

_LARGER = "Not smaller than the float file"

_SMALLER = 0.95
"""Share of the bytes of the float file below which weights in 8 bits are worth a word."""

_SAVED = 0.75
"""Share of the bytes of float32 weights that 8 bits save."""


def no_gain_line(work: Work, sizes: Sizes) -> Iterator[str]:
    """Yield the line, none for a model that is smaller and no slower: its time has a line already.

    A model that is slower has to be clearly smaller. Without a target the line says what weights in 8 bits
    alone would make of the file. Options that store weights in fewer bits have a line of their own.
    """
    assert work.record.first is not None and work.source is not None, "the model was tried out"
    time = work.record.first.time
    is_slower = time is not None and time.is_slower
    if sizes.ratio < (_AS_LARGE if is_slower else 1):
        return
    size = "not smaller than" if sizes.ratio >= 1 else f"{sizes.ratio:.2f} of the bytes of"
    line = f"Gained nothing: {size} the float file, and slower here" if is_slower else _LARGER
    yield line if work.scheme.target or _can_be_packed(work) else f"{line}: {_other(work, sizes)}"


def _can_be_packed(work: Work) -> bool:
    """Return whether weights can be stored packed, which has a line of its own."""
    return work.options.storage == "plain" and bool(formats_of_blocks(work.record))


def _other(work: Work, sizes: Sizes) -> str:
    from transforms.graph.product_weights import product_weights

    assert work.source is not None, "it was loaded"
    left = 1 - _SAVED * product_weights(work.source.load()) / sizes.before
    if left >= _SMALLER:
        return "too little of it is weights of products"
    return f"{as_option('config', 'W8')} makes about {left:.2f} of its bytes"
