"""Features: kinds of layers with rows, moves and forms of weights of their own, each in one folder.

The rest of ``transforms`` asks for the feature of a node or of a graph, and names none. A folder defines one
object ``FEATURE`` in ``feature.py``, which is imported with the first node of its operators; rewrites at the
top of ``transforms`` import the other modules of their folder. Types of packages above are ``Any`` here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from importlib import import_module
from types import MappingProxyType
from typing import Any, Protocol

import onnx_graphsurgeon as gs

from ops.array_types import AnyArray, Float32Array, QParams
from ops.formats import Format

FEATURES: Mapping[str, Collection[str]] = MappingProxyType(
    {"experts": ("MoE",), "recurrent": ("LSTM", "GRU", "RNN")}
)
"""The operators of each folder."""

_STANDARD_DOMAINS = (None, "", "ai.onnx")


class StoredWeight(Protocol):
    """A weight that nodes make of stored integers."""

    @property
    def source(self) -> gs.Constant:
        """The constant that is stored."""

    @property
    def integers(self) -> AnyArray:
        """Its integers in the shape of the weight."""

    @property
    def nodes(self) -> Sequence[gs.Node]:
        """The nodes that read it, in order; the last one makes the weight."""

    @property
    def format(self) -> str:
        """The name of the format of the integers."""

    def values(self) -> Float32Array:
        """Return the numbers that the integers stand for."""


class WeightForm(Protocol):
    """How weights of operators that are no dot products are stored."""

    @property
    def inputs(self) -> Collection[int]:
        """The inputs that are weights."""

    def is_weight(self, node: gs.Node, index: int) -> bool:
        """Return whether an input is a stored float weight."""

    def takes(self, fmt: Format | None, weight: gs.Constant, scheme: Any) -> bool:
        """Return whether a weight is stored in a format of a scheme."""

    def grid(self, fmt: Format, weight: gs.Constant, block: int, method: str) -> Any:
        """Return the grid of a weight, a :class:`transforms.plan.quant_spec.QuantSpec`."""

    def write(
        self,
        names: Any,
        source: gs.Constant,
        integers: Any,
        grid: tuple[QParams, int],
        target: gs.Variable,
        scheme: Any,
    ) -> list[gs.Node]:
        """Return the nodes that make the target of the integers of a weight, with free names of walk.Names.

        ``grid``: scales and zero points, and the size of blocks.
        """

    def read(self, tensor: gs.Tensor) -> StoredWeight | None:
        """Return the integers that a tensor is made of, None for another tensor."""


@dataclass(frozen=True, eq=False)
class Feature:
    """What nodes of some operators add to recipes, plans and searches.

    Attributes
    ----------
    noun : str
        What a layer with one of these operators is called in a sentence, with its article.
    domains : collection of str
        Those of the operators; empty for ONNX's own.
    weights : WeightForm, optional
        How weights are stored, if the operators have some.
    limits : function, optional
        Returns the least and the greatest number of an output of a node, None where nothing is known.
    written_as : set of (str, str)
        Operators, and others in whose form a rewrite writes them.
    rows : mapping of str to sequence of Row
        Rows by the place in recipes where they are entered: "finish", after the graph is quantized, and
        "store", where its parts are written as operators of ONNX Runtime.
    is_stored : function, optional
        Returns whether something of a graph is stored in few bits by rows of "store", which a plan leaves as
        it is; ``matmul_nbits`` asks for it.
    moves : sequence of Move
        What outputs decide, after the moves for every graph.
    """

    noun: str
    domains: Collection[str] = ()
    weights: WeightForm | None = None
    limits: Callable[[gs.Node, gs.Tensor], tuple[float, float] | None] = lambda node, tensor: None
    written_as: Collection[tuple[str, str]] = ()
    rows: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    is_stored: Callable[[gs.Graph], bool] | None = None
    moves: Sequence[Callable[[Any], None]] = ()


_BY_OPERATOR: dict[str, Feature | str] = {
    operator: folder for folder, operators in FEATURES.items() for operator in operators
}
OPERATORS: Set[str] = _BY_OPERATOR.keys()
"""The operators of all features, of those that are registered later, too."""


def register(feature: Feature, operators: Iterable[str]) -> None:
    """Enter a feature where one of some operators occurs, which no other feature may have."""
    for operator in operators:
        if operator in _BY_OPERATOR:
            raise ValueError(f"operator {operator} belongs to {_feature(operator).noun} already")
        _BY_OPERATOR[operator] = feature


def remove(feature: Feature) -> None:
    """Take a feature away that was registered."""
    for operator in [name for name, other in _BY_OPERATOR.items() if other is feature]:
        del _BY_OPERATOR[operator]


def of(node: gs.Node) -> Feature | None:
    """Return the feature of a node, None for most."""
    if node.op not in _BY_OPERATOR:
        return None
    feature = _feature(node.op)
    domains = feature.domains or _STANDARD_DOMAINS
    return feature if node.domain in domains else None


def open_in(operators: Iterable[str]) -> tuple[Feature, ...]:
    """Return the features of a graph with some operators, in the order of their first operator."""
    return tuple(dict.fromkeys(_feature(name) for name in operators if name in _BY_OPERATOR))


def weights_of(node: gs.Node) -> WeightForm | None:
    """Return how the weights of a node are stored that is no dot product, None without any."""
    feature = of(node)
    return None if feature is None else feature.weights


def is_stored_later(node: gs.Node) -> bool:
    """Return whether a node is written in few bits by a row of its feature, after the plan."""
    feature = of(node)
    return feature is not None and feature.is_stored is not None


def reads_stored(node: gs.Node) -> bool:
    """Return whether a node reads weights in the form of its feature."""
    form = weights_of(node)
    return form is not None and any(form.read(node.inputs[index]) is not None for index in form.inputs)


def _feature(operator: str) -> Feature:
    feature = _BY_OPERATOR[operator]
    if isinstance(feature, str):
        loaded: Feature = import_module(f"{__name__}.{feature}.feature").FEATURE
        _BY_OPERATOR.update(dict.fromkeys(FEATURES[feature], loaded))
        return loaded
    return feature
