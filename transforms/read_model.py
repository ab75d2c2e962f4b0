"""Reading a model file with suspicion: every claim it makes about sizes and places is checked first."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import onnx.external_data_helper as external
from google.protobuf.message import DecodeError

_BLOCK = 1 << 22
"""Bytes of external data that are hashed at a time."""

_HIGHEST_OPSET = (1 << 31) - 1
"""Highest version that the onnx package can take for an operator set, of any domain."""

_PACKED_BITS = {
    **dict.fromkeys(("INT4", "UINT4", "FLOAT4E2M1"), 4),
    **dict.fromkeys(("INT2", "UINT2"), 2),
    **dict.fromkeys(("FLOAT6E2M3", "FLOAT6E3M2"), 6),
}
"""Bits per element of the types that files pack, and to which NumPy gives a whole byte."""


class ModelError(ValueError):
    """A model that can not be read, or can not become what was asked for; the message names the reason."""


def read(path: Path) -> tuple[onnx.ModelProto, str, list[Path]]:
    """Return the model in a file with its external data, the SHA-256 of its files, and those files.

    Raises ModelError when the file is no ONNX model, is cut short, or names external data that is missing,
    lies outside of its folder or is shorter than claimed; OSError when it can not be opened.
    """
    data = path.read_bytes()
    model = onnx.ModelProto()
    with ThreadPoolExecutor(1) as beside:  # hashing needs no interpreter
        hashing = beside.submit(hashlib.sha256, data)
        try:
            model.ParseFromString(data)
        except DecodeError:
            raise ModelError(f"'{path}' is not an ONNX model, or is cut short ({len(data)} bytes)") from None
        digest = hashing.result()
    del hashing
    del data
    if not model.opset_import or not (model.graph.node or model.graph.output):
        raise ModelError(f"'{path}' is not an ONNX model: it has no graph")
    try:
        check_opsets(model)
    except ModelError as error:
        raise ModelError(f"'{path}': {error}") from None
    files = [path, *_read_external(model, path)]
    for file in files[1:]:
        with file.open("rb") as stream:
            while block := stream.read(_BLOCK):
                digest.update(block)
    for tensor in tensors(model.graph):
        _check_size(tensor, path)
    return model, digest.hexdigest(), files


def check_opsets(model: onnx.ModelProto) -> None:
    """Raise ModelError for an operator set that the onnx package can not know, in functions as well.

    Of an opset of ONNX itself that is newer than the package, the meaning of operators is unknown.
    """
    for opset in (one for owner in (model, *model.functions) for one in owner.opset_import):
        standard = opset.domain in ("", "ai.onnx")
        least, most = (1, onnx.defs.onnx_opset_version()) if standard else (0, _HIGHEST_OPSET)
        if not least <= opset.version <= most:
            domain = opset.domain or "ai.onnx"
            raise ModelError(f"opset {opset.version} of '{domain}' is none of {least} to {most}")


def tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield every initializer and tensor attribute of the graph and of the graphs nested in it."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                yield attribute.t
            yield from attribute.tensors
            for body in (attribute.g, *attribute.graphs):
                if body.node or body.initializer:
                    yield from tensors(body)


def _read_external(model: onnx.ModelProto, path: Path) -> list[Path]:
    outside = [t for t in tensors(model.graph) if external.uses_external_data(t)]
    files = {_check_external(tensor, path) for tensor in outside}
    if outside:
        try:
            external.load_external_data_for_model(model, str(path.parent))
        except (onnx.checker.ValidationError, ValueError) as error:
            raise ModelError(f"external data of '{path}': {error}") from None
    return sorted(files)


def _check_external(tensor: onnx.TensorProto, path: Path) -> Path:
    """Return the file that holds the tensor's data, after checking that it can."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = Path(entries.get("location", ""))
    file = (path.parent / location).resolve()
    what = f"external data '{location}' of tensor '{tensor.name}'"
    if location.is_absolute() or not file.is_relative_to(path.parent.resolve()):
        raise ModelError(f"{what} lies outside the folder of '{path}'")
    if not file.is_file():
        raise ModelError(f"{what} is missing beside '{path}'")
    try:
        offset = int(entries.get("offset", 0))
        length = int(entries.get("length", _claimed_bytes(tensor)))
    except ValueError:
        raise ModelError(f"{what} has an offset or length that is no number: {entries}") from None
    size = file.stat().st_size
    if offset < 0 or length < 0 or offset + length > size:
        raise ModelError(f"{what} claims bytes {offset} to {offset + length}, the file has {size}")
    if length != _claimed_bytes(tensor):
        raise ModelError(f"{what} has {length} bytes, its shape and type claim {_claimed_bytes(tensor)}")
    return file


def _check_size(tensor: onnx.TensorProto, path: Path) -> None:
    """Refuse a tensor whose shape claims more or less data than the file holds."""
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
    """Return how many entries the typed fields must have: complex numbers take two, small types share."""
    if tensor.data_type == onnx.TensorProto.STRING:
        return _count(tensor)
    name = onnx.TensorProto.DataType.Name(tensor.data_type)
    if name in _PACKED_BITS:
        return _claimed_bytes(tensor)
    return _count(tensor) * (2 if name.startswith("COMPLEX") else 1)


def _count(tensor: onnx.TensorProto) -> int:
    count = 1
    for size in tensor.dims:
        if size < 0:
            raise ModelError(f"tensor '{tensor.name}' has a negative dimension in {list(tensor.dims)}")
        count *= size
    return count


def _claimed_bytes(tensor: onnx.TensorProto) -> int:
    try:
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
    except (KeyError, TypeError, ValueError):
        raise ModelError(f"tensor '{tensor.name}' has unknown element type {tensor.data_type}") from None
    name = onnx.TensorProto.DataType.Name(tensor.data_type)
    return (_count(tensor) * _PACKED_BITS.get(name, 8 * dtype.itemsize) + 7) // 8
