"""The table of options, one row each: the source of keyword checks, command lines and the reference.

Rows that several jobs have are in :mod:`onnx_narrow.options.shared`, others in the module of their job.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx_narrow.options.option import Option

JOBS = (
    *("quantize", "convert_bf16", "mix_precision", "finetune"),
    *("evaluate", "infer", "report", "inspect", "check", "formats"),
)
"""Functions, and commands by the functions that they call."""

_APART = "{{{}}} and {{{}}} cannot be combined"

APART: tuple[tuple[tuple[str, ...], str], ...] = (
    (("random_data", "data"), _APART),
    (("fast", "steps"), _APART),
    (("min_sqnr", "top1", "min_metric", "max_loss"), _APART),
    *(((name, "against"), _APART) for name in ("grids", "layers", "tensors")),
    *((("grids", name), _APART) for name in ("layers", "tensors")),
    (("generate", "sequences"), "{{{}}} cannot be combined with {{{}}}"),
    (("provider", "infer_device"), "{{{}}} and {{{}}} both select a device: give one of them"),
)
"""Options that exclude each other, with the error for two of them."""

WRITTEN = ("output", "json", "csv", "chart", "plot", "calibration_cache")
"""Options that name files to write, all different."""

PLACED = ("model", "float_model", "baseline", "quantized", "output")
"""Options that are positional in calls and commands."""

_FIRST = (*PLACED, "config", "data", "target")
_LAST = ("progress", "steps", "moves")


@cache
def keywords(job: str) -> dict[str, Option]:
    """Return the options that the function of a job has, by name."""
    return _named(job, "{}", "{}()")


@cache
def options(job: str) -> dict[str, Option]:
    """Return the options that the command of a job has, by name."""
    return _named(job, "{}", "--{}")


def _named(job: str, *forms: str) -> dict[str, Option]:
    words = {form.format(job) for form in forms}
    found = {row.name: row for row in rows(job) if words & {*row.jobs.split()}}
    order = dict.fromkeys((*_FIRST, *(name for name in found if name not in _LAST), *_LAST))
    return {name: found[name] for name in order if name in found}


def rows(job: str) -> tuple[Option, ...]:
    """Return the rows of a job's own module, and those that several jobs have."""
    from onnx_narrow.options import shared

    own: tuple[Option, ...] = importlib.import_module(f"{__name__}.{job}").ROWS
    return *own, *shared.ROWS
