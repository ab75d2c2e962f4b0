"""Inspect a model and its requirements without loading its weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import onnx
import onnxruntime as ort

from ops.formats import Format
from ops.registration import AMD_DOMAIN, DOMAIN
from transforms import features
from transforms.compare.light_file import IN_MEMORY, LightFile, read_light
from transforms.compare.node_formats import type_name
from transforms.compare.number_formats import RoundedTensors, Row, weight_rows
from transforms.files.named_file import parse_toml
from transforms.functions.attach_functions import is_own
from transforms.graph.proto_graphs import each_node
from transforms.model import detached_weights, provenance
from transforms.model.read_model import ModelError
from transforms.runtime.session import why_not_on
from transforms.scheme.scheme import Scheme
from transforms.scheme.sources import scheme_from_keys

OWN, PACKED, OTHER = "operators of this package", "packed weights", "of the model itself"
"""Kinds of functions in a model."""

_TRIED = ("CPUExecutionProvider", "CUDAExecutionProvider")
_BUILT_IN = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")


@dataclass
class Inspection:
    """Properties of a model.

    ``files``: bytes of the model's file and of its external data, None if missing or not read, with the
    reason in ``unread``. ``operators`` by domain. ``functions``: how many of each kind, and their bytes.
    ``weights`` and ``activations`` by format; ``are_sizes_known``: whether all sizes of activations are
    known. ``rounded_weights``: constants that nodes round in every run. ``runs``: by provider of this ONNX
    Runtime, None if it runs, or the reason why not; empty if not tried. ``libraries``: domains with
    operators that are neither built in nor functions of the model.
    """

    source: Path | onnx.ModelProto
    files: dict[str, int | None]
    ir_version: int
    opsets: dict[str, int]
    producer: str
    made_by: str
    scheme: str
    inputs: dict[str, str]
    outputs: dict[str, str]
    bodies: int
    operators: dict[str, Counter[str]] = field(default_factory=dict)
    functions: dict[str, tuple[int, int]] = field(default_factory=dict)
    weights: dict[str, Row] = field(default_factory=dict)
    activations: dict[str, Row] = field(default_factory=dict)
    are_sizes_known: bool = True
    rounded_weights: Counter[str] = field(default_factory=Counter)
    runs: dict[str, str | None] = field(default_factory=dict)
    libraries: list[str] = field(default_factory=list)
    unread: dict[str, str] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """The file, or a placeholder for a model in memory."""
        return self.source if isinstance(self.source, Path) else IN_MEMORY

    @property
    def bytes(self) -> int:
        """Bytes of the existing files."""
        return sum(size or 0 for size in self.files.values())

    @property
    def weight_bits(self) -> float:
        """Bits per element over all weights, without shapes and indices."""
        rows = [row for row in self.weights.values() if row.is_weight]
        elements = sum(row.elements for row in rows)
        return 8 * sum(row.bytes for row in rows) / elements if elements else 0.0


def inspect_model(source: Path | onnx.ModelProto, *, run: bool = True) -> Inspection:
    """Return the properties of a model in a file or in memory; ``run``: also try providers.

    Accepts any ONNX model, also with missing external data. Raises ModelError for other files, OSError.
    """
    file = read_light(source)
    model = file.model
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    scheme = _scheme(metadata)
    version = metadata.get(provenance.PREFIX + "version", "")
    tool = provenance.tool(metadata)
    inspection = Inspection(
        source,
        file.files,
        model.ir_version,
        {opset.domain or "ai.onnx": opset.version for opset in model.opset_import},
        " ".join(filter(None, (model.producer_name, model.producer_version))),
        f"tools.{tool} {version}".strip() if tool else "",
        str(provenance.option(metadata, "config") or ""),
        {value.name: type_text(value) for value in model.graph.input if value.name not in _stored(model)},
        {value.name: type_text(value) for value in model.graph.output},
        sum(1 for node in each_node(model.graph) for a in node.attribute if a.HasField("g")),
    )
    for node in each_node(model.graph):
        inspection.operators.setdefault(node.domain or "ai.onnx", Counter())[node.op_type] += 1
    inspection.functions, inspection.unread = _functions(model), file.unread
    inspection.libraries = _libraries(model)
    inspection.weights = weight_rows(file, _block_formats(scheme))
    _run(inspection, file, tried=run)
    return inspection


def _run(found: Inspection, file: LightFile, *, tried: bool) -> None:
    """Fill in the computed tensors of a model whose weights are inputs, and which providers run it."""
    hollow, inferred = _inferred(file)
    tensors = RoundedTensors(_with_constants(inferred, file.model, _stored(file.model)))
    found.activations, found.are_sizes_known = tensors.rows()
    found.rounded_weights = tensors.rounded_weights()
    for provider in ort.get_available_providers() if tried else ():
        if provider in _TRIED:
            found.runs[provider.removesuffix("ExecutionProvider")] = why_not_on(provider, hollow)


def with_types(file: LightFile) -> onnx.ModelProto:
    """Return a model with inferred types and shapes, its large constants without data."""
    return _with_constants(_inferred(file)[1], file.model, _stored(file.model))


def _inferred(file: LightFile) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """Return a model whose weights are inputs, and one with inferred types, or unchanged if that fails."""
    hollow = onnx.ModelProto()
    hollow.CopyFrom(file.model)
    try:
        detached_weights.hollow(hollow)
        return hollow, onnx.shape_inference.infer_shapes(hollow)
    except (ModelError, onnx.shape_inference.InferenceError, ValueError):
        return hollow, file.model


def _with_constants(
    inferred: onnx.ModelProto, model: onnx.ModelProto, stored: Mapping[str, int]
) -> onnx.ModelProto:
    """Add the large initializers to an inferred model again, with name and type but no data."""
    known = {tensor.name for tensor in inferred.graph.initializer}
    for tensor in model.graph.initializer:
        if tensor.name in stored and tensor.name not in known:
            inferred.graph.initializer.add(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    return inferred


def _stored(model: onnx.ModelProto) -> dict[str, int]:
    return {tensor.name: tensor.data_type for tensor in model.graph.initializer}


def _functions(model: onnx.ModelProto) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for function in model.functions:
        kind = OWN if is_own(function) else PACKED if features.coded_in([function.domain]) else OTHER
        count, size = found.get(kind, (0, 0))
        found[kind] = count + 1, size + function.ByteSize()
    return found


def _libraries(model: onnx.ModelProto) -> list[str]:
    """Return the domains whose operators need a library; this package's is last."""
    made = {(function.domain, function.name) for function in model.functions}
    called = {(node.domain, node.op_type) for node in each_node(model.graph)} - made
    domains = {domain for domain, _ in called}
    foreign = {one for one in domains if one not in _BUILT_IN and not one.startswith("com.microsoft.")}
    return sorted(foreign, key=lambda one: (one in (DOMAIN, AMD_DOMAIN), one))


def _scheme(metadata: Mapping[str, str]) -> Scheme | None:
    text = metadata.get(provenance.PREFIX + "scheme")
    try:
        return scheme_from_keys(parse_toml(text)) if text else None
    except (ValueError, RecursionError, OverflowError):
        return None


def _block_formats(scheme: Scheme | None) -> list[Format]:
    return [fmt for fmt in (scheme.named_formats if scheme else ()) if fmt.block > 1]


def type_text(value: onnx.ValueInfoProto) -> str:
    """Return type and shape as text, such as ``float32[N, 3, 224, 224]``."""
    if value.type.WhichOneof("value") != "tensor_type":
        return str(value.type.WhichOneof("value") or "unknown").removesuffix("_type")
    kind = value.type.tensor_type
    sizes = [str(d.dim_value) if d.HasField("dim_value") else d.dim_param or "?" for d in kind.shape.dim]
    return type_name(kind.elem_type) + (f"[{', '.join(sizes)}]" if kind.HasField("shape") else "")
