"""What both converters to BF16 do once their options are known to be right."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

import onnx_graphsurgeon as gs

from tools.cli.data_options import open_samples
from tools.cli.job_options import by_name
from tools.cli.progress import Phases
from tools.cli.said import say, warn
from tools.cli.unrolled import unrolled
from tools.jobs.bf16_options import Bf16Job
from tools.jobs.load import load_fixed
from tools.jobs.written import ENDING, run_once
from tools.summaries import bf16, running
from tools.summaries.target import target_lines
from transforms import model_io
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.conversion import inspect_bf16
from transforms.conversion.convert_bf16 import Bf16Options, Conversion, convert_bf16
from transforms.deploy.refuse import refuse_broken, refuse_free
from transforms.lift_constants import lift_constants
from transforms.model import provenance
from transforms.pipelines.first_result import FirstRun
from transforms.precision.bf16 import KeptFloat, keep_float
from transforms.precision.held_out import HeldOut, hold_out
from transforms.run.mend_shapes import mend_shapes
from transforms.scheme.targets import target
from transforms.search.target import TargetError


@dataclass(frozen=True)
class Converted:
    """A BF16 model as it was written: what was done, its files, its first run, what was kept in float."""

    graph: gs.Graph
    done: Conversion
    files: list[Path]
    first: FirstRun
    kept: KeptFloat | None


def convert_file(tool: str, source: str, job: Bf16Job) -> Converted | None:
    """Convert ``job.input`` to ``job.output`` and say what was done; None if nothing was to be done.

    Raises ValueError or OSError; nothing is written then.
    """
    with unrolled(job, job.input) as own:
        return _convert_file(tool, source, own)


def _convert_file(tool: str, source: str, job: Bf16Job) -> Converted | None:
    row = target(job.target) if job.target else None
    external = job.save_as_external_data
    output = model_io.check_output(job.output, job.input, force=job.force, external_data=external)
    chosen = _options(job)
    phases = Phases("loading", "measuring" if job.min_sqnr is not None else "", "converting", *ENDING)
    with phases("loading"):
        graph = load_fixed(job.input, by_name(job.input_shapes))
        if row:
            refuse_free(graph, row)
        lift_constants(graph)
    before = inspect_bf16.describe(graph)
    if before.converted:
        say(f"Nothing to do: '{job.input}' is a BF16 model already ({before.format}).")
        return None
    inspect_bf16.require(before, source, job.input)
    kept, apart = (None, None) if job.min_sqnr is None else _keep(graph, chosen, job, phases)
    chosen = chosen.excluding(kept.patterns) if kept else chosen
    with phases("converting"):
        done = convert_bf16(graph, chosen)
    if not done.tensors:
        _refuse_float(kept, job)
        say(f"Nothing to do: no tensor of '{job.input}' is left to round.")
        return None
    if row:
        refuse_broken(graph, row)
    entries = provenance.entries(tool, _recorded(chosen, job), graph.source_sha256)
    with phases("running"):
        first = run_once(graph, job.input, job, row)
    about = [*target_lines(graph, row)] if row else []
    with phases("writing"):
        files = job.save(graph, output, entries, first.exported)
    why = bf16.excluded_for(kept, by_user=bool(job.exclude_node or job.exclude_op))
    for line in (*bf16.lines(done, graph, files, first, why), *about):
        say(line)
    if kept and apart and job.min_sqnr is not None:
        for line in bf16.sqnr_lines(kept, job.min_sqnr, apart.where):
            say(line)
    for line in running.warnings(first, judged=kept is not None):
        warn(line)
    return Converted(graph, done, files, first, kept)


def _options(job: Bf16Job) -> Bf16Options:
    values = {one.name: getattr(job, one.name) for one in fields(Bf16Options) if one.name != "kernels"}
    values |= {"input_shapes": by_name(job.input_shapes), "format": _format(job)}
    kernels = sorted(target(job.target).bfloat16_kernels) if job.target else ()
    return Bf16Options(**values, kernels=tuple(kernels))


def _format(job: Bf16Job) -> str:
    """Return the format that was given, or that the target takes; ValueError if it does not take it."""
    if not job.target:
        return job.format
    row = target(job.target)
    if not row.converters:
        legal = f"{' or '.join(row.activations)}: python -m tools.quantize --target {row.name}"
        raise ValueError(f"target '{row.name}' takes no bfloat16, but {legal}")
    if "format" not in job.given:
        return row.converters[0]
    if job.format not in row.converters:
        raise ValueError(
            f"target '{row.name}' takes --format {' or '.join(row.converters)}, not {job.format}"
        )
    return job.format


def _keep(graph: gs.Graph, chosen: Bf16Options, job: Bf16Job, phases: Phases) -> tuple[KeptFloat, HeldOut]:
    """Return the nodes that must stay float, and the samples that say so."""
    assert job.min_sqnr is not None, "asked for before"
    samples = [feed for _, feed in open_samples(job, graph)]
    mend_shapes(graph, samples, job.run)
    apart = hold_out(CalibrationData(samples, run=job.run), graph)
    feeds = [feed for _, feed in apart.data.feeds(graph)]
    with phases("measuring", "model") as bar:
        kept = keep_float(
            graph,
            chosen,
            feeds,
            apart.feeds,
            job.min_sqnr,
            run=job.run,
            progress=lambda done, note: bar.show(done, None, note),
        )
    return kept, apart


def _refuse_float(kept: KeptFloat | None, job: Bf16Job) -> None:
    if kept and kept.patterns:
        raise TargetError(
            f"only with every node of '{job.input}' in float32 the SQNR is at least {job.min_sqnr:g} "
            f"dB; it is {kept.before:.2f} dB with none"
        )


def _recorded(chosen: Bf16Options, job: Bf16Job) -> dict[str, object]:
    rare = {"opset": chosen.opset, "input_shapes": chosen.input_shapes, "kernels": chosen.kernels}
    left_out = {"strict", *(name for name, value in rare.items() if not value)}
    recorded = {name: value for name, value in vars(chosen).items() if name not in left_out}
    return recorded if job.min_sqnr is None else recorded | {"min_sqnr": job.min_sqnr}
