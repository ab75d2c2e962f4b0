"""Converting a model to BF16."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import onnx_graphsurgeon as gs

from onnx_narrow.api.finish import finish
from onnx_narrow.api.image_keywords import Preprocess
from onnx_narrow.api.result import Result
from onnx_narrow.api.samples import SampleOptions, open_data
from onnx_narrow.api.sources import Data, Model, source_of
from onnx_narrow.api.told import Told, Watcher
from onnx_narrow.api.usage import checked, fields_in
from onnx_narrow.api.work_options import options_of
from onnx_narrow.api.written import Output
from onnx_narrow.options.option import Keywords
from onnx_narrow.summaries import bf16, running
from onnx_narrow.summaries.target import brief_lines
from onnx_narrow.summaries.words import Sizes, fixed_line, summed_up
from transforms.conversion.convert_bf16 import Bf16Options
from transforms.files.paths import AnyPath
from transforms.files.spelling import spelled
from transforms.model import provenance
from transforms.pipelines.bf16 import BF16, TOOLS, Bf16Work, recorded
from transforms.pipelines.steps import Steps, phases_of, run
from transforms.run.events import Events
from transforms.scheme import preset
from transforms.scheme.targets import target as row_of
from transforms.search.user_metric import UserMetric


def convert_bf16(
    model: Model,
    output: AnyPath | None = None,
    *,
    data: Data | None = None,
    target: str | None = None,
    min_sqnr: float | None = None,
    format: str | None = None,
    exclude_node: Sequence[str] | str = (),
    exclude_op: Sequence[str] | str = (),
    weights: str | None = None,
    domain: str | None = None,
    keep_io_types: bool = True,
    saturate_activations: bool = False,
    strict: bool = False,
    optimize: bool = True,
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
    metric: UserMetric | str | None = None,
    min_metric: float | None = None,
    max_loss: float | None = None,
    time: bool = True,
    provider: str | None = None,
    threads: int | None = None,
    opset: int | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    force: bool = False,
    save_as_external_data: bool = False,
    functions: bool = True,
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
    keywords = checked("convert_bf16", locals())
    with Told(progress) as told:
        source = source_of(model)
        destination = Output.checked(keywords, source)
        with open_data(SampleOptions.of(keywords), source, told) as opened:
            work = Bf16Work(
                gs.Graph(),
                preset("BF16").with_(target=target or ""),
                opened,
                source=source,
                options=options_of(keywords),
                events=told,
                conversion=_options(keywords),
                element=float_type,
            )
            recipe = BF16 if steps is None else steps
            told.expect(*phases_of(work, recipe), "writing")
            run(work, recipe, {"done": "convert", "record.first": "try_out"})
            return _finish(work, destination, told, keywords)


def _options(keywords: Keywords) -> Bf16Options:
    kernels = sorted(row_of(keywords["target"]).bfloat16_kernels) if "target" in keywords else ()
    by_target = {"format": _format(keywords), "kernels": tuple(kernels)}
    return Bf16Options(**{**fields_in(Bf16Options, keywords), **by_target})


def _format(keywords: Keywords) -> str:
    """Return the format that was given, or that the target takes; ValueError if it does not take it."""
    if "target" not in keywords:
        return str(keywords.get("format", "with_cast"))
    row = row_of(keywords["target"])
    if not row.converters:
        legal = f"{' or '.join(row.activations)}: python -m tools.quantize --target {row.name}"
        raise ValueError(f"target '{row.name}' takes no bfloat16, but {legal}")
    if "format" not in keywords:
        return row.converters[0]
    if keywords["format"] not in row.converters:
        words = spelled(f"{{format:{' or '.join(row.converters)}}}")
        raise ValueError(f"target '{row.name}' takes {words}, not {keywords['format']}")
    return str(keywords["format"])


def _finish(work: Bf16Work, output: Output, told: Told, keywords: Keywords) -> Result:
    """Write the model, and report how it was made."""
    done, record = work.done, work.record
    assert done is not None and done.tally is not None, "it was converted"
    assert record.first is not None, "it was tried out"
    entries = provenance.entries(TOOLS[work.element or "float32"], recorded(work), record.source_sha256)
    lines = partial(_lines, work, told, by_user=bool(keywords.keys() & {"exclude_node", "exclude_op"}))
    return finish(
        work,
        output,
        told,
        entries | record.metric_entries,
        (lines, running.warnings(record.first, judged=work.kept is not None)),
        converted={"nodes": done.tally.converted, "tensors": done.tensors},
        kept={why: sum(ops.values()) for why, ops in done.tally.kept.items()},
    )


def _lines(work: Bf16Work, told: Told, sizes: Sizes, *, by_user: bool) -> Iterator[str]:
    """Yield the summary; ``by_user``: nodes were excluded by options."""
    goal, kept, target = work.options.goal, work.kept, work.scheme.target
    yield from [fixed_line(work.record.fixed)] if work.record.fixed else ()
    yield from summed_up(bf16.lines(work, sizes, bf16.excluded_for(kept, goal, by_user=by_user)), told.lines)
    yield from brief_lines(work.graph, row_of(target)) if target else ()
    yield from bf16.goal_lines(kept, goal, work.held_out.where) if kept and work.held_out and goal else ()
