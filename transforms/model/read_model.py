"""Read an untrusted model file; all its claims about sizes and places are checked first."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Container, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx.external_data_helper as external
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from transforms.files.external_file import external_file
from transforms.files.mapped_file import map_file
from transforms.files.named_file import named
from transforms.graph.dtypes import numpy_type
from transforms.graph.lazy_values import Weight
from transforms.graph.proto_graphs import bodies_in
from transforms.model.mapped_weights import parse_in_place, unique_heavy, weight_at
from transforms.model.model_error import ModelError
from transforms.model.stored_number import stored_number

__all__ = ["ModelError", "ModelFile", "check_opsets", "parse", "read", "read_bytes", "tensors"]

_BLOCK = 1 << 22
"""Bytes of external data that are hashed at a time."""

_LARGEST_FILE = (1 << 31) - 1
"""Bytes of a protobuf message, and so of a model without its external data."""

_MOST_DIMENSIONS, _MOST_ELEMENTS = 64, 1 << 59
"""Limits of NumPy's indexing, also for empty arrays."""

IN_PLACE = 1 << 26
"""Bytes of a model's file from which large initializers stay in the mapped file."""

_SHARED = 16
"""Ratio of bytes claimed by all tensors to the size of the files: tensors may share external data."""

_HIGHEST_OPSET = (1 << 31) - 1
"""Highest version of an operator set that the onnx package accepts, in any domain."""

_PACKED_BITS = {
    **dict.fromkeys(("INT4", "UINT4", "FLOAT4E2M1"), 4),
    **dict.fromkeys(("INT2", "UINT2"), 2),
    **dict.fromkeys(("FLOAT6E2M3", "FLOAT6E3M2"), 6),
}
"""Bits per element of the types that files pack, and NumPy stores in a whole byte."""


@dataclass(frozen=True)
class ModelFile:
    """A model as read, the SHA-256 of its files, and these files.

    Initializers in ``mapped`` have no data in the model, which marks them as external.
    """

    model: onnx.ModelProto
    digest: str
    files: list[Path]
    mapped: dict[str, Weight]


def parse(path: Path) -> onnx.ModelProto:
    """Parse the model in a file without further checks; in a large file without its large weights.

    These have no data in the model, which marks them as external. Raises DecodeError for another file, and
    ModelError and OSError as :func:`read_bytes` does.
    """
    data = _content(path)
    return _parsed(data) if isinstance(data, bytes) else parse_in_place(data)[0]


def read(path: Path) -> ModelFile:
    """Return the model in a file; large initializers in external data or a large file stay mapped there.

    Raises ModelError if the file is not an ONNX model, is truncated, or names external data that are
    missing, outside its folder (:mod:`transforms.files.external_file`) or shorter than claimed; OSError if
    it cannot be opened.
    """
    with named(path, ModelError):
        data = _content(path)
    with ThreadPoolExecutor(1) as beside:  # hashing releases the interpreter lock
        hashing = beside.submit(hashlib.sha256, data if isinstance(data, bytes) else data.data)
        try:
            model, inside = (_parsed(data), {}) if isinstance(data, bytes) else parse_in_place(data)
        except DecodeError:
            raise ModelError(f"'{path}' is not an ONNX model, or is cut short ({len(data)} bytes)") from None
        digest = hashing.result()
    del hashing
    del data
    if not model.opset_import or not (model.graph.node or model.graph.output):
        raise ModelError(f"'{path}' is not an ONNX model: it has no graph")
    with named(path, ModelError):
        check_opsets(model)
        external_files, mapped = _read_external(model, path, inside)
        files = [path, *external_files]
        for file in external_files:
            with file.open("rb") as stream:
                while block := stream.read(_BLOCK):
                    digest.update(block)
        mapped |= inside
        for tensor in _others(model, mapped):
            _check_size(tensor, path)
    return ModelFile(model, digest.hexdigest(), files, mapped)


def _others(model: onnx.ModelProto, names: Container[str]) -> list[onnx.TensorProto]:
    """Return every tensor of a model except the initializers of its graph with these names."""
    named_so = [tensor for tensor in model.graph.initializer if tensor.name in names]
    left_out = set(map(id, named_so))
    return [tensor for tensor in tensors(model) if id(tensor) not in left_out]


def _content(path: Path) -> bytes | NDArray[np.uint8]:
    """Return the content of a model's file, mapped if it is large; raises as :func:`read_bytes` does."""
    if path.is_file() and IN_PLACE <= path.stat().st_size <= _LARGEST_FILE:
        return map_file(path)
    return read_bytes(path)


def _parsed(data: bytes) -> onnx.ModelProto:
    model = onnx.ModelProto()
    model.ParseFromString(data)
    return model


def check_opsets(model: onnx.ModelProto) -> None:
    """Raise ModelError for an operator set unknown to the onnx package, also in functions.

    In an ONNX opset newer than the package, the meaning of operators is unknown.
    """
    for opset in (one for owner in (model, *model.functions) for one in owner.opset_import):
        standard = opset.domain in ("", "ai.onnx")
        least, most = (1, onnx.defs.onnx_opset_version()) if standard else (0, _HIGHEST_OPSET)
        if not least <= opset.version <= most:
            domain = opset.domain or "ai.onnx"
            raise ModelError(f"opset {opset.version} of '{domain}' is none of {least} to {most}")


def read_bytes(path: Path) -> bytes:
    """Return the content of a model's file; ModelError for other files, OSError if it cannot be opened."""
    if path.exists() and not path.is_dir():  # opening a folder raises the appropriate error
        if not path.is_file():
            raise ModelError(f"'{path}' is not a regular file")
        size = path.stat().st_size
        if size > _LARGEST_FILE:
            raise ModelError(f"'{path}' is not an ONNX model: {size:,} bytes, at most {_LARGEST_FILE:,}")
    return path.read_bytes()


def tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield every initializer and tensor attribute of a model, its functions and nested graphs.

    Of sparse tensors it yields the values and the indices.
    """
    yield from _in_graph(model.graph)
    for function in model.functions:
        yield from _in_attributes(attribute for node in function.node for attribute in node.attribute)
        yield from _in_attributes(function.attribute_proto)


def _in_graph(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    yield from _of_sparse(graph.sparse_initializer)
    yield from _in_attributes(attribute for node in graph.node for attribute in node.attribute)


def _in_attributes(attributes: Iterable[onnx.AttributeProto]) -> Iterator[onnx.TensorProto]:
    for attribute in attributes:
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        if attribute.HasField("sparse_tensor"):
            yield from _of_sparse([attribute.sparse_tensor])
        yield from _of_sparse(attribute.sparse_tensors)
        for body in bodies_in(attribute):
            yield from _in_graph(body)


def _of_sparse(found: Iterable[onnx.SparseTensorProto]) -> Iterator[onnx.TensorProto]:
    for sparse in found:
        yield sparse.values
        yield sparse.indices


def _read_external(
    model: onnx.ModelProto, path: Path, inside: Container[str]
) -> tuple[list[Path], dict[str, Weight]]:
    """Return the files of external data and large initializers mapped from them; load all other tensors.

    Tensors ``inside`` the model's file are already mapped.
    """
    outside = [t for t in _others(model, inside) if external.uses_external_data(t)]
    places = {id(tensor): _check_external(tensor, path) for tensor in outside}
    files = sorted(set(places.values()))
    claimed, stored = sum(map(_claimed_bytes, outside)), sum(file.stat().st_size for file in files)
    if claimed > _SHARED * stored:
        raise ModelError(
            f"external data of '{path}': tensors claim {claimed:,} bytes, more than {_SHARED} times the "
            f"{stored:,} in the files"
        )
    contents = {file: map_file(file) for file in files if file.stat().st_size}
    heavy = [t for t in unique_heavy(model.graph) if id(t) in places]
    mapped = {t.name: weight_at(contents[places[id(t)]], _offset(t), t) for t in heavy}
    mapped_ids = {id(tensor) for tensor in heavy}
    for tensor in (tensor for tensor in outside if id(tensor) not in mapped_ids):
        begin, content = _offset(tensor), contents.get(places[id(tensor)])
        end = begin + _claimed_bytes(tensor)
        tensor.raw_data = b"" if content is None else content[begin:end].tobytes()
        tensor.ClearField("data_location")
        del tensor.external_data[:]
    return files, mapped


def _offset(tensor: onnx.TensorProto) -> int:
    return int({entry.key: entry.value for entry in tensor.external_data}.get("offset", 0))


def _check_external(tensor: onnx.TensorProto, path: Path) -> Path:
    """Return the file with the tensor's data, after checking that it contains them."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    described = f"external data '{location}' of tensor '{tensor.name}'"
    try:
        file = external_file(path, location)
    except ValueError as error:
        raise ModelError(f"{described} {error}") from None
    claimed = _claimed_bytes(tensor)
    offset = stored_number(entries, "offset", 0, described)
    length = stored_number(entries, "length", claimed, described)
    size = file.stat().st_size
    if offset < 0 or length < 0 or offset + length > size:
        raise ModelError(f"{described} claims bytes {offset} to {offset + length}, the file has {size}")
    if length != claimed:
        raise ModelError(f"{described} has {length} bytes, its shape and type claim {claimed}")
    return file


def _check_size(tensor: onnx.TensorProto, path: Path) -> None:
    """Refuse a tensor whose shape claims more or fewer data than the file has."""
    claimed, held, unit = _claimed_bytes(tensor), len(tensor.raw_data), "bytes"
    if not tensor.HasField("raw_data"):
        claimed, held, unit = _claimed_entries(tensor), _entries(tensor), "numbers"
    if claimed != held:
        raise ModelError(
            f"tensor '{tensor.name}' in '{path}' holds {held} {unit}, "
            f"its shape {list(tensor.dims)} claims {claimed}"
        )


_FIELDS = ("float_data", "double_data", "int32_data", "int64_data", "uint64_data", "string_data")


def _entries(tensor: onnx.TensorProto) -> int:
    return sum(len(getattr(tensor, field)) for field in _FIELDS)


def _claimed_entries(tensor: onnx.TensorProto) -> int:
    """Return how many entries the typed fields must have: complex numbers take two, small types share one."""
    if tensor.data_type == onnx.TensorProto.STRING:
        return _count(tensor)
    name = onnx.TensorProto.DataType.Name(tensor.data_type)
    if name in _PACKED_BITS:
        return _claimed_bytes(tensor)
    return _count(tensor) * (2 if name.startswith("COMPLEX") else 1)


def _count(tensor: onnx.TensorProto) -> int:
    if len(tensor.dims) > _MOST_DIMENSIONS:
        raise ModelError(
            f"tensor '{tensor.name}' has {len(tensor.dims)} dimensions, at most {_MOST_DIMENSIONS} are read"
        )
    if min(tensor.dims, default=0) < 0:
        raise ModelError(f"tensor '{tensor.name}' has a negative dimension in {list(tensor.dims)}")
    if math.prod(max(size, 1) for size in tensor.dims) > _MOST_ELEMENTS:
        raise ModelError(f"tensor '{tensor.name}' has a shape that no array can have: {list(tensor.dims)}")
    return math.prod(tensor.dims)


def _claimed_bytes(tensor: onnx.TensorProto) -> int:
    dtype = numpy_type(tensor.data_type)
    if dtype is None:
        raise ModelError(f"tensor '{tensor.name}' has unknown element type {tensor.data_type}")
    name = onnx.TensorProto.DataType.Name(tensor.data_type)
    return (_count(tensor) * _PACKED_BITS.get(name, 8 * dtype.itemsize) + 7) // 8
