"""Interfaces through which features extend the core, each optional. Types of higher packages are ``Any``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import onnx
import onnx_graphsurgeon as gs

from ops.array_types import AnyArray, Feed, Float32Array, QParams
from ops.formats import Format

Run = Callable[[Feed], Feed]
"""Runs a model on one feed and returns its outputs."""


class StoredWeight(Protocol):
    """A weight that nodes compute from stored integers."""

    @property
    def source(self) -> gs.Constant:
        """The stored constant."""

    @property
    def integers(self) -> AnyArray:
        """Its integers in the shape of the weight."""

    @property
    def nodes(self) -> Sequence[gs.Node]:
        """The nodes that compute the weight, in order; the last one outputs it."""

    @property
    def format(self) -> str:
        """The name of the integers' format."""

    def values(self) -> Float32Array:
        """Return the dequantized numbers."""


class WeightForm(Protocol):
    """How operators with weights other than dot products store them."""

    @property
    def inputs(self) -> Collection[int]:
        """The indices of inputs that are weights."""

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
        """Return the nodes that compute the target from a weight's integers, with names from walk.Names.

        ``grid``: scales and zero points, and the size of blocks.
        """

    def read(self, tensor: gs.Tensor) -> StoredWeight | None:
        """Return the stored integers from which a tensor is computed, or None."""


class PlannedProducts(Protocol):
    """The products of a plan that round inputs at run time, collected before its graph is quantized."""

    def write(self, done: Any) -> None:
        """Let the products of the quantized graph round their inputs, and count them in a record."""

    def emulate(self) -> None:
        """Round their inputs and return to float, so that weights may still be fed."""


class RunTimeProducts(Protocol):
    """How products round float inputs at run time."""

    def pays(self, node: gs.Node) -> bool:
        """Return whether integer weights pay for a layer."""

    def multiplies(self, node: gs.Node, scheme: Any) -> bool:
        """Return whether a layer multiplies integers, not only stores them."""

    def operands(self, plan: Any) -> Sequence[Any]:
        """Return the inputs whose channels may move, :class:`transforms.channels.propose_moves.Operand`."""

    def planned(self, plan: Any) -> PlannedProducts:
        """Return the products of a plan that multiply integers."""


class ModelView(Protocol):
    """How to run a model whose inputs or outputs have other forms than those of its float model."""

    def fed(self, feed: Feed) -> Feed:
        """Return the model's feed for one of the float model."""

    def in_float(self, run: Run) -> Run:
        """Return a function from feeds to outputs of the float model, given one that runs this model."""

    def in_steps(self, graph: gs.Graph, run: Run, feeds: Sequence[Feed]) -> Callable[[Run], Run] | None:
        """Return a function that runs samples in steps, so that what the model keeps between steps counts.

        None where the float model, which ``run`` runs, gives other outputs for feeds in steps.
        """


@dataclass(frozen=True)
class SampleFiles:
    """How files of samples become inputs, with options as transforms.run.image_options.ImageOptions.

    ``read``: returns the input for a file; ``line``: describes how files are read; ``warnings``: yields why
    a graph expects other inputs, given a function that reads the samples with other options.
    """

    read: Callable[[Path, Any, Any], AnyArray]
    line: Callable[[Sequence[Path], Any, Any], str]
    warnings: Callable[[gs.Graph, Callable[[Any], Iterable[tuple[str, Feed]]], Any, Any], Iterator[str]]


@dataclass(frozen=True)
class CodedWeights:
    """Weights that functions of a model decode.

    ``attach``: adds the functions that a model calls; ``decode``: replaces the calls by weights in a light
    model and its weights, and returns how many; ``calls``: yields format, elements and inputs of each call;
    ``grid_of``: returns which of some formats can represent a weight along some axes, or None.
    """

    attach: Callable[[onnx.ModelProto], None]
    decode: Callable[[onnx.ModelProto, dict[str, Any]], int]
    calls: Callable[[onnx.ModelProto], Iterable[tuple[Format, int, Set[str]]]]
    grid_of: Callable[[AnyArray, Sequence[Format], Sequence[int]], Format | None]


@dataclass(frozen=True, eq=False)
class Feature:
    """What operators, a key of a scheme, or an option add to recipes, plans and searches.

    Attributes
    ----------
    noun : str
        Name of a layer with one of these operators, with its article.
    domains : collection of str
        Domains of the operators; empty for standard ONNX.
    weights : WeightForm, optional
        How the operators' weights are stored.
    limits : function, optional
        Returns the least and greatest value of an output of a node, None where nothing is known.
    written_as : set of (str, str)
        Pairs of an operator and the operator as which a rewrite writes it.
    rows : mapping of str to sequence of Row
        Rows by the place in recipes where they are entered: "unjudged", before ranges are measured, for a
        scheme whose keys are not decided by outputs; "finish", after the graph is quantized; "store", where
        parts are written as operators of ONNX Runtime; "interface", where inputs and outputs get the form
        that an option of the feature requests.
    is_stored : function, optional
        Returns whether rows of "store" store some part of a graph in few bits, which a plan leaves alone;
        ``matmul_nbits`` asks for it.
    moves : sequence of Move
        Moves decided by outputs, after those for every graph.
    finer : function
        Returns the products of a graph whose weights get more bits where the others have few.
    products : RunTimeProducts, optional
        How products round inputs at run time, for a key of schemes that requests it.
    roundings : function
        Returns the nodes of a graph that compute in float only to round tensors at run time.
    write_float : function
        Rewrites integer products of a graph in float, and returns the ``id`` of nodes that are part of
        rounding.
    view : function, optional
        Returns how to run a graph with inputs of its types, None for one that runs as it is.
    files : SampleFiles, optional
        How sample files with its suffixes are read.
    coded : CodedWeights, optional
        How functions in its domains decode weights.
    """

    noun: str
    domains: Collection[str] = ()
    weights: WeightForm | None = None
    limits: Callable[[gs.Node, gs.Tensor], tuple[float, float] | None] = lambda node, tensor: None
    written_as: Collection[tuple[str, str]] = ()
    rows: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    is_stored: Callable[[gs.Graph], bool] | None = None
    moves: Sequence[Callable[[Any], None]] = ()
    finer: Callable[[gs.Graph], Iterable[gs.Node]] = lambda graph: ()
    products: RunTimeProducts | None = None
    roundings: Callable[[gs.Graph], Iterable[gs.Node]] = lambda graph: ()
    write_float: Callable[[gs.Graph], Iterable[int]] = lambda graph: ()
    view: Callable[[gs.Graph], ModelView | None] = lambda graph: None
    files: SampleFiles | None = None
    coded: CodedWeights | None = None
