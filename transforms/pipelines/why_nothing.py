"""Explain why a scheme quantizes nothing of a model, and which presets would quantize something."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import onnx_graphsurgeon as gs

from transforms import features
from transforms.conversion.prepare import prepare_for
from transforms.conversion.record import Record
from transforms.conversion.write_plan import make_plan
from transforms.files.spelling import as_option
from transforms.graph import dtypes, walk
from transforms.graph.dot_products import is_dot_product
from transforms.graph.product_weights import product_weights
from transforms.model.read_model import ModelError
from transforms.plan.exact_arithmetic import shape_arithmetic
from transforms.plan.float_only_nodes import float_zone
from transforms.plan.quantization_plan import QuantizationPlan
from transforms.scheme import Scheme, preset

TRIED = ("A8W8", "W8", "BFP16", "BF16")
"""One preset of each kind: integers; integers for weights alone, which need no ranges and so apply to bodies,
too; blocks; and a float type, which applies to every tensor.
"""

_EVERY = "quantize_all_op_types"


def why_nothing(load: Callable[[], gs.Graph], scheme: Scheme) -> Iterator[str]:
    """Yield a line for each reason, with the nodes it applies to, and one with presets that would work.

    ``load`` reads the float model, of which this scheme quantizes nothing. Candidates are the presets of
    ``TRIED``, and this scheme with ``quantize_all_op_types``; one works if the plan of the model has
    quantizations, or for weights alone if it makes the model smaller.
    """
    reasons: dict[str, Counter[str]] = {}
    for op, reason in _reasons(_plan(load(), scheme)):
        reasons.setdefault(reason, Counter())[op] += 1
    if not reasons:
        yield "No node reads a float32 tensor"
    for reason, ops in reasons.items():
        yield f"{reason}: {', '.join(f'{op} {count}' for op, count in ops.most_common())}"
    presets = list(_that_would(load, scheme))
    yield (
        f"Would quantize some of it: {', '.join(presets)}"
        if presets
        else "No preset would quantize any of it"
    )


def _plan(graph: gs.Graph, scheme: Scheme) -> QuantizationPlan:
    return make_plan(graph, scheme, prepare_for(graph, scheme), Record())


def _that_would(load: Callable[[], gs.Graph], scheme: Scheme) -> Iterator[str]:
    ways = [(as_option("config", name), preset(name)) for name in TRIED]
    if not getattr(scheme, _EVERY):
        ways.append((as_option("assignments", f"{_EVERY}=true"), scheme.with_(**{_EVERY: True})))
    for words, other in ways:
        if _has_quantizations(load(), other):
            yield words


def _has_quantizations(graph: gs.Graph, scheme: Scheme) -> bool:
    if scheme.format(scheme.activation) is None:  # weights alone must make the model smaller
        return product_weights(graph) > 0
    try:
        return bool(_plan(graph, scheme).quantizations)
    except ModelError:
        return False


def _reasons(plan: QuantizationPlan) -> Iterator[tuple[str, str]]:
    """Yield operator and reason of each node that reads a float32 tensor."""
    main = {id(node) for node in plan.graph.nodes}
    shapes, zone = shape_arithmetic(plan.graph), float_zone(plan.graph)
    for node in walk.nodes(plan.graph):
        formats, feature = plan.specs.formats[node], features.of(node)
        if not _floats(node.inputs) or id(node) in shapes:
            continue
        if formats.activation is None and formats.weight is None and formats.other is None:
            yield node.op, "Kept in float by the scheme"
        elif feature is not None and feature.is_stored:
            yield node.op, f"{feature.noun.capitalize()}, which {as_option('matmul_nbits')} stores"
        elif formats.wants_integers and id(node) not in main:
            yield node.op, "Inside If, Loop or Scan, where no ranges are measured"
        elif plan.specs.is_exact(node):
            yield node.op, "Ruined by any rounding (positions, indices, angles)"
        elif plan.specs.is_spectral(node):
            yield node.op, "Ruined by equal steps (spectra before a logarithm)"
        elif formats.wants_integers and id(node) in zone:
            yield node.op, "Ruined by integers (masks, scores before a Softmax, sums before a normalization)"
        elif formats.wants_integers and not is_dot_product(node):
            yield node.op, "Without a dot product before them, where arithmetic in integers starts"
        elif plan.specs.is_beside_float(node, 0) or plan.specs.is_beside_float(node, 1):
            yield node.op, "Beside tensors that stay float"
        elif not is_dot_product(node):
            yield node.op, "No dot products, which alone read blocks"
        else:
            yield node.op, "Dot products with an operand that is not a float32 tensor, or of unknown axes"


def _floats(tensors: Iterable[gs.Tensor]) -> bool:
    return any(dtypes.is_type(tensor, dtypes.FLOAT) for tensor in tensors if not tensor.is_empty())
