"""Loading and saving models: the only module that touches model files.

A model is loaded from a path or an ``onnx.ModelProto``, neither of which is ever changed, and is saved
completely or not at all: everything is checked before the first byte is written; files are written under
another name, flushed to disk and renamed, external data before the model that refers to it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import onnx
import onnx_graphsurgeon as gs

from ops.registration import AMD_DOMAIN, DOMAIN
from transforms.files import model_files
from transforms.files.cleanup import destination, naming, temporary
from transforms.files.model_files import clear_leftovers, data_name, put_in_place
from transforms.files.named_file import named
from transforms.files.paths import AnyPath
from transforms.files.runtime_message import said_by_runtime
from transforms.graph.lazy_values import PACKED, Weight, stored, stored_bytes
from transforms.graph.typed import Graph, source_files
from transforms.model import detached_weights, graph_proto
from transforms.model.bounds import PROTOBUF_LIMIT
from transforms.model.mapped_weights import Piece, pieces
from transforms.model.read_model import ModelError, check_opsets, read

__all__ = [
    *("ModelError", "bytes_written", "check", "check_output", "export", "load", "refuse_source", "save"),
    "to_proto",
]

Exported = tuple[onnx.ModelProto, dict[str, Weight]]

_ALIGNMENT = 4096  # runtimes map external data into memory by pages
_HEADER = 16  # most bytes for the length of a weight in a model
_REFERENCE = 512  # most bytes for a reference to external data


def _compare_inlined(
    before: onnx.ModelProto, after: onnx.ModelProto, weights: Mapping[str, Weight]
) -> list[str]:
    from transforms.opset.compare_inlined import compare_inlined

    return compare_inlined(before, after, weights)


def load(source: AnyPath | onnx.ModelProto) -> Graph:
    """Return a model as a graph with inferred types and shapes, ready for rewrites and :func:`save`.

    ``graph.info`` holds the metadata that graph-surgeon does not keep; ``graph.source_sha256`` and
    ``graph.source_files`` tell where the graph came from. Raises ModelError (a ValueError) or OSError.
    """
    if isinstance(source, onnx.ModelProto):
        check_opsets(source)
        return graph_proto.import_model(source, compare_inlined=_compare_inlined)
    path = Path(source)
    file = read(path)
    with named(path, ModelError):
        graph = graph_proto.import_model(file.model, file.mapped, compare_inlined=_compare_inlined)
    graph.source_sha256, graph.source_files = file.digest, file.files
    return graph


def check_output(
    path: AnyPath, source: AnyPath | None = None, *, force: bool = False, external_data: bool = False
) -> Path:
    """Return the path to write to, or raise before any work is done.

    Raises OSError if the folder does not exist or is not writable, ValueError if the path is a folder or
    another special file, is the source itself (also by another name), or is a link into another folder and
    the model gets ``external_data`` beside it; FileExistsError if it exists and not ``force``.
    """
    path = Path(path)
    target = _destination(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"output folder '{path.parent}' does not exist")
    if source is not None and path.exists() and path.samefile(source):
        raise ValueError(f"output '{path}' is the input itself, which is never overwritten")
    model_files.refuse_existing(path, force=force)
    if external_data and target.parent.resolve() != path.parent.resolve():
        raise ValueError(f"output '{path}' is a link into '{target.parent}': external data lie in one folder")
    if not os.access(target.parent, os.W_OK):
        raise PermissionError(f"output folder '{target.parent}' is not writable")
    return path


def save(
    graph: gs.Graph,
    path: AnyPath,
    *,
    metadata: Mapping[str, str] | None = None,
    external_data: bool = False,
    force: bool = True,
    functions: bool = True,
    exported: Exported | None = None,
) -> list[Path]:
    """Check the graph as a model and write it; return the files written, the model first.

    Large weights go to ``NAME.HASH.data`` in the same folder, with the hash of their bytes, if
    ``external_data`` is set or the model would exceed the 2 GiB limit of protobuf. Such a file of a replaced
    model is removed, unless another file of the folder refers to it. Our own operators get their
    ``functions``, with which the model needs no library (:mod:`transforms.functions.attach_functions`).
    ``metadata`` is added to the model's metadata_props. ``exported``: the result of :func:`export` for the
    graph, to which data are added, if the caller already has it.

    Raises ModelError if the model does not pass ``onnx.checker`` with full_check, ValueError if a file of the
    source would be overwritten, OSError if writing fails or, without ``force``, a file exists; nothing is
    changed then.
    """
    path = Path(path)
    light, weights = _completed(exported or export(graph), metadata or {}, functions)
    check(light, weights)
    total = light.ByteSize() + sum(map(stored_bytes, weights.values()))
    external_data = external_data or total > PROTOBUF_LIMIT
    check_output(path, force=force, external_data=external_data)
    refuse_source(graph, path)
    target, sources = _destination(path), source_files(graph)
    clear_leftovers(target.parent)
    beside = _beside(light, weights) if external_data else {}
    if not beside:
        with naming(path), temporary(target) as model_file:
            _write(model_file, pieces(light, weights))
            put_in_place(model_file, target, force=force, sources=sources)
        return [path]
    with naming(path), temporary(target) as data_file, temporary(target) as model_file:
        digest = _write_arrays(
            data_file, (beside[t.name] for t in light.graph.initializer if t.name in beside)
        )
        data_path = target.with_name(data_name(target.name, digest))
        _refer_to_external(light, beside, data_path.name)
        inside = {name: values for name, values in weights.items() if name not in beside}
        _write(model_file, pieces(light, inside))
        put_in_place(model_file, target, (data_file, data_path), force=force, sources=sources)
    return [path, data_path]


def to_proto(
    graph: gs.Graph,
    *,
    metadata: Mapping[str, str] | None = None,
    functions: bool = True,
    exported: Exported | None = None,
) -> onnx.ModelProto:
    """Return the model that :func:`save` would write with these arguments, its weights inside.

    Raises ModelError if it does not pass ``onnx.checker`` with full_check.
    """
    light, weights = _completed(exported or export(graph), metadata or {}, functions)
    check(light, weights)
    model = onnx.ModelProto()
    model.CopyFrom(light)
    detached_weights.fill(model, weights)
    return model


def bytes_written(
    graph: gs.Graph,
    *,
    metadata: Mapping[str, str] | None = None,
    external_data: bool = False,
    functions: bool = True,
    exported: Exported | None = None,
) -> int:
    """Return an upper bound of the bytes of the files that :func:`save` writes with these arguments."""
    light, weights = _completed(exported or export(graph), metadata or {}, functions)
    inside = light.ByteSize() + sum(stored_bytes(weight) + _HEADER for weight in weights.values())
    beside = external_data or inside > PROTOBUF_LIMIT
    return inside + beside * len(weights) * (_ALIGNMENT + _REFERENCE)


def _completed(exported: Exported, metadata: Mapping[str, str], functions: bool) -> Exported:
    light, weights = exported
    properties = {entry.key: entry.value for entry in light.metadata_props} | dict(metadata)
    onnx.helper.set_model_props(light, properties)
    if functions:
        attach_own(light)
    return light, weights


def attach_own(light: onnx.ModelProto) -> None:
    """Attach the functions of our operators that a model uses, in place."""
    if any(opset.domain in (DOMAIN, AMD_DOMAIN) for opset in light.opset_import):
        from transforms.functions.attach_functions import attach_functions

        attach_functions(light)


def export(graph: gs.Graph) -> Exported:
    """Return a graph as a model without the data of large initializers, and their arrays by name."""
    return graph_proto.export_light(graph)


def _beside(light: onnx.ModelProto, weights: Mapping[str, Weight]) -> Mapping[str, Weight]:
    """Return the weights to store as external data; 4-bit integers only if the model has no room for them."""
    wide = {name: values for name, values in weights.items() if values.dtype not in PACKED}
    packed = sum(stored_bytes(values) for name, values in weights.items() if name not in wide)
    return wide if light.ByteSize() + packed <= PROTOBUF_LIMIT else weights


def check(light: onnx.ModelProto, weights: Mapping[str, Weight]) -> None:
    """Raise ModelError if a light model does not pass ``onnx.checker.check_model(full_check=True)``."""
    for value in light.graph.output:
        if value.type.HasField("tensor_type") and not value.type.tensor_type.HasField("shape"):
            raise ModelError(
                f"output '{value.name}' has no shape: the model declares none, and its operators tell none"
            )
    try:
        onnx.checker.check_model(detached_weights.as_inputs(light, weights), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, ValueError) as error:
        raise ModelError(f"the result does not pass onnx.checker: {said_by_runtime(error)}") from error


def refuse_source(graph: gs.Graph, path: Path) -> None:
    """Raise ValueError if writing a model to ``path`` would overwrite a file that a graph came from."""
    model_files.refuse_source(path, source_files(graph))


def _destination(path: Path) -> Path:
    try:
        return destination(path)
    except ValueError as error:
        raise ValueError(f"output {error}") from error


def _write(path: Path, content: Iterator[Piece]) -> None:
    with path.open("wb") as file:
        for piece in content:
            file.write(piece)
            del piece  # free it before the next one is created
        file.flush()
        os.fsync(file.fileno())


def _write_arrays(path: Path, arrays: Iterator[Weight]) -> str:
    """Write arrays one after another, each at a multiple of the alignment; return the SHA-256 of the file."""
    digest = hashlib.sha256()
    with path.open("wb") as file, ThreadPoolExecutor(1) as beside:  # hashing needs no interpreter
        hashing = beside.submit(digest.update, b"")
        for array in arrays:
            content = stored(array).data
            for part in (b"\0" * (-file.tell() % _ALIGNMENT), content):
                hashing.result()
                hashing = beside.submit(digest.update, part)
                file.write(part)
        file.flush()
        os.fsync(file.fileno())
        hashing.result()
    return digest.hexdigest()


def _refer_to_external(light: onnx.ModelProto, weights: Mapping[str, Weight], location: str) -> None:
    """Point the initializers at their offsets in the data file, as written by ``_write_arrays``."""
    offset = 0
    for tensor in light.graph.initializer:
        if tensor.name not in weights:
            continue
        offset += -offset % _ALIGNMENT
        length = stored_bytes(weights[tensor.name])
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", location), ("offset", offset), ("length", length)):
            tensor.external_data.add(key=key, value=str(value))
        offset += length
