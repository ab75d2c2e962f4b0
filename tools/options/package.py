"""A package: a folder with .onnx models and other files, such as a configuration and a tokenizer.

onnxruntime-genai and the web read language models in this form. Names and types of inputs and outputs stay,
so that genai_config.json still describes the models.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from onnx.external_data_helper import ExternalDataInfo, uses_external_data

from tools.cli import command_line
from tools.cli.calls import call
from tools.cli.job import Job
from transforms.files.named_file import named
from transforms.files.spelling import UsageError
from transforms.model.read_model import ModelError, parse, tensors
from transforms.pipelines.require import NothingToDoError

_OF_ONE_MODEL = ("calibration_cache", "ranges", "export_ranges")
"""Options that name a file of one model."""


def convert(job: Job) -> int:
    """Convert the model of a job, or all in its folder, by calls of the API; return the exit code."""
    done = convert_package(job) if Path(job.get("model")).is_dir() else _convert(job)
    return command_line.DONE if done else command_line.NOTHING_DONE


def _convert(job: Job) -> bool:
    """Convert the model of a job; return whether there was anything to do, and print why if not."""
    try:
        call(job)
    except NothingToDoError as error:
        print(error)
        return False
    return True


def convert_package(job: Job) -> bool:
    """Convert every model in the folder that a job names to another folder; return if any was converted.

    A model with nothing to convert is copied, as are all other files. Samples of a model may lie in a folder
    of its name in ``data``. Raises ValueError or OSError, also those of the API; a folder that was made is
    removed then, and where no model was converted.
    """
    source, output = Path(job.get("model")), Path(job.get("output"))
    models = sorted(source.rglob("*.onnx"))
    _check(job, source, output, models)
    is_new, is_converted = not output.exists(), False
    output.mkdir(exist_ok=True)
    try:
        is_converted = _write(source, output, models, job)
    finally:
        if is_new and not is_converted:
            shutil.rmtree(output, ignore_errors=True)
    return is_converted


def _write(source: Path, output: Path, models: Sequence[Path], job: Job) -> bool:
    """Write all files of a package; return if a model was converted."""
    files_by_model = {model: [model, *_data_files(model)] for model in models}
    other_files = {Path(folder) / name for folder, _, names in os.walk(source) for name in names}
    is_converted = False
    for model, files in files_by_model.items():
        other_files.difference_update(files)
        name = model.relative_to(source)
        print(f"{name}:")
        (output / name).parent.mkdir(parents=True, exist_ok=True)
        if _convert_one(job, model, output / name):
            is_converted = True
        else:
            _copy(source, output, files)
    _copy(source, output, sorted(other_files))
    return is_converted


def _convert_one(job: Job, model: Path, output: Path) -> bool:
    data, encoder = job.get("data"), job.get("feeds_from")
    model_job = job.with_values(model=str(model), output=str(output))
    if data is not None and (data / model.stem).is_dir():
        model_job = model_job.with_values(data=data / model.stem)
    if encoder is not None:
        inputs, outputs = _ends(model)[0], _ends(encoder)[1]
        pairs = [pair for pair in job.get("feeds", ()) if pair[1] in inputs]
        model_job = model_job.with_values(
            feeds=pairs or None, feeds_from=encoder if pairs or inputs & outputs else None
        )
    try:
        return _convert(model_job)
    except ValueError as error:
        if model.name in str(error) or isinstance(error, UsageError):
            raise
        raise ValueError(f"{error} (in '{model}')") from error


def _ends(model: Path) -> tuple[set[str], set[str]]:
    """Return the names of the inputs and outputs of a model."""
    with named(model, ModelError):
        graph = parse(model).graph
    return {tensor.name for tensor in graph.input}, {tensor.name for tensor in graph.output}


def _check(job: Job, source: Path, output: Path, models: Sequence[Path]) -> None:
    if not models:
        raise ValueError(f"folder '{source}' has no .onnx file")
    for name in _OF_ONE_MODEL:
        if job.get(name):
            raise ValueError(f"--{name.replace('_', '-')} requires one model, not the folder '{source}'")
    if output.exists() and not output.is_dir():
        raise ValueError(f"output '{output}' is a file, and the input a folder")
    if output.exists() and not job.get("force"):
        raise FileExistsError(f"'{output}' exists; --force overwrites its files")
    if output.resolve().is_relative_to(source.resolve()) or source.resolve().is_relative_to(output.resolve()):
        raise ValueError(f"output '{output}' and the input '{source}' may not lie in one another")


def _data_files(model: Path) -> list[Path]:
    """Return the files with weights of a model."""
    with named(model, ModelError):
        weights = list(tensors(parse(model)))
    names = {ExternalDataInfo(tensor).location for tensor in weights if uses_external_data(tensor)}
    return [path for name in sorted(names) if (path := model.parent / name).is_file()]


def _copy(source: Path, output: Path, files: Sequence[Path]) -> None:
    for file in files:
        target = output / file.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
