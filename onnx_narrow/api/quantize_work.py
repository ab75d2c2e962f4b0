"""The scheme, recipe and range files that the keywords of ``quantize`` ask for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from onnx_narrow.api.scheme_needs import BLOCKS, CALIBRATION, UNMIXED
from onnx_narrow.api.schemes import SchemeWish, names_formats, quantization_scheme
from onnx_narrow.options.option import Keywords, Need
from onnx_narrow.options.quantize import SCHEME_KEYS
from transforms.conversion.rows import Row
from transforms.pipelines.recipes import FAST, QUANTIZE
from transforms.pipelines.require import require
from transforms.pipelines.work import Work, WorkRow
from transforms.run.events import Events
from transforms.scheme import Scheme
from transforms.scheme.fitted_weights import FEW_BITS

if TYPE_CHECKING:
    from onnx_narrow.api.ranges import RangeFiles


_SHARED = Need(
    f"{CALIBRATION.words} or a table [finetune]",
    lambda scheme: CALIBRATION.is_met(scheme) or scheme.finetune is not None,
)
_KEPT = Need(
    f"weights of fewer than {FEW_BITS} bits, fit_weights = true or a table [finetune]",
    lambda scheme: scheme.fits_weights or scheme.finetune is not None,
)
OF_SCHEME = {
    "matmul_nbits": BLOCKS,
    "embeddings": UNMIXED,
    **dict.fromkeys(("jobs", "dask"), _SHARED),
    "resume": _KEPT,
}


def asked_scheme(keywords: Keywords, events: Events) -> Scheme:
    """Return the scheme that keywords ask for. Raises ValueError naming the key."""
    scheme = quantization_scheme(wish_of(keywords), events)
    return scheme.by_rule() if keywords.get("fast") else scheme


def wish_of(keywords: Keywords) -> SchemeWish:
    """Return the scheme that the keywords describe."""
    config, deployment = keywords.get("config"), keywords.get("target", "")
    if not (config or deployment or names_formats(keywords.get("assignments", ()))):
        config = "A8W8"
    keys = {key: keywords[key] for key in SCHEME_KEYS if key in keywords}
    return SchemeWish.of(keywords, config or None, deployment, keys)


def recorded(wish: SchemeWish, keywords: Keywords) -> dict[str, object]:
    """Return the options that the metadata of the model record."""
    keys = {"keys": dict(wish.keys)} if wish.keys else {}
    return {**wish.recorded(keywords), **keys, "random_data": keywords.get("random_data")}


def recipe_of(scheme: Scheme, keywords: Keywords) -> tuple[type[Work], Sequence[WorkRow]]:
    """Return the class of the work for a scheme, and its default recipe."""
    if not scheme.auto_mixed_precision:
        return Work, FAST if "fast" in keywords else QUANTIZE
    from transforms.pipelines.mix import MIX, MixWork  # imports take time that small jobs notice

    return MixWork, (*MIX[:2], Row(require, after=("mix",)), *MIX[2:])


def range_files(keywords: Keywords) -> RangeFiles | None:
    """Return the files that ranges are read from and written to, None without any."""
    if not keywords.keys() & {"ranges", "export_ranges"}:
        return None
    from onnx_narrow.api.ranges import RangeFiles  # imports take time that small jobs notice

    return RangeFiles(keywords.get("ranges"), keywords.get("export_ranges"))
