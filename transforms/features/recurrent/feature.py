"""The feature of recurrent layers."""

from __future__ import annotations

from collections import Counter

import onnx_graphsurgeon as gs

from transforms.conversion.rewriting import Rewritten
from transforms.conversion.rows import Row
from transforms.features import reads_stored
from transforms.features.hooks import Feature
from transforms.features.recurrent.weights import Rows
from transforms.graph import walk
from transforms.graph.value_limits import Limits
from transforms.scheme import Scheme
from transforms.scheme.targets import ON_CPU

_CELLS = 2  # the output of an LSTM that holds its cells
_INITIAL = 5  # the input with the initial state of a recurrent operator
_NARROW_BITS = 8


def limits(node: gs.Node, tensor: gs.Tensor) -> Limits | None:
    """Return the limits of an output; None with other activations, larger states, or for cells."""
    cells = any(tensor is output for output in node.outputs[_CELLS:])
    begins = len(node.inputs) > _INITIAL and not node.inputs[_INITIAL].is_empty()
    is_open = cells or "activations" in node.attrs or (node.op == "GRU" and begins)
    return None if is_open else (-1.0, 1.0)


def write_dynamic_lstms(work: Rewritten) -> int:
    """Write LSTMs as DynamicQuantizeLSTM, which quantizes inputs and states in every step."""
    from transforms.write_dynamic_lstm import write_dynamic_lstm

    return write_dynamic_lstm(work.graph)


def note_float_time(work: Rewritten) -> int:
    """Report that layers with weights in fewer bits take as long as before."""
    if operators := Counter(node.op for node in walk.nodes(work.graph) if reads_stored(node)):
        names = ", ".join(f"{op} {count}" for op, count in operators.most_common())
        work.record.notes.append(f"Weights alone in fewer bits, time as in float: {names}")
    return 0


def _rounds_inputs(scheme: Scheme) -> bool:
    """Return whether activations are integers of at most 8 bits, or rounded at run time."""
    activation = scheme.format(scheme.activation)
    is_narrow = activation is not None and activation.is_integer and activation.bits <= _NARROW_BITS
    return is_narrow or scheme.is_dynamic


FEATURE = Feature(
    noun="a recurrent layer",
    weights=Rows(),
    limits=limits,
    written_as=frozenset({("LSTM", "DynamicQuantizeLSTM")}),
    rows={
        "finish": (
            Row(
                write_dynamic_lstms,
                frozenset({"LSTM"}),
                lambda work: work.scheme.target == ON_CPU and _rounds_inputs(work.scheme),
                line="LSTMs that quantize inputs and states in every step",
            ),
            Row(note_float_time, after=("write_dynamic_lstms",)),
        )
    },
)
