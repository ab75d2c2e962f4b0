"""Run a model on a folder of samples and save its outputs: ``python -m tools.infer --help``."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import sys
import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from onnx_narrow.api.bars import Phases
from onnx_narrow.summaries.timing import cost_lines
from tools.cli.command_line import Command, make_parser, run
from tools.cli.data_options import report_litter
from tools.cli.job_options import SAMPLES_HELP, DataOptions, samples_folder
from tools.cli.option_values import whole
from tools.cli.options import option
from tools.cli.said import say
from transforms.files.cleanup import destination
from transforms.files.model_files import clear_leftovers
from transforms.files.output_file import GENERATED, write_array

if TYPE_CHECKING:
    import numpy as np

    from transforms.run.continue_greedily import GreedyWriter
    from transforms.run.samples import Samples
    from transforms.run.sequences import Sequences, Step
    from transforms.runtime.session import OpenModel

_LONGEST = 255
"""Bytes of a name on the file systems of Linux, macOS and Windows."""

_DIGITS = 16
"""Hexadecimal digits that tell names apart whose ends are cut off: two of 2^32 of them are alike."""

_COMMANDS = """\
--input m.onnx --data samples --output results
--input m.onnx --data images --output results --std 255 --image-size 224
--input q.onnx --data samples --output results --time m.onnx"""

_DETAILS = f"""\
Outputs are saved as .npy files for `python -m tools.evaluate`: one file per sample in the output folder, or
in one sub-folder per output if there are several. The operators of this package are registered. Bfloat16
nodes for which the provider has no kernels (ONNX Runtime's CPU provider has hardly any) run in float32
between Casts that are added in memory; the tool says so, and the model's file stays as it is.

--time runs both models with the same threads and provider in one process, warm and in turns, and prints the
median and the quartiles of an inference, and the peak memory of each in a process of its own.

{SAMPLES_HELP}
"""


@dataclass(frozen=True, kw_only=True)
class InferJob(DataOptions):
    """A run of a model on samples."""

    input: Path = option("--input --model M.onnx", "model to run", required=True, type=Path)
    output: Path = option("--output --output_dir DIR", "folder to save results in", required=True, type=Path)
    data: Path = samples_folder(required=True)
    time: Path | None = option(
        "--time FLOAT.onnx", "compare time and memory with this model on the same samples", type=Path
    )
    output_names: tuple[str, ...] = option(
        "--output-names NAME", "save only these outputs; repeatable", nargs="+", action="extend", default=[]
    )
    generate: int = option(
        "--generate N",
        f"save N tokens that a language model continues each sample with, in {GENERATED}; outputs only by "
        "--output-names",
        type=whole(),
        default=0,
    )
    force: bool = option("--force", "write into an output folder that is not empty")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool and return its exit code."""
    return run(command(), _infer, argv)


def command() -> Command[InferJob]:
    """Return the command line of the tool."""
    return Command(make_parser("infer", InferJob, __doc__, _COMMANDS, _DETAILS), InferJob, _why_not)


def _why_not(job: InferJob) -> str | None:
    return "--generate does not go with --sequences" if job.generate and job.sequences else None


def _infer(job: InferJob) -> None:
    infer(job)


def infer(job: InferJob) -> None:
    """Run a model on a folder of samples, save its outputs and say how long it took."""
    from onnx_narrow.api.fed import fed

    _check_output_dir(job.output, force=job.force)
    if job.time and not job.time.is_file():
        raise FileNotFoundError(f"model '{job.time}' does not exist")
    with fed(job, job.input) as own:
        _infer_on(own)


def _infer_on(job: InferJob) -> None:
    from onnx_narrow.api.unrolled import steps_line
    from transforms import model_io
    from transforms.run.continue_greedily import GreedyWriter
    from transforms.run.run_model import open_model
    from transforms.run.sequences import Sequences

    # refuse wrong names and folders before the first run
    phases = Phases("loading", "running")
    with phases("loading"):
        model = open_model(job.input, job.run)
    names = _chosen(model.outputs, job.output_names, by_default=not job.generate)
    writer = GreedyWriter(model, model_io.load(job.input)) if job.generate else None
    _check_outputs(model, names)
    report_litter(job.data)
    samples = _samples(job, model)
    folders = _output_folders(job.output, [*names, GENERATED] if writer else names)
    for folder in folders.values():
        if folder.exists() and folder.samefile(job.data):
            raise ValueError(
                f"output folder '{folder}' is the folder of samples, which are never overwritten"
            )
        _check_results(folder, samples.names)
    # run, saving each result as it comes
    start = time.perf_counter()
    with phases("running", "sequence" if job.sequences else "sample") as bar:
        results = _outputs(model, bar.each(samples, len(samples)), names, writer, job.generate)
        runs, computing = _save_all(results, folders)
    total = time.perf_counter() - start
    if model.widened:
        say(widening_note(model.widened))
    if isinstance(samples, Sequences):
        say(steps_line(samples, runs))
    else:
        say(f"Ran {runs} samples in {total:.2f} s, {1e3 * computing / runs:.2f} ms each.")
    inside = f", one folder for each of {len(folders)} outputs" if len(folders) > 1 else ""
    say(f"Results saved to '{job.output}'{inside}.")
    if job.time:
        _compare_time(job, job.time)


def _chosen(outputs: Sequence[str], names: Sequence[str], *, by_default: bool) -> Sequence[str]:
    """Return outputs of these names; without any, all if ``by_default``. ValueError for an unknown one."""
    from ops.legal_names import refuse_unknown

    for name in names:
        refuse_unknown(name, outputs, "output")
    return list(dict.fromkeys(names)) or (outputs if by_default else [])


def _compare_time(job: InferJob, baseline: Path) -> None:
    from transforms.compare.measure_run import Data, measure_both

    data = Data(job.data, job.images, job.run, job.limit)
    for line in cost_lines(*measure_both(baseline, job.input, data)):
        say(line)


def widening_note(count: int) -> str:
    """Return the words on a model of which ``count`` places were widened to run."""
    return f"No bfloat16 kernels here: {count} nodes and ends ran in float32 between Casts added in memory."


def _samples(job: InferJob, model: OpenModel) -> Samples | Sequences:
    from onnx_narrow.api.unrolled import sequences_of
    from transforms.run.samples import Samples

    if not job.sequences:
        return Samples(job.data, model.inputs, job.images, job.limit)
    return sequences_of(job, job.data, job.input, model)


def _outputs(
    model: OpenModel,
    samples: Iterable[tuple[str, dict | Iterator[Step]]],
    names: Sequence[str],
    writer: GreedyWriter | None,
    count: int,
) -> Iterator[tuple[str, Mapping[str, np.ndarray], float]]:
    """Yield the name of each sample, or of each step of a sequence, its outputs, and the model's seconds.

    ``writer``: continues samples by ``count`` tokens.
    """
    for name, one in samples:
        start = time.perf_counter()
        if isinstance(one, dict):
            made = model.run(one, names)
            if writer:
                made[GENERATED] = writer.write(one, count, name)
            yield name, made, time.perf_counter() - start
            continue
        for step in one:
            yield step.name, step.outputs, time.perf_counter() - start
            start = time.perf_counter()


def _save_all(
    made: Iterable[tuple[str, Mapping[str, np.ndarray], float]], folders: dict[str, Path]
) -> tuple[int, float]:
    """Save outputs; return how many runs there were, and the seconds of the model."""
    runs, seconds = 0, 0.0
    for name, outputs, taken in made:
        runs, seconds = runs + 1, seconds + taken
        for output, folder in folders.items():
            folder.mkdir(parents=True, exist_ok=True)
            write_array(folder / f"{name}.npy", outputs[output])
    return runs, seconds


def _check_output_dir(folder: Path, *, force: bool) -> None:
    _refuse_file(folder)
    if not Path(os.path.realpath(folder)).parent.is_dir():
        raise FileNotFoundError(
            f"folder '{folder.parent}', in which to make the output folder, does not exist"
        )
    if folder.is_dir() and any(folder.iterdir()) and not force:
        raise FileExistsError(f"output folder '{folder}' is not empty; --force writes into it")


def _check_results(folder: Path, names: Sequence[str]) -> None:
    """Raise before any work if a result cannot be written, or its path is not a regular file."""
    _refuse_file(folder)
    if not folder.is_dir():
        return
    clear_leftovers(folder)
    for name in names:
        destination(folder / f"{name}.npy")


def _refuse_file(folder: Path) -> None:
    if folder.is_symlink() and not folder.exists():
        raise NotADirectoryError(f"output '{folder}' is a link to a folder that does not exist")
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"output '{folder}' is a file, not a folder")


def _check_outputs(model: OpenModel, names: Sequence[str]) -> None:
    for argument in model.session.get_outputs():
        if argument.name in names and not argument.type.startswith("tensor("):
            raise ValueError(f"output '{argument.name}' of type {argument.type} cannot be saved as .npy")


def _output_folders(folder: Path, outputs: Sequence[str]) -> dict[str, Path]:
    """The folder of each output, named after it as far as file systems allow.

    The names follow from those of the outputs alone: results of two models with the same outputs lie in
    folders of the same names. No two differ in case alone, and tools.evaluate takes none for litter.
    """
    if len(outputs) == 1 and outputs[0] != GENERATED:
        return {outputs[0]: folder}
    folders: dict[str, Path] = {}
    taken: set[str] = set()
    for i, output in enumerate(outputs):
        name = next(name for name in _proposed(output, i) if _is_free(name, taken))
        taken.add(name.lower())
        folders[output] = folder / name
    return folders


def _proposed(output: str, i: int) -> Iterator[str]:
    """Yield names of folders for the output with a number: ends of long ones stand for what is cut off."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", output).strip(".") or f"output_{i}"
    if len(name) > _LONGEST:
        end = hashlib.sha256(output.encode()).hexdigest()[:_DIGITS]
        name = f"{name[: _LONGEST - _DIGITS - 1]}_{end}"
    yield name
    for number in itertools.count(i):
        end = f"_{number}"
        yield name[: _LONGEST - len(end)] + end


def _is_free(name: str, taken: Container[str]) -> bool:
    from transforms.run.array_files import is_litter

    return name.lower() not in taken and not is_litter(name)


if __name__ == "__main__":
    sys.exit(main())
