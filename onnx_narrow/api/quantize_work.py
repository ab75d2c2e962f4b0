"""What the keywords of ``quantize`` ask for: a scheme, options, steps and phases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from onnx_narrow.api import gates
from onnx_narrow.api.keywords import TARGET
from onnx_narrow.api.scheme_needs import BLOCKS, CALIBRATION, UNMIXED
from onnx_narrow.api.schemes import SchemeWish, names_formats, quantization_scheme
from onnx_narrow.api.usage import (
    DATA,
    OF_SAMPLES,
    Given,
    Need,
    UsageError,
    check_call,
    listed,
    refuse_own_workers,
)
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.conversion.rows import Row
from transforms.files.spelling import spelled
from transforms.pipelines.options import Options
from transforms.pipelines.recipes import FAST, QUANTIZE
from transforms.pipelines.require import require
from transforms.pipelines.work import Work, WorkRow
from transforms.run.events import Events
from transforms.run.workers import Workers
from transforms.runtime.session import RunOptions
from transforms.scheme import Scheme
from transforms.scheme.dynamic_layers import is_dynamic
from transforms.scheme.scheme_values import FEW_BITS
from transforms.search.target import LOST_TOP1, Target

if TYPE_CHECKING:
    from transforms.finetune.finished_layers import FinishedLayers

KEYS = (
    *("calibrate_method", "per_channel", "full_range", "exclude_nodes", "exclude_op_types"),
    *("keep_weight_nodes", "optimize", "domain", "qdq_domain"),
)
"""Keywords that are keys of a scheme."""

_LISTS = ("exclude_nodes", "exclude_op_types")

_ANY_DATA = Need("{data} or {random_data}", lambda given: given.keys() & {"data", "random_data"})
_COMPARED = Need(
    "{data}, without {fast} or {ranges}",
    lambda given: "data" in given and not given.keys() & {"fast", "ranges"},
)
_JUDGED = Need(
    "{data}, without {fast}, {ranges} or {random_data}",
    lambda given: "data" in given and not given.keys() & {"fast", "ranges", "random_data"},
)
_GOAL = Need("{min_sqnr}, {top1} or {metric}", lambda given: given.keys() & {"min_sqnr", "top1", "metric"})
_NBITS = Need("{matmul_nbits} or {embeddings}", lambda given: given.keys() & {"matmul_nbits", "embeddings"})
NEEDS: Mapping[str, tuple[Need, ...]] = {
    **OF_SAMPLES,
    **dict.fromkeys(("provider", "memory_limit", "jobs", "dask"), (_ANY_DATA,)),
    **dict.fromkeys(("kv_cache", "calibration_cache"), (DATA,)),
    **dict.fromkeys(("min_sqnr", "top1", "effort", "resume"), (_JUDGED,)),
    **gates.needs(_JUDGED),
    **dict.fromkeys(("fallback", "allow_miss", "allow_large"), (_GOAL,)),
    "full_range": (_COMPARED,),
    "accuracy_level": (_NBITS,),
}
_SHARED = Need(
    f"{CALIBRATION.words} or a table [finetune]",
    lambda scheme: CALIBRATION.is_met(scheme) or scheme.finetune is not None,
)
_KEPT = Need(
    f"weights of fewer than {FEW_BITS} bits or a table [finetune]",
    lambda scheme: scheme.fits_weights or scheme.finetune is not None,
)
OF_SCHEME = {
    "matmul_nbits": BLOCKS,
    "embeddings": UNMIXED,
    **dict.fromkeys(("jobs", "dask"), _SHARED),
    "resume": _KEPT,
}
_TOGETHER = (("random_data", "data"), ("fast", "steps"))


def asked_scheme(given: Given, events: Events) -> Scheme:
    """Return the scheme that keywords ask for. Raises ValueError naming the key."""
    scheme = quantization_scheme(wish_of(given), events)
    return scheme.by_rule() if given.get("fast") else scheme


def wish_of(given: Given) -> SchemeWish:
    """Return what keywords say of the scheme."""
    deployment, assignments = given.get("target") or "", given.get("assignments") or ()
    is_named = bool(deployment) or names_formats(assignments)
    shapes = {name: tuple(shape) for name, shape in (given.get("input_shapes") or {}).items()}
    return SchemeWish(
        given.get("config") or (None if is_named else "A8W8"),
        deployment,
        {key: listed(given[key]) if key in _LISTS else given[key] for key in KEYS if key in given},
        assignments,
        given.get("opset") or 0,
        shapes,
    )


def check_keywords(given: Given) -> None:
    """Raise TypeError, ValueError or UsageError for keywords that are wrong, or do not go together."""
    check_call(given, NEEDS, {"target": TARGET})
    for one, other in _TOGETHER:
        if {one, other} <= given.keys():
            raise UsageError(spelled(f"{{{one}}} and {{{other}}} cannot be combined"))
    gates.refuse_two(given)
    refuse_own_workers(given)


def recorded(wish: SchemeWish, given: Given) -> dict[str, object]:
    """Return the options that the metadata of the model record."""
    keys = {"keys": dict(wish.keys)} if wish.keys else {}
    return {**wish.recorded(given), **keys, "random_data": given.get("random_data")}


def steps_of(scheme: Scheme, given: Given) -> Sequence[WorkRow]:
    """Return the rows of a call that names none."""
    if scheme.auto_mixed_precision:
        from transforms.pipelines.mix import MIX

        return *MIX[:2], Row(require, after=("mix",)), *MIX[2:]
    return FAST if "fast" in given else QUANTIZE


def work_class(scheme: Scheme) -> type[Work]:
    """Return the class of the work that the steps for a scheme take."""
    if not scheme.auto_mixed_precision:
        return Work
    from transforms.pipelines.mix import MixWork  # imports take time that small jobs notice

    return MixWork


def options_of(given: Given, run: RunOptions) -> Options:
    """Return what the job is told beside its scheme."""
    goal: Target | None = gates.gate_in(given)
    if "top1" in given:
        goal = Target(LOST_TOP1, given["top1"])
    return Options(
        run=run,
        goal=goal if "min_sqnr" not in given else Target("sqnr", given["min_sqnr"]),
        allow_miss=given.get("allow_miss", False),
        allow_large=given.get("allow_large", False),
        fallback=given.get("fallback", "float32"),
        effort=given.get("effort", "normal"),
        times=given.get("time", True),
        matmul_nbits=given.get("matmul_nbits", False),
        accuracy_level=given.get("accuracy_level"),
        embeddings=given.get("embeddings", "").replace("float", ""),
        stores_tied=given.get("embeddings") != "float",
        kv_cache=given.get("kv_cache", ""),
        storage=given.get("storage", "plain"),
        functions=given.get("functions", True),
        external_data=given.get("save_as_external_data", False),
        random_data=given.get("random_data", 0),
        finished=finished_in(given),
        may_compare=not given.get("fast"),
    )


def finished_in(given: Given) -> FinishedLayers | None:
    """Return where layers are kept until the model is written; OSError if the folder cannot be made."""
    if "resume" not in given:
        return None
    from transforms.finetune.finished_layers import FinishedLayers  # imports take time that small jobs notice

    return FinishedLayers(Path(given["resume"]))


def refuse_goal(work: Work, given: Given) -> None:
    """Raise ValueError for a goal beside a table of the scheme that goes by outputs itself."""
    if work.options.goal is None or gates.is_gated(given):
        return
    name = spelled("{min_sqnr}" if "min_sqnr" in given else "{top1}")
    if work.options.tuning is not None:
        raise ValueError(f"{name} cannot be combined with the table [finetune] of the scheme")
    if work.asked.auto_mixed_precision is not None:
        raise ValueError(f"{name} cannot be combined with the table [auto_mixed_precision] of the scheme")


def data_of(
    opened: CalibrationData | None, given: Given, run: RunOptions, workers: Workers | None
) -> CalibrationData | None:
    """Return the samples with all that keywords say of calibration, None without any."""
    if "random_data" in given:
        opened = CalibrationData((), run=run)
    if opened is None:
        return None
    cache, limit = given.get("calibration_cache"), given.get("memory_limit")
    return replace(opened, cache=cache, workers=workers, memory_limit=limit)


def refuse_fast(scheme: Scheme, given: Given) -> None:
    """Raise UsageError for a job without outputs that are looked at, which cannot be faster."""
    if "fast" in given and "data" not in given and not is_dynamic(scheme):
        raise UsageError(spelled("{fast} requires {data}, or products that round activations at run time"))
