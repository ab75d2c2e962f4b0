"""Notes of a summary on a plan: what has another format than requested, and why."""

from __future__ import annotations

from transforms import features
from transforms.conversion.record import Record
from transforms.graph import walk
from transforms.graph.dot_products import is_dot_product
from transforms.graph.selection import label_of
from transforms.graph.some_names import counted, some_names
from transforms.plan.quant_spec import WEIGHT
from transforms.plan.quantization_plan import QuantizationPlan, saturated_constants


def note_plan(plan: QuantizationPlan, done: Record) -> None:
    """Add the notes on a plan."""
    for note in _NOTES:
        note(plan, done)


def _note_whole(plan: QuantizationPlan, done: Record) -> None:
    """Report how many weights have no blocks although the scheme asks for them."""
    size = plan.scheme.block_size
    weights = [quantization for quantization in plan.quantizations if quantization.role == WEIGHT]
    whole = sum(one.steps[-1].needs_range and not one.steps[-1].block for one in weights)
    if size and whole:
        count = counted(whole, "weight")
        what = "per channel" if plan.scheme.per_channel else "for each weight"
        done.notes.append(f"One scale {what}, no blocks of {size}: {count}, sums too short or in groups")


def _note_widened(plan: QuantizationPlan, done: Record) -> None:
    """Report which weights have 4 bits instead of 2."""
    if names := plan.specs.widened:
        reason = "2 are computed wrongly by ONNX Runtime unless 4 divides the outputs of a layer"
        done.notes.append(f"4 bits in place of 2: {some_names(names)}; {reason}")


def _note_choosing(plan: QuantizationPlan, done: Record) -> None:
    """Report which products have more bits than other layers because they choose what is computed."""
    if found := plan.specs.formats.choosing:
        weight = plan.specs.formats[found[0]].weight
        names = some_names([label_of(node) for node in found])
        bits = "in float" if weight is None else f"in {weight.name}"
        done.notes.append(f"Weights {bits} that choose what is computed: {names}; layers entries change that")


def _note_lengths(plan: QuantizationPlan, done: Record) -> None:
    """Report which layers stay float because they determine lengths of other tensors."""
    formats = plan.specs.formats
    if formats.default.activation is formats.default.weight is None:
        return
    names = [label_of(node) for node in formats.deciding if is_dot_product(node) or features.weights_of(node)]
    if names:
        said = f"Kept in float, for they decide how long other tensors are: {some_names(names)}"
        done.notes.append(f"{said}; layers entries change that")


def _note_finer(plan: QuantizationPlan, done: Record) -> None:
    """Report which sensitive layers have more bits than others."""
    if found := plan.specs.formats.finer:
        names, share = some_names([label_of(node) for node in found]), f"{plan.scheme.finer_share:.3g}"
        done.notes.append(f"Weights in int8 that gain most for their bytes: {names}; finer_share={share}")


def _note_infinite(plan: QuantizationPlan, done: Record) -> None:
    """Report constants that a float type saturates, and tensors kept in float32 for their infinities."""
    if names := saturated_constants(plan):
        done.notes.append(f"Saturated at +-65504: {some_names(names)}")
    if names := plan.specs.infinite:
        done.notes.append(f"Kept in float32, where an infinity means something: {some_names(names)}")


def _note_bodies(plan: QuantizationPlan, done: Record) -> None:
    """Report how many layers stay float because ranges are not measured inside bodies."""
    main = {id(node) for node in plan.graph.nodes}
    left = [
        node
        for node in walk.nodes(plan.graph)
        if id(node) not in main and is_dot_product(node) and plan.specs.formats[node].wants_integers
    ]
    if left:
        layers = counted(len(left), "layer")
        done.notes.append(f"Kept in float inside If, Loop or Scan: {layers}, ranges are not measured there")


_NOTES = (
    _note_bodies,
    _note_whole,
    _note_infinite,
    _note_widened,
    _note_choosing,
    _note_lengths,
    _note_finer,
)
