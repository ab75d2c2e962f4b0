"""Converting a model to BF16."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import onnx_graphsurgeon as gs

from onnx_narrow.api import gates
from onnx_narrow.api.image_keywords import Preprocess
from onnx_narrow.api.keywords import TARGET
from onnx_narrow.api.kinds import FLAG, choice
from onnx_narrow.api.result import Result, result_of
from onnx_narrow.api.samples import SampleOptions, open_data
from onnx_narrow.api.sources import Data, Model, source_of
from onnx_narrow.api.told import Told, Watcher
from onnx_narrow.api.usage import DATA, OF_SAMPLES, Given, Need, check_call, given_of, listed
from onnx_narrow.api.written import Output, Written, write
from onnx_narrow.summaries import bf16, running
from onnx_narrow.summaries.target import brief_lines
from onnx_narrow.summaries.words import summed_up
from transforms.conversion.convert_bf16 import Bf16Options
from transforms.files.paths import AnyPath
from transforms.files.spelling import spelled
from transforms.graph.some_names import counted
from transforms.model import provenance
from transforms.pipelines.bf16 import BF16, TOOLS, Bf16Work, recorded
from transforms.pipelines.options import Options
from transforms.pipelines.steps import Steps, phases_of, run
from transforms.run.events import Events
from transforms.runtime.session import RunOptions
from transforms.scheme import preset
from transforms.scheme.targets import target as row_of
from transforms.search.target import Target
from transforms.search.user_metric import UserMetric

_LISTS = ("exclude_node", "exclude_op")
_CUSTOM = Need("{format:customqdq}", lambda given: given.get("format") == "customqdq")
_ROUNDED = Need("{format:with_cast}, bf16 or customqdq", lambda given: given.get("format") != "simulate_bf16")

NEEDS: Mapping[str, tuple[Need, ...]] = {
    **OF_SAMPLES,
    "data": (Need("{min_sqnr} or {metric}", lambda given: given.keys() & {"min_sqnr", "metric"}),),
    **gates.needs(DATA),
    **dict.fromkeys(("min_sqnr", "provider"), (DATA,)),
    **dict.fromkeys(("weights", "saturate_activations"), (_ROUNDED,)),
    "domain": (_CUSTOM,),
}

_KINDS = {
    "format": choice("with_cast", "bf16", "simulate_bf16", "customqdq"),
    "weights": choice("bfloat16", "float32"),
    "domain": choice("ai.onnx.contrib", "com.amd.quark"),
    "float_type": choice(*TOOLS),
    "target": TARGET,
    **dict.fromkeys(("keep_io_types", "saturate_activations", "strict", "optimize", "time"), FLAG),
}


def convert_bf16(
    model: Model,
    output: AnyPath | None = None,
    *,
    format: str | None = None,
    data: Data | None = None,
    min_sqnr: float | None = None,
    metric: UserMetric | str | None = None,
    min_metric: float | None = None,
    max_loss: float | None = None,
    target: str | None = None,
    exclude_node: Sequence[str] | str = (),
    exclude_op: Sequence[str] | str = (),
    weights: str | None = None,
    domain: str | None = None,
    keep_io_types: bool = True,
    saturate_activations: bool = False,
    strict: bool = False,
    optimize: bool = True,
    opset: int | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    float_type: str | None = None,
    limit: int | None = None,
    image_size: int | Sequence[int] | None = None,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    layout: str | None = None,
    preprocess: Preprocess | None = None,
    sequences: bool = False,
    states: Mapping[str, str] | None = None,
    feeds_from: Model | None = None,
    feeds: Mapping[str, str] | None = None,
    functions: bool = True,
    save_as_external_data: bool = False,
    force: bool = False,
    time: bool = True,
    provider: str | None = None,
    threads: int | None = None,
    progress: Watcher | Events | None = None,
    steps: Steps | None = None,
) -> Result:
    """Convert a float32 or float16 model to BF16.

    Keywords that are not described here are those of :func:`onnx_narrow.quantize`.

    Parameters
    ----------
    model : path, ModelProto or Graph
        The model; it is not changed.
    output : path, optional
        The model to write; without it nothing is written.
    format : str, optional
        ``"with_cast"`` (default), ``"bf16"``, ``"simulate_bf16"`` or ``"customqdq"``.
    data : folder, file, array, reader, iterable or callable, optional
        Samples, see :data:`onnx_narrow.api.sources.Data`; with ``min_sqnr`` or ``metric``.
    min_sqnr : float, optional
        Keep as few layers in float as possible for this SQNR in dB of every output on held-out samples,
        before a final Softmax.
    target : str, optional
        The runtime that the model is made for, such as ``"ort-cuda"``.
    exclude_node, exclude_op : list of str
        Nodes by name or glob, and operator types, that stay in float.
    weights : str, optional
        ``"bfloat16"`` (default), or ``"float32"``: stored so, and rounded at load.
    domain : str, optional
        Domain of the operators of ``format="customqdq"``: ``"ai.onnx.contrib"`` or ``"com.amd.quark"``.
    keep_io_types, saturate_activations, strict, optimize : bool
        Inputs and outputs keep their type; activations are clipped to the range of BF16; NaN in weights is an
        error; the graph is optimized and fused.
    float_type : str, optional
        ``"float32"`` or ``"float16"``: refuse a model of the other.
    steps : sequence of rows and functions, optional
        The recipe, instead of ``transforms.pipelines.bf16.BF16``.

    Returns
    -------
    Result

    Raises
    ------
    TypeError, ValueError, OSError
        As :func:`onnx_narrow.quantize`; NothingToDoError, a ValueError, where nothing is to be rounded.

    Examples
    --------
    >>> import onnx_narrow
    >>> result = onnx_narrow.convert_bf16("tests/examples/digits.onnx")
    >>> result.notes[0].startswith("Converted: ")
    True
    """
    given = given_of(convert_bf16, locals())
    check_call(given, NEEDS, _KINDS)
    gates.refuse_two(given)
    with Told(progress) as told:
        source, run_options = source_of(model), RunOptions(provider or "cpu", threads or 0)
        where = Output.checked(
            output, source, force=force, external_data=save_as_external_data, functions=functions
        )
        goal = gates.gate_in(given) if min_sqnr is None else Target("sqnr", min_sqnr)
        with open_data(SampleOptions.of(given), source, run_options, told) as opened:
            work = Bf16Work(
                gs.Graph(),
                preset("BF16").with_(target=target or ""),
                opened,
                source=source,
                options=Options(
                    run=run_options,
                    goal=goal,
                    times=time,
                    functions=functions,
                ),
                events=told,
                conversion=_options(given),
                element=float_type,
            )
            taken = BF16 if steps is None else steps
            told.expect(*phases_of(work, taken), "writing")
            run(work, taken, {"done": "convert", "record.first": "try_out"})
            return _finish(work, where, told, given)


def _options(given: Given) -> Bf16Options:
    named = {one.name: given[one.name] for one in fields(Bf16Options) if one.name in given}
    lists = {key: tuple(listed(given[key])) for key in _LISTS if key in given}
    shapes = {name: tuple(shape) for name, shape in named.get("input_shapes", {}).items()}
    kernels = sorted(row_of(given["target"]).bfloat16_kernels) if "target" in given else ()
    own: dict[str, Any] = {
        **lists,
        "input_shapes": shapes,
        "format": _format(given),
        "kernels": tuple(kernels),
    }
    return Bf16Options(**{**named, **own})


def _format(given: Given) -> str:
    """Return the format that was given, or that the target takes; ValueError if it does not take it."""
    if "target" not in given:
        return str(given.get("format", "with_cast"))
    row = row_of(given["target"])
    if not row.converters:
        legal = f"{' or '.join(row.activations)}: python -m tools.quantize --target {row.name}"
        raise ValueError(f"target '{row.name}' takes no bfloat16, but {legal}")
    if "format" not in given:
        return row.converters[0]
    if given["format"] not in row.converters:
        words = spelled(f"{{format:{' or '.join(row.converters)}}}")
        raise ValueError(f"target '{row.name}' takes {words}, not {given['format']}")
    return str(given["format"])


def _finish(work: Bf16Work, output: Output, told: Told, given: Given) -> Result:
    """Write the model, and tell how it was made."""
    done, first = work.done, work.record.first
    assert done is not None and done.tally is not None, "it was converted"
    assert first is not None and work.source is not None, "it was tried out"
    tool = TOOLS[work.element or "float32"]
    entries = provenance.entries(tool, recorded(work), work.record.source_sha256) | work.record.metric_entries
    told.phase("writing")
    written = write(work.graph, output, work.source, entries, first.exported)
    _tell(work, written, told, is_excluded=bool(given.keys() & {"exclude_node", "exclude_op"}))
    return result_of(
        written,
        first,
        told,
        converted={"nodes": done.tally.converted, "tensors": done.tensors},
        kept={why: sum(ops.values()) for why, ops in done.tally.kept.items()},
        steps=work.record.steps,
        metric=work.record.metric,
    )


def _tell(work: Bf16Work, written: Written, told: Told, *, is_excluded: bool) -> None:
    done, first, kept = work.done, work.record.first, work.kept
    assert done is not None and first is not None, "it was converted, and tried out"
    if work.record.fixed:
        told.note(f"Fixed: {counted(work.record.fixed, 'free dimension')} of inputs")
    goal = work.options.goal
    why = bf16.excluded_for(kept, goal, by_user=is_excluded)
    for line in summed_up(bf16.lines(done, work.graph, written.sizes, first, why), told.lines):
        told.note(line)
    if work.scheme.target:
        for line in brief_lines(work.graph, row_of(work.scheme.target)):
            told.note(line)
    if kept and work.held_out and goal:
        for line in bf16.goal_lines(kept, goal, work.held_out.where):
            told.note(line)
    for line in running.warnings(first, judged=kept is not None):
        told.warn(line)
