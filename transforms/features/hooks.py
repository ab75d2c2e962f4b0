"""What features may add, each empty for most. Types of packages above are ``Any`` here."""

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
"""Runs a model on a feed."""


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


class PlannedProducts(Protocol):
    """The products of a plan that round inputs at run time, found before its graph is quantized."""

    def write(self, done: Any) -> None:
        """Let the products of the quantized graph do so, and count them in a record."""

    def emulate(self) -> None:
        """Let them read what they would round their inputs to, in float, so that weights may be fed."""


class RunTimeProducts(Protocol):
    """How products round float inputs at run time."""

    def pays(self, node: gs.Node) -> bool:
        """Return whether a layer is worth integer weights."""

    def multiplies(self, node: gs.Node, scheme: Any) -> bool:
        """Return whether a layer multiplies integers, and does not only store them."""

    def operands(self, plan: Any) -> Sequence[Any]:
        """Return the inputs, :class:`transforms.channels.propose_moves.Operand`, whose channels may move."""

    def planned(self, plan: Any) -> PlannedProducts:
        """Return the products of a plan that multiply integers."""


class ModelView(Protocol):
    """How a model is run whose inputs or outputs have other forms than those of its float model."""

    def fed(self, feed: Feed) -> Feed:
        """Return the feed of the model for one of the float model."""

    def in_float(self, run: Run) -> Run:
        """Return what takes feeds of the float model and makes its outputs, by what runs the model."""

    def in_steps(self, graph: gs.Graph, run: Run, feeds: Sequence[Feed]) -> Callable[[Run], Run] | None:
        """Return how samples are run so that what the model keeps between steps counts.

        None where the float model, which ``run`` runs, makes others of feeds in steps.
        """


@dataclass(frozen=True)
class SampleFiles:
    """How files of samples become inputs, by options as transforms.run.image_options.ImageOptions.

    ``read``: returns the input that is made of a file; ``line``: says how files go in; ``warnings``: yields
    why a graph was made for others, with what reads the samples by other options.
    """

    read: Callable[[Path, Any, Any], AnyArray]
    line: Callable[[Sequence[Path], Any, Any], str]
    warnings: Callable[[gs.Graph, Callable[[Any], Iterable[tuple[str, Feed]]], Any, Any], Iterator[str]]


@dataclass(frozen=True)
class CodedWeights:
    """Weights that functions of a model decode.

    ``attach``: adds the functions that a model calls; ``decode``: puts weights in the place of the calls, in
    a light model and its weights, and returns how many; ``calls``: yields format, elements and inputs of
    each call; ``grid_of``: returns the format in which a weight may be coded, of some and along some axes.
    """

    attach: Callable[[onnx.ModelProto], None]
    decode: Callable[[onnx.ModelProto, dict[str, Any]], int]
    calls: Callable[[onnx.ModelProto], Iterable[tuple[Format, int, Set[str]]]]
    grid_of: Callable[[AnyArray, Sequence[Format], Sequence[int]], Format | None]


@dataclass(frozen=True, eq=False)
class Feature:
    """What nodes of some operators, a key of a scheme, or an option add to recipes, plans and searches.

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
        Rows by the place in recipes where they are entered: "unjudged", before ranges are measured, for a
        scheme whose keys outputs do not decide, "finish", after the graph is quantized, "store", where its
        parts are written as operators of ONNX Runtime, and "interface", where inputs and outputs get the form
        that an option of the feature asks for.
    is_stored : function, optional
        Returns whether something of a graph is stored in few bits by rows of "store", which a plan leaves as
        it is; ``matmul_nbits`` asks for it.
    moves : sequence of Move
        What outputs decide, after the moves for every graph.
    finer : function
        Returns the products of a graph whose weights have more bits, where those of others have few.
    products : RunTimeProducts, optional
        How products round inputs at run time, for a key of schemes that says so.
    roundings : function
        Returns the nodes of a graph that compute in float only because they round tensors at run time.
    write_float : function
        Writes products in integers of a graph as what they compute in float, and returns the ``id`` of nodes
        that are part of rounding.
    view : function, optional
        Returns how a graph with inputs of its types is run, None for one that is run as it is.
    files : SampleFiles, optional
        How samples in files of its suffixes are read.
    coded : CodedWeights, optional
        How functions of its domains decode weights.
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
