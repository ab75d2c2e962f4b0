"""Deciding which values of a model get which number format, on the way to which node.

Each value is put on a grid where it is read: in the format of the node that reads it.

* Operands of dot products (:mod:`transforms.graph.dot_products`) take any format. Blocks run along the axis
  of the sum, integer weights have one scale, or one for each output channel.
* Integers also reach the arithmetic around dot products (:mod:`transforms.plan.integer_sites`), in the
  outermost graph: ranges are not measured inside bodies of If, Loop and Scan.
* bfloat16 and float16 reach every value (:mod:`transforms.plan.rounding_plan`).
* ``quantize_all_op_types`` lets every format reach what those two reach.
* Biases are int32 where both operands are integers and there is one number for each output channel, or one
  scale for all; they take another format only where the scheme gives them one.
* Outputs of the model have the format of what makes them, where integers or a float type reach it.

A tensor that a scheme names gets that format wherever it is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import onnx_graphsurgeon as gs

import ops
from transforms.graph import dot_products, dtypes, walk
from transforms.graph.selection import NodeSet
from transforms.plan.integer_sites import Edge, IntegerSites
from transforms.plan.node_formats import FormatTable, check_targets
from transforms.plan.quant_spec import (
    ACTIVATION,
    BIAS,
    CONSTANT,
    WEIGHT,
    QuantSite,
    QuantSpec,
    block_axis,
    is_unquantized_float,
    scale_axis,
)
from transforms.plan.rounding_plan import RoundingPlan, places
from transforms.plan.scheme_targets import SchemeTargets, Targets
from transforms.scheme import Scheme


class QuantizationPlan:
    """The quantizations of a graph in the order of first use."""

    def __init__(self, graph: gs.Graph, scheme: Scheme, targets: Targets | None = None) -> None:
        """Plan a prepared graph; ``targets`` is what the scheme names, where that was found earlier.

        Raises ValueError for a layer or tensor of the scheme that cannot take its format.
        """
        self.graph, self.scheme = graph, scheme
        self._targets = targets or SchemeTargets(graph, scheme).resolve_in(graph)
        self.formats = FormatTable(graph, scheme, self._targets)
        self._main = {id(node) for node in graph.nodes}
        self._places = places(graph)
        self._homes = walk.constant_homes(graph)
        self._shared: dict[int, list[gs.Tensor]] = {}
        self.integers = IntegerSites(graph, self._takes_integers, share_slices=scheme.align_slice)
        self._floats = _Reach(self._float_plan())
        self._open = _Reach(
            RoundingPlan(graph, dtypes.FLOAT, round_before_relu=True) if scheme.tensors else None
        )
        self._chosen: dict[Edge, tuple[QuantSpec | None, str]] = {}
        self._found: dict[tuple[int, tuple[QuantSpec, ...], str], QuantSite] = {}
        self._plan()
        self.quantizations = list(self._found.values())
        check_targets(graph, scheme, self._targets, self.formats, self.quantizations)

    def source(self, tensor: gs.Tensor) -> gs.Tensor:
        """Return the tensor whose measured range gives a tensor its scale."""
        return self.integers.source(tensor)

    def share(self, tensors: list[gs.Tensor]) -> bool:
        """Give tensors one range, the hull of theirs; return False where they share one already."""
        sources = [self.source(tensor) for tensor in tensors]
        groups = [self.group(source) for source in sources]
        if all(group is groups[0] for group in groups):
            return False
        merged = list({id(t): t for group in groups for t in group}.values())
        self._shared.update((id(tensor), merged) for tensor in merged)
        return True

    def group(self, tensor: gs.Tensor) -> list[gs.Tensor]:
        """Return the tensors that have one range with the source of a tensor, itself among them."""
        source = self.source(tensor)
        return self._shared.setdefault(id(source), [source])

    def measured(self) -> list[gs.Tensor]:
        """Return the tensors of which the plan needs ranges, each once, in the order of first use."""
        wanted = (
            member
            for quantization in self.quantizations
            if any(step.needs_range for step in quantization.steps) and quantization.role != BIAS
            for member in self.group(quantization.tensor)
            if not isinstance(member, gs.Constant)
        )
        return list({id(tensor): tensor for tensor in wanted}.values())

    def replace_each(self, parts: Callable[[QuantSite], list[QuantSite]]) -> None:
        """Put what ``parts`` returns for a quantization in its place."""
        self.quantizations = [part for quantization in self.quantizations for part in parts(quantization)]

    def is_in_main_graph(self, tensor: gs.Tensor) -> bool:
        """Return whether a computed tensor, or an input, is one of the outermost graph."""
        home, _ = self._places.get(id(tensor), (None, None))
        return home is self.graph

    def made(self, tensor: gs.Tensor) -> QuantSpec | None:
        """Return the grid of the layer that makes a tensor: through moves, rectifiers and added biases.

        An input of the model has the format of the whole scheme. None where the layer computes in float32, as
        it does in a body if its format needs a range, and for what enters a body.
        """
        origin = self.integers.origin(tensor)
        node = walk.producer(origin)
        if node is None:
            grid = self.default(tensor) if any(origin is t for t in self.graph.inputs) else None
        else:
            computes = dot_products.is_dot_product(node) or id(node) in self.integers.layers
            grid = self._grid(self._computed(node) if computes else self._made(node), tensor)
        return None if grid and grid.needs_range and not self.is_in_main_graph(tensor) else grid

    def default(self, tensor: gs.Tensor) -> QuantSpec | None:
        """Return the grid that the whole scheme has for a tensor."""
        return self._grid(self.formats.default.activation, tensor)

    def _takes_integers(self, node: gs.Node) -> bool:
        return self.formats[node].wants_integers

    def _float_plan(self) -> RoundingPlan | None:
        """Return the plan of the values that float formats reach, None where the scheme has none."""
        every = self.scheme.quantize_all_op_types
        nodes = list(walk.nodes(self.graph))
        rows = {id(n): self.formats[n].activation if every else self.formats[n].other for n in nodes}
        if not any(rows.values()):
            return None
        bfloat16 = any(fmt and fmt.name == "bfloat16" for fmt in rows.values())
        kept = NodeSet(node for node in nodes if rows[id(node)] is None)
        return RoundingPlan(self.graph, dtypes.BFLOAT16 if bfloat16 else dtypes.FLOAT16, exclude=kept)

    def _plan(self) -> None:
        for node in walk.nodes(self.graph):
            for index, tensor in enumerate(node.inputs):
                quantizer, role = self._choose(node, index, tensor)
                if quantizer is not None:
                    self._quantization(tensor, quantizer, role).uses.append((node, index))
        for tensor in self.graph.outputs:
            quantizer = self._choose_output(tensor)
            if quantizer is not None:
                self._quantization(tensor, quantizer, ACTIVATION).is_output = True

    def _quantization(self, tensor: gs.Tensor, quantizer: QuantSpec, role: str) -> QuantSite:
        home, producer = self._places.get(id(tensor)) or (self._homes[id(tensor)], None)
        steps = (quantizer,)
        new = QuantSite(tensor, home, producer, steps=steps, role=role)
        return self._found.setdefault((id(tensor), steps, role), new)

    def _choose(self, node: gs.Node, index: int, tensor: gs.Tensor) -> tuple[QuantSpec | None, str]:
        """Return the grid on which a node reads a tensor, None for float32, and what the tensor is to it."""
        edge = id(node), index
        if edge not in self._chosen:
            self._chosen[edge] = self._decide(node, index, tensor)
        return self._chosen[edge]

    def _decide(self, node: gs.Node, index: int, tensor: gs.Tensor) -> tuple[QuantSpec | None, str]:
        role = self._role(node, index, tensor)
        if not is_unquantized_float(tensor):
            return None, role
        named = self._targets.tensors.get(id(tensor))
        if named is not None:
            fmt = self.scheme.format(named[1]) if (id(node), index) in self._open.edges else None
            if role == BIAS and fmt and fmt.is_integer and not (fmt.bits == 32 and self._has_int32(node)):
                role = CONSTANT
        else:
            fmt = self._row(node, index, role)
        return self._grid(fmt, tensor, node, index, role), role

    def _role(self, node: gs.Node, index: int, tensor: gs.Tensor) -> str:
        if dot_products.is_dot_product(node):
            if not dot_products.is_operand(node, index):
                return BIAS if isinstance(tensor, gs.Constant) else ACTIVATION
            return WEIGHT if index == dot_products.weight_index(node) else ACTIVATION
        return CONSTANT if isinstance(tensor, gs.Constant) else ACTIVATION

    def _row(self, node: gs.Node, index: int, role: str) -> ops.Format | None:
        formats, edge = self.formats[node], (id(node), index)
        if role == BIAS:
            int32 = formats.bias is not None and formats.bias.is_integer
            return formats.other if int32 and not self._has_int32(node) else formats.bias
        if self._is_computed(node, index):
            return formats.weight if role == WEIGHT else formats.activation
        if edge in self.integers.edges:
            follows = role == ACTIVATION or self.scheme.align_eltwise_quant_type
            return formats.activation if follows or formats.weight is None else formats.weight
        return self._reached(node, edge)

    def _is_computed(self, node: gs.Node, index: int) -> bool:
        """Return whether an input is an operand of a dot product that computes in formats of its own.

        Not in a body that should have integers: there is no range, and a weight alone is no integer layer.
        """
        if not dot_products.is_dot_product(node) or not dot_products.is_operand(node, index):
            return False
        formats = self.formats[node]
        if self._takes_integers(node):
            return id(node) in self.integers.layers
        return not (formats.activation is formats.weight is formats.other is None)

    def _has_int32(self, node: gs.Node) -> bool:
        """Return whether the bias of a node can have the scale of the product of its operands."""
        bias, weight = dot_products.bias(node), dot_products.weight_index(node)
        operands = [self._choose(node, index, node.inputs[index])[0] for index in range(2)]
        if weight is None or bias is None or not all(grid and grid.format.is_integer for grid in operands):
            return False
        axes = [grid.axis for grid in operands if grid and grid.axis is not None]
        return not axes or (weight == 1 and _has_channels(bias, node.inputs[1].shape[axes[0]]))

    def _reached(self, node: gs.Node, edge: Edge) -> ops.Format | None:
        """Return the format of a value that is neither an operand nor an integer."""
        if edge not in self._floats.edges:
            return None
        formats = self.formats[node]
        if self.scheme.quantize_all_op_types:
            return self._computed(node)
        if formats.other is not None:
            return formats.other
        producer = walk.producer(node.inputs[edge[1]])
        return self.formats[producer].other if producer is not None else None

    def _computed(self, node: gs.Node) -> ops.Format | None:
        """Return the format of activations of a node, None for integers in a body."""
        fmt = self.formats[node].activation
        return None if fmt is not None and fmt.is_integer and id(node) not in self._main else fmt

    def _made(self, node: gs.Node) -> ops.Format | None:
        """Return the format of what a node makes that is neither a dot product nor an integer layer."""
        return self._computed(node) if self.scheme.quantize_all_op_types else self.formats[node].other

    def _choose_output(self, tensor: gs.Tensor) -> QuantSpec | None:
        producer = walk.producer(tensor)
        if producer is None or not is_unquantized_float(tensor):
            return None
        named = self._targets.tensors.get(id(tensor))
        if named is not None:
            return self._grid(self.scheme.format(named[1]), tensor)
        if id(tensor) in self.integers.outputs:
            return self.made(tensor)
        return self._grid(self._made(producer), tensor) if id(tensor) in self._floats.outputs else None

    def _grid(
        self,
        fmt: ops.Format | None,
        tensor: gs.Tensor,
        node: gs.Node | None = None,
        index: int = 0,
        role: str = ACTIVATION,
    ) -> QuantSpec | None:
        if fmt is None:
            return None
        if fmt.is_integer:
            symmetric = (
                not fmt.name.startswith("u") if role in (WEIGHT, BIAS) else self.scheme.is_symmetric(fmt)
            )
            weight = role == WEIGHT and node is not None
            axis = scale_axis(node, index, tensor, self.formats[node].per_channel) if weight else None
            return QuantSpec(fmt, axis, symmetric)
        return QuantSpec(fmt) if fmt.is_float else QuantSpec(fmt, block_axis(node, index, tensor))


class _Reach:
    """Where a plan rounds: edges as ``(id(node), index)``, outputs as ``id(tensor)``; nowhere without one."""

    def __init__(self, plan: RoundingPlan | None) -> None:
        roundings = plan.roundings if plan else []
        self.edges = {(id(node), index) for rounding in roundings for node, index in rounding.uses}
        self.outputs = {id(rounding.tensor) for rounding in roundings if rounding.is_output}


def _has_channels(bias: gs.Tensor, count: int) -> bool:
    """Return whether a bias has just one number for each output channel: that of Gemm may not."""
    return list(bias.shape[-1:]) == [count] and math.prod(bias.shape) == count


def each_use(plan: QuantizationPlan) -> Iterator[tuple[gs.Node, int, QuantSite]]:
    """Yield every input of a node that reads a quantized value."""
    for quantization in plan.quantizations:
        for node, index in quantization.uses:
            yield node, index, quantization
