"""Quantizations written as nodes that quantize and dequantize.

Integers up to 16 bits become ONNX's own QuantizeLinear and DequantizeLinear, wider ones, bfloat16 and float16
the Extended operators of our library, block formats its BFPQuantizeDequantize and MXQuantizeDequantize.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_graphsurgeon as gs

from ops.formats import Format
from transforms.graph import walk
from transforms.graph.grids import Grid
from transforms.graph.rewire import Insertions, import_domains
from transforms.model.read_model import ModelError
from transforms.plan.bias_correction import correctable, corrected, corrected_inputs
from transforms.plan.qdq_writer import QdqWriter, rounded, take_name
from transforms.plan.qparams import QParamsTable, Ranges
from transforms.plan.quant_spec import BIAS, QuantSite, QuantSpec
from transforms.plan.quantization_plan import QuantizationPlan, check_plan, each_use
from transforms.plan.tensor_grids import TensorGrid
from transforms.plan.weight_cache import WeightMemory
from transforms.scheme.scheme import Scheme
from transforms.scheme.sources import scheme_of

WIDE_OPSET = 21
"""First opset whose QuantizeLinear and DequantizeLinear take integers of 4 and 16 bits, and blocks."""

_OPSETS = {2: 25, 4: WIDE_OPSET, 16: WIDE_OPSET}
"""The first opset by bits, for integers of more or fewer than 8 bits."""


def insert_qdq(
    plan: QuantizationPlan | gs.Graph,
    ranges: Ranges | Mapping[str, Grid] | None = None,
    *,
    memory: WeightMemory | None = None,
    grids: list[TensorGrid] | None = None,
) -> int:
    """Write a plan into its graph, or grids of single tensors into a graph; return how many were quantized.

    With a graph, ``ranges`` are grids by the names of tensors (:class:`transforms.graph.grids.Grid`): all
    consumers read the tensor quantized and dequantized, and a constant is stored as integers.

    With a plan, ``ranges`` (of :func:`transforms.calibrate.calibrate.calibrate`) are the ranges of integers.
    Weights are stored on their grid unless the plan's scheme keeps their nodes; the scheme also determines
    excluded nodes and the domains of new ones. ``memory`` is shared by several plans on copies of one graph;
    ``grids`` receives the grids of single tensors.

    Raises ModelError below the opset of :func:`least_opset`, ValueError for grids of no tensor or of another
    shape. :func:`transforms.insert_bf16_qdq.insert_bf16_qdq` rounds every tensor to bfloat16 without a plan.
    """
    if isinstance(plan, gs.Graph):
        return _insert_grids(plan, ranges)
    check_plan(plan, "insert_qdq")
    if isinstance(ranges, Mapping):
        raise TypeError("a plan takes ranges; grids by name go with a graph, insert_qdq(graph, grids)")
    insertion = _Insertion(plan, ranges, memory)
    if grids is not None:
        grids += insertion.parameters.grids({} if ranges is None else ranges.extremes())
    return insertion.run()


def _insert_grids(graph: gs.Graph, grids: object) -> int:
    if not isinstance(grids, Mapping) or not all(isinstance(grid, Grid) for grid in grids.values()):
        raise TypeError("insert_qdq takes a plan, or a graph and grids by name: {'x': Grid('int8', 0.1)}")
    needed = max((_opset_of(grid.format, bool(grid.block_size)) for grid in grids.values()), default=0)
    if graph.opset < needed:
        raise ModelError(f"the grids need opset {needed}, the model has {graph.opset}: raise it first")
    from transforms.plan.given_grids import write_grids

    return write_grids(graph, grids)


def _opset_of(fmt: Format, has_blocks: bool) -> int:
    return max(_OPSETS.get(int(fmt.bits), 13), WIDE_OPSET if has_blocks else 13)


def least_opset(scheme: Scheme) -> int:
    """Return the opset that the nodes of a scheme need, at least 13, for scales per channel and bfloat16."""
    bits = (int(fmt.bits) for fmt in scheme.named_formats if fmt.is_integer)
    blocks = WIDE_OPSET if scheme.block_size else 13
    return 13 if scheme.qdq_domain else max((blocks, *(_OPSETS.get(width, 13) for width in bits)))


def raise_opset(graph: gs.Graph, scheme: Scheme | str) -> int:
    """Raise a graph to the opset that a scheme needs or names; return 1 if it changed.

    Call it before making a plan. ``scheme`` may be the name of a preset.

    Raises ModelError if the model cannot be raised, and if the scheme names a lower one than it needs;
    ValueError for blocks of integers, and those of 2 bits, in another domain than ONNX's own.
    """
    scheme = scheme_of(scheme)
    alone = [fmt.name for fmt in scheme.named_formats if fmt.is_integer and fmt.bits == 2]
    alone += ["block_size"] if scheme.block_size else []
    if alone and scheme.qdq_domain:
        raise ValueError(f"{alone[0]} requires ONNX's own domain, qdq_domain is '{scheme.qdq_domain}'")
    needed = least_opset(scheme)
    if 0 < scheme.opset < needed:
        also = f"they need {needed}" + (", or qdq_domain com.microsoft" if needed == WIDE_OPSET else "")
        raise ModelError(f"opset {scheme.opset} is too low for integers of 2, 4 and 16 bits: {also}")
    wanted = max(needed, scheme.opset)
    if graph.opset >= wanted:
        return 0
    from transforms.convert_opset import convert_opset

    return convert_opset(graph, wanted, newest=scheme.opset)


class _Insertion:
    """The insertion of one plan into its graph."""

    def __init__(self, plan: QuantizationPlan, ranges: Ranges | None, memory: WeightMemory | None) -> None:
        graph = plan.graph
        if graph.opset < least_opset(plan.scheme):
            needed = least_opset(plan.scheme)
            raise ModelError(f"the scheme needs opset {needed}, the model has {graph.opset}: raise it first")
        self._graph, self._plan = graph, plan
        self._outputs = walk.outputs(graph)
        self.parameters = QParamsTable(plan, ranges, memory)
        self._writer = QdqWriter(graph, plan.scheme, memory)
        self._insertions = Insertions()
        self._biases = _corrected_biases(plan, ranges, self.parameters)

    def run(self) -> int:
        """Write everything and return how many tensors were quantized."""
        by_tensor: dict[int, list[QuantSite]] = {}
        for quantization in self._plan.quantizations:
            by_tensor.setdefault(id(quantization.tensor), []).append(quantization)
        changed = 0
        for together in by_tensor.values():
            constant = isinstance(together[0].tensor, gs.Constant)
            changed += self._store(together) if constant else self._write(together)
        self._insertions.place(self._graph)
        import_domains(self._graph, self._writer.domains)
        return changed

    def _write(self, together: list[QuantSite]) -> bool:
        """Write the grids of a computed tensor; grids that several consumers share are written once."""
        together = sorted(together, key=lambda quantization: not quantization.is_output)
        first = together[0]
        source = first.split_off(self._writer.names) if first.is_output else first.tensor
        tensor_at: dict[tuple[QuantSpec, ...], gs.Tensor] = {(): source}
        nodes: list[gs.Node] = []
        for quantization in together:
            for length, step in enumerate(quantization.steps, 1):
                steps = quantization.steps[:length]
                if steps in tensor_at:
                    continue
                last = quantization.is_output and steps == quantization.steps
                target = quantization.tensor if last else None
                parameters = self.parameters.of(quantization.tensor, step)
                nodes += self._writer.put(tensor_at[steps[:-1]], step, parameters, target)
                tensor_at[steps] = nodes[-1].outputs[0]
            quantization.redirect(tensor_at[quantization.steps])
        self._insertions.add(first.owner, first.producer, nodes)
        return True

    def _store(self, together: list[QuantSite]) -> bool:
        """Store a constant on its grids, each once, and release the original."""
        source, keep_node = together[0].tensor, self._plan.scheme.keep_weight_nodes
        stored_at: dict[QuantSpec, gs.Tensor] = {}
        changed = False
        for quantization in together:
            step = quantization.steps[-1]
            if quantization.role == BIAS and step.needs_range:
                self._store_biases(quantization, step)
                changed = True
                continue
            if step not in stored_at:
                parameters = self.parameters.of(source, step)
                stored_at[step], nodes = self._writer.store(source, step, parameters, keep_node=keep_node)
                changed |= bool(nodes) or not np.array_equal(stored_at[step].values, source.values)
                self._insertions.add(quantization.owner, quantization.producer, nodes)
            quantization.redirect(stored_at[step])
        node, index = together[0].uses[0]
        take_name(source, node.inputs[index], self._outputs)
        return changed

    def _store_biases(self, quantization: QuantSite, step: QuantSpec) -> None:
        """Store a bias for each consumer, since its scale depends on the consumer's operands."""
        for node, index in quantization.uses:
            parameters = self.parameters.of_bias(node)
            axis = len(quantization.tensor.shape) - 1 if parameters[0].shape else None
            along = QuantSpec(step.format, axis)
            source = self._biases.get((id(node), index), quantization.tensor)
            target, nodes = self._writer.store_bias(source, along, parameters)
            node.inputs[index] = target
            self._insertions.add(quantization.owner, quantization.producer, nodes)


def _corrected_biases(
    plan: QuantizationPlan, ranges: Ranges | None, parameters: QParamsTable
) -> dict[tuple[int, int], gs.Constant]:
    """Return corrected biases by node and index of the input, if the scheme asks for them."""
    if plan.scheme.correct_biases is not True or ranges is None:
        return {}
    means, biases = ranges.means(corrected_inputs(plan)), {}
    steps = {(id(node), index): site.steps[-1] for node, index, site in each_use(plan)}
    for node, index in correctable(plan):
        weight, bias, step = node.inputs[1], node.inputs[index], steps[id(node), 1]
        values = np.asarray(weight.values, np.float32)
        error = rounded(values, step, parameters.of(weight, step)) - values
        new = corrected(node, np.asarray(bias.values), error, means)
        if new is not None:
            biases[id(node), index] = gs.Constant(bias.name, new)
    return biases
