"""Choose the number format in which each node reads each value.

A value is put on a grid where it is read, in the format of the reading node.

* Operands of dot products (:mod:`transforms.graph.dot_products`) take any format. Blocks run along the axis
  of the sum, integer weights have one scale, or one for each output channel.
* Weights of operators of features take the format of weights, whatever other inputs have.
* Integers also reach the arithmetic around dot products (:mod:`transforms.plan.integer_sites`), in the
  outermost graph: ranges are not measured inside bodies of If, Loop and Scan.
* bfloat16 and float16 reach every value (:mod:`transforms.plan.rounding_plan`).
* ``quantize_all_op_types`` lets every format reach what those two reach.
* Blocks leave out tensors that may hold infinities (:mod:`transforms.plan.infinities`); float16, which
  saturates in our operators, those whose infinities have a meaning.
* No format reaches the arithmetic of sizes, positions and angles (:mod:`transforms.plan.exact_arithmetic`).
* Biases are int32 where both operands are integers and there is one number for each output channel, or one
  scale for all; they take another format only where the scheme names one.
* Outputs of the model have the format of the node that makes them, where integers or a float type reach it.

A tensor named in a scheme has the named format wherever it is read.
"""

from __future__ import annotations

import math

import onnx_graphsurgeon as gs

import ops
from transforms import features
from transforms.graph import dot_products, dtypes, walk
from transforms.graph.selection import NodeSet
from transforms.plan.exact_sums import ExactSums
from transforms.plan.graph_facts import GraphFacts
from transforms.plan.integer_sites import IntegerSites
from transforms.plan.quant_spec import (
    ACTIVATION,
    BIAS,
    CONSTANT,
    WEIGHT,
    QuantSpec,
    block_axis,
    is_unquantized_float,
    role_of,
    saturates,
    wider,
)
from transforms.plan.rounding import Edge, Rounding
from transforms.plan.rounding_plan import RoundingPlan, owners, reach
from transforms.plan.scheme_targets import FormatTable, Targets
from transforms.plan.weight_specs import WeightSpecs
from transforms.scheme.scheme import AUTO, FLOAT32, Scheme
from transforms.scheme.targets import ON_CPU


class SpecChooser:
    """The grid on which each input of a node is read, and the grid of each output of the model."""

    def __init__(self, graph: gs.Graph, scheme: Scheme, targets: Targets) -> None:
        """Find the values of a prepared graph that integers and float types reach."""
        self._graph, self._scheme, self._targets = graph, scheme, targets
        facts = targets.facts or GraphFacts(graph)
        self.formats = FormatTable(graph, scheme, targets, facts)
        self.owners = owners(graph)
        self._main = {id(node) for node in graph.nodes}
        weights, self._exact = WeightSpecs(scheme, targets, self.formats, facts), facts.exact
        self._weights = ExactSums(graph, scheme, targets.fixed, lambda n: self.formats[n].dynamic, weights.of)
        self._infinite = facts.infinite if scheme.quantize_all_op_types else frozenset[int]()
        formats = [*scheme.named_formats, *filter(None, [scheme.other_format])]
        self._meant = facts.meant_infinities if any(map(saturates, formats)) else frozenset[int]()
        self.infinite: list[str] = []
        """Names of the tensors that stay float32 because float16 would make their infinities finite."""
        self.widened: list[str] = []
        """Names of the weights of 2 bits that get 4, see :func:`transforms.plan.quant_spec.wider`."""
        self._spectra = frozenset[int]() if scheme.quantize_all_op_types else facts.spectra
        self.integers = IntegerSites(
            graph,
            self._takes_integers,
            arithmetic=_has_arithmetic(scheme, facts),
            share_slices=scheme.align_slice,
            kernels=scheme.kernels,
            facts=facts,
        )
        self._float_edges, self._float_outputs = reach(self._float_sites(facts))
        named = scheme.tensors and RoundingPlan(graph, dtypes.FLOAT, round_before_relu=True, facts=facts)
        self._open_edges, _ = reach(named.roundings if isinstance(named, RoundingPlan) else ())
        self._chosen: dict[Edge, tuple[QuantSpec | None, str]] = {}

    def of_input(self, node: gs.Node, index: int) -> tuple[QuantSpec | None, str]:
        """Return the grid on which a node reads an input, None for float32, and the role of the input."""
        edge = id(node), index
        if edge not in self._chosen:
            self._chosen[edge] = self._input_spec(node, index, role_of(node, index))
        return self._chosen[edge]

    def of_output(self, tensor: gs.Tensor) -> QuantSpec | None:
        """Return the grid of an output of the model, None for float32."""
        producer = walk.producer(tensor)
        if producer is None or not is_unquantized_float(tensor):
            return None
        named = self._targets.tensors.get(id(tensor))
        if named is not None:
            return self._spec(self._scheme.format(named[1]), tensor)
        if id(tensor) in self.integers.outputs:
            return self.made(tensor)
        return self._spec(self._made(producer), tensor) if id(tensor) in self._float_outputs else None

    def made(self, tensor: gs.Tensor) -> QuantSpec | None:
        """Return the grid of the layer that computes a tensor, through moves, rectifiers and added biases.

        An input of the model has the whole scheme's format. None if the layer computes in float32, which it
        does in a body if its format needs a range, and for tensors that enter a body.
        """
        origin = self.integers.origin(tensor)
        node = walk.producer(origin)
        if node is None:
            spec = self.default(tensor) if any(origin is t for t in self._graph.inputs) else None
        else:
            computes = dot_products.is_dot_product(node) or id(node) in self.integers.layers
            spec = self._spec(self._computed(node) if computes else self._made(node), tensor)
        return None if spec and spec.needs_range and not self.is_in_main_graph(tensor) else spec

    def default(self, tensor: gs.Tensor) -> QuantSpec | None:
        """Return the whole scheme's grid for a tensor."""
        return self._spec(self.formats.default.activation, tensor)

    def is_in_main_graph(self, tensor: gs.Tensor) -> bool:
        """Return whether a computed tensor, or an input, belongs to the outermost graph."""
        owner, _ = self.owners.get(id(tensor), (None, None))
        return owner is self._graph and not isinstance(tensor, gs.Constant)

    def is_exact(self, node: gs.Node) -> bool:
        """Return whether a node computes sizes, positions or angles, which any rounding would ruin."""
        return id(node) in self._exact

    def is_spectral(self, node: gs.Node) -> bool:
        """Return whether a logarithm depends on a node, and the node's formats would ruin it."""
        return id(node) in self._spectra and self.formats[node].wants_grids

    def is_beside_float(self, node: gs.Node, index: int) -> bool:
        """Return whether the other operand is named float, so that ONNX Runtime computes in float."""
        if self._scheme.target != ON_CPU or index > 1 or not dot_products.is_dot_product(node):
            return False
        return self._targets.tensors.get(id(node.inputs[1 - index]), ("", ""))[1] == FLOAT32

    def _is_ruined(self, node: gs.Node) -> bool:
        return self.is_exact(node) or self.is_spectral(node)

    def _takes_integers(self, node: gs.Node) -> bool:
        return self.formats[node].wants_integers and not self._is_ruined(node)

    def _float_sites(self, facts: GraphFacts) -> list[Rounding]:
        """Return where float formats round, empty if the scheme has none."""
        every = self._scheme.quantize_all_op_types
        nodes = list(walk.nodes(self._graph))
        wanted = {id(n): self.formats[n].activation if every else self.formats[n].other for n in nodes}
        if not any(wanted.values()):
            return []
        bfloat16 = any(fmt and fmt.name == "bfloat16" for fmt in wanted.values())
        float_nodes = NodeSet(node for node in nodes if wanted[id(node)] is None)
        element = dtypes.BFLOAT16 if bfloat16 else dtypes.FLOAT16
        return RoundingPlan(self._graph, element, exclude=float_nodes, facts=facts).roundings

    def _input_spec(self, node: gs.Node, index: int, role: str) -> tuple[QuantSpec | None, str]:
        tensor, edge = node.inputs[index], (id(node), index)
        if not is_unquantized_float(tensor):
            return None, role
        named = self._targets.tensors.get(id(tensor))
        if named is None:
            fmt = self._format(node, index, role)
        else:
            fmt = self._scheme.format(named[1]) if edge in self._open_edges else None
            if role == BIAS and fmt and fmt.is_integer and not (fmt.bits == 32 and self._has_int32(node)):
                role = CONSTANT
        return self._spec(fmt, tensor, node, index, role), role

    def _format(self, node: gs.Node, index: int, role: str) -> ops.Format | None:
        formats, edge = self.formats[node], (id(node), index)
        if role == BIAS:
            int32 = formats.bias is not None and formats.bias.is_integer
            fmt = formats.other if int32 and not self._has_int32(node) else formats.bias
            is_left = fmt == formats.other and edge not in self._float_edges  # as in excluded nodes
            return None if is_left else fmt
        if self.is_beside_float(node, index):
            return None
        if self._is_computed(node, index) or (role == WEIGHT and self._stores_in_form(node, index)):
            return formats.weight if role == WEIGHT else formats.activation
        sites = self.integers
        if edge not in sites.edges:
            return self._reached(node, edge)
        closed = None if id(node) in sites.layers else sites.closed_layer(node.inputs[index])
        formats = formats if closed is None else self.formats[closed]
        follows = role == ACTIVATION or self._scheme.align_eltwise_quant_type
        return formats.activation if follows or formats.weight is None else formats.weight

    def _is_computed(self, node: gs.Node, index: int) -> bool:
        """Return whether an input is an operand of a dot product that computes in formats of its own.

        False if these would ruin its result. False in a body that should have integers: it has no ranges,
        and a weight alone does not make an integer layer.
        """
        if not dot_products.is_dot_product(node) or not dot_products.is_operand(node, index):
            return False
        formats = self.formats[node]
        if self._is_ruined(node) or (formats.dynamic and not formats.dynamic.pays(node)):
            return False
        if formats.wants_integers:
            return id(node) in self.integers.layers
        return not (formats.activation is formats.weight is formats.other is None)

    def _stores_in_form(self, node: gs.Node, index: int) -> bool:
        """Return whether an operator other than a dot product stores its weights in a format of its own."""
        form = None if self._is_ruined(node) else features.weights_of(node)
        return form is not None and form.takes(self.formats[node].weight, node.inputs[index], self._scheme)

    def _has_int32(self, node: gs.Node) -> bool:
        """Return whether the bias of a node can have the scale of the product of its operands."""
        bias, weight = dot_products.bias(node), dot_products.weight_index(node)
        operands = [self.of_input(node, index)[0] for index in range(2)]
        if weight is None or bias is None or not all(spec and spec.format.is_integer for spec in operands):
            return False
        if any(spec and spec.block for spec in operands):
            return False
        axes = [spec.axis for spec in operands if spec and spec.axis is not None]
        count = node.inputs[1].shape[axes[0]] if axes and weight == 1 else None
        return not axes or (list(bias.shape[-1:]) == [count] and math.prod(bias.shape) == count)

    def _reached(self, node: gs.Node, edge: Edge) -> ops.Format | None:
        """Return the format of a value that is neither an operand nor an integer."""
        if edge not in self._float_edges:
            return None
        formats = self.formats[node]
        if self._scheme.quantize_all_op_types:
            fmt = self._computed(node)
            needs_floats = id(node) in self.integers.floats or self._is_for_bodies(node)
            return None if fmt is not None and fmt.is_integer and needs_floats else fmt
        if formats.other is not None:
            return formats.other
        producer = walk.producer(node.inputs[edge[1]])
        return self.formats[producer].other if producer is not None else None

    def _is_for_bodies(self, node: gs.Node) -> bool:
        """Return whether only bodies read the output of a node.

        ONNX Runtime 1.31 crashes when it moves a DequantizeLinear to the other side of such a node.
        """
        users = [user for tensor in node.outputs for user in tensor.outputs]
        is_output = any(walk.is_output(tensor, self._graph) for tensor in node.outputs)
        return bool(users) and not is_output and not any(id(user) in self._main for user in users)

    def _computed(self, node: gs.Node) -> ops.Format | None:
        """Return the format of a node's activations, None for integers in a body."""
        fmt = self.formats[node].activation
        return None if fmt is not None and fmt.is_integer and id(node) not in self._main else fmt

    def _made(self, node: gs.Node) -> ops.Format | None:
        """Return the format of the output of a node that is neither a dot product nor an integer layer."""
        return self._computed(node) if self._scheme.quantize_all_op_types else self.formats[node].other

    def _spec(
        self,
        fmt: ops.Format | None,
        tensor: gs.Tensor,
        node: gs.Node | None = None,
        index: int = 0,
        role: str = ACTIVATION,
    ) -> QuantSpec | None:
        if fmt is None:
            return None
        if fmt.is_integer and role == CONSTANT:
            from transforms.plan.infinities import is_infinite

            if is_infinite(tensor):
                return None  # an infinite bound, or a mask: integers cannot represent it
        if fmt.is_integer and role == WEIGHT and node is not None:
            used = wider(fmt, node, index, tensor)
            if used is not fmt and tensor.name not in self.widened:
                self.widened.append(tensor.name)
            return self._weights.of(used, node, index, self.of_input)
        if fmt.is_integer:
            symmetric = fmt.is_signed if role in (WEIGHT, BIAS) else self._scheme.is_symmetric(fmt)
            return QuantSpec(fmt, symmetric=symmetric)
        if not fmt.is_float:
            return None if id(tensor) in self._infinite else QuantSpec(fmt, block_axis(node, index, tensor))
        if not (saturates(fmt) and id(tensor) in self._meant):
            return QuantSpec(fmt)
        if tensor.name not in self.infinite:
            self.infinite.append(tensor.name)
        return None


def _has_arithmetic(scheme: Scheme, facts: GraphFacts) -> bool:
    """Return whether arithmetic between products is in integers too; by rule, not in a language model.

    Its states have channels and tokens far larger than all others. Compilers of targets require it.
    """
    if scheme.arithmetic != AUTO:
        return scheme.arithmetic is True
    return scheme.target not in ("", ON_CPU) or not facts.logits
