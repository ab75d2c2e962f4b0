"""Features: kinds of layers with their own rows, moves and weight forms, one folder each.

The rest of ``transforms`` asks for the features of a node, a graph, a scheme, an option or a file, and names
none. A folder defines one object ``FEATURE`` in ``feature.py``, imported when one of its marks first occurs;
rewrites at the top of ``transforms`` import the other modules of their folder. A folder without marks has
rows in recipes, imported when they are entered.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set
from importlib import import_module
from pathlib import Path
from types import MappingProxyType

import onnx_graphsurgeon as gs

from transforms.features.hooks import CodedWeights, Feature, ModelView, SampleFiles, WeightForm

FEATURES: Mapping[str, Collection[str]] = MappingProxyType(
    {
        "caches": ("kv_cache", "int8", "uint8"),
        "dynamic": ("dynamic", "MatMulInteger Cast Mul", "ReduceMax Max Div QuantizeLinear"),
        "experts": ("MoE", *(f"few_bits {operator}" for operator in ("TopK", "ArgMax", "ArgMin", "QMoE"))),
        "images": (".png", ".jpg", ".jpeg"),
        "language": (),
        "packed": ("onnx_narrow",),
        "recurrent": ("LSTM", "GRU", "RNN"),
    }
)
"""The marks of each folder: operators (one, or a sequence), ``few_bits``, keys of a scheme, options of a job,
input types, suffixes of sample files, and function domains."""

FEW_BITS = "few_bits"
"""The mark of weights with fewer than 8 bits."""

_STANDARD_DOMAINS = (None, "", "ai.onnx")


_BY_MARK: dict[str, Feature | str] = {mark: folder for folder, marks in FEATURES.items() for mark in marks}
MARKS: Set[str] = _BY_MARK.keys()
"""The marks of all features, including those registered later."""


def register(feature: Feature, operators: Iterable[str]) -> None:
    """Register a feature for some operators, none of which may belong to another feature."""
    for operator in operators:
        if operator in _BY_MARK:
            raise ValueError(f"operator {operator} belongs to {_feature(operator).noun} already")
        _BY_MARK[operator] = feature


def remove(feature: Feature) -> None:
    """Unregister a feature."""
    for operator in [name for name, other in _BY_MARK.items() if other is feature]:
        del _BY_MARK[operator]


def of(node: gs.Node) -> Feature | None:
    """Return the feature of a node, or None."""
    if node.op not in _BY_MARK:
        return None
    feature = _feature(node.op)
    domains = feature.domains or _STANDARD_DOMAINS
    return feature if node.domain in domains else None


def open_in(marks: Iterable[str]) -> tuple[Feature, ...]:
    """Return the features with a mark among these, such as the operators of a graph."""
    present = set(marks)
    return tuple(dict.fromkeys(_feature(mark) for mark in _BY_MARK if present.issuperset(mark.split())))


def asked_for(*holders: object) -> tuple[Feature, ...]:
    """Return the features requested by attributes of objects, such as keys of a scheme and of its rules."""
    return open_in(mark for mark in MARKS for holder in holders if getattr(holder, mark, None))


def view_of(graph: gs.Graph) -> ModelView | None:
    """Return the view through which a model with a changed interface is run, or None."""
    opened = open_in(str(tensor.dtype) for tensor in graph.inputs)
    return next((view for feature in opened if (view := feature.view(graph))), None)


def coded_in(domains: Iterable[str]) -> tuple[CodedWeights, ...]:
    """Return the decoders of coded weights for some function domains, often none."""
    return tuple(feature.coded for feature in open_in(domains) if feature.coded is not None)


def files_of(path: Path) -> SampleFiles | None:
    """Return the reader of a sample file, or None for a file of arrays."""
    return next((feature.files for feature in open_in([path.suffix.lower()])), None)


def weights_of(node: gs.Node) -> WeightForm | None:
    """Return how a node with weights other than a dot product stores them, or None."""
    feature = of(node)
    return None if feature is None else feature.weights


def is_stored_later(node: gs.Node) -> bool:
    """Return whether a row of its feature writes a node in few bits, after the plan."""
    feature = of(node)
    return feature is not None and feature.is_stored is not None


def reads_stored(node: gs.Node) -> bool:
    """Return whether a node reads weights in the form of its feature."""
    form = weights_of(node)
    return form is not None and any(form.read(node.inputs[index]) is not None for index in form.inputs)


def _feature(mark: str) -> Feature:
    feature = _BY_MARK[mark]
    if isinstance(feature, str):
        loaded: Feature = import_module(f"{__name__}.{feature}.feature").FEATURE
        _BY_MARK.update(dict.fromkeys(FEATURES[feature], loaded))
        return loaded
    return feature
