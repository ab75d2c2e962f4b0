"""Steps of a conversion to BF16: load, keep layers in float for a target, convert."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from transforms.conversion import inspect_bf16
from transforms.conversion.convert_bf16 import Bf16Options, Conversion, convert_bf16
from transforms.conversion.rows import Row, shows
from transforms.deploy.refuse import refuse_free
from transforms.fix_shapes import fix_shapes
from transforms.lift_constants import lift_constants
from transforms.pipelines.for_runtime import TRY_OUT
from transforms.pipelines.later import later
from transforms.pipelines.load import tell_fitting
from transforms.pipelines.require import NothingToDoError
from transforms.pipelines.work import Work, WorkRow
from transforms.scheme.targets import target

if TYPE_CHECKING:
    from transforms.pipelines.keep_layers import keep_layers
    from transforms.precision.bf16 import KeptFloat
else:
    (keep_layers,) = later(__package__, "keep_layers")

TOOLS = {"float32": "convert_fp32_to_bf16", "float16": "convert_fp16_to_bf16"}
"""The name under which a conversion is recorded, by the float type of the model."""


@dataclass
class Bf16Work(Work):
    """A conversion: its options, the float type of the model, and its result ``done``.

    ``element``: "float32" or "float16", the type to require; with None the step ``load_float`` accepts
    either and sets that of the model. ``kept``: nodes that stay float for the target, after the step
    ``keep_layers``.
    """

    conversion: Bf16Options = field(default_factory=Bf16Options)
    element: str | None = None
    done: Conversion | None = None
    kept: KeptFloat | None = None


def load_float(work: Work) -> None:
    """Step: read the model and fix the shapes of its inputs.

    Raises NothingToDoError for a BF16 model, ModelError for another float type, ValueError for free
    dimensions that the target device does not support.
    """
    conversion = of_bf16(work)
    work.events.phase("loading")
    assert work.source is not None, "a work without a source begins with a graph"
    work.graph = work.source.load()
    work.record.source_sha256 = getattr(work.graph, "source_sha256", None)
    work.record.fixed = fix_shapes(work.graph, conversion.conversion.input_shapes)
    if work.scheme.target:
        refuse_free(work.graph, target(work.scheme.target))
    lift_constants(work.graph)
    state = inspect_bf16.describe(work.graph)
    if state.converted:
        raise NothingToDoError(f"Nothing to do: '{work.source}' is a BF16 model already ({state.format}).")
    if conversion.element is None and state.element in TOOLS:
        conversion.element = state.element
    tell_fitting(work)
    inspect_bf16.require(state, conversion.element or "float32", str(work.source))


def convert(work: Work) -> None:
    """Step: convert the graph.

    Raises NothingToDoError if no tensor is left to round, TargetError if the target forbids rounding any.
    """
    conversion = of_bf16(work)
    work.events.phase("converting")
    conversion.done = convert_bf16(work.graph, conversion.conversion)
    if conversion.done.tensors:
        return
    if conversion.kept and conversion.kept.patterns and work.options.goal:
        goal, before = work.options.goal, conversion.kept.before
        raise goal.unmet(
            f"only with every node of '{work.source}' in float32 {goal.words} is {goal.bound}; "
            f"with none: {goal.text(before)}"
        )
    raise NothingToDoError(f"Nothing to do: no tensor of '{work.source}' is left to round.")


BF16: tuple[WorkRow, ...] = (
    Row(load_float, phases=shows("loading")),
    Row(
        keep_layers,
        when=lambda work: work.options.goal is not None,
        needs={"graph": "load_float"},
        phases=shows("measuring"),
    ),
    Row(convert, needs={"graph": "load_float"}, after=("keep_layers",), phases=shows("converting")),
    TRY_OUT,
)
"""Converting to BF16."""


def recorded(work: Bf16Work) -> dict[str, object]:
    """Return the options to record in the metadata of a converted model."""
    values = vars(work.conversion)
    rare = {name for name in ("opset", "input_shapes", "kernels") if not values[name]}
    options = {name: value for name, value in values.items() if name not in {"strict", *rare}}
    goal = work.options.goal
    return options if goal is None or goal.is_gate else options | {"min_sqnr": goal.limit}


def of_bf16(work: Work) -> Bf16Work:
    """Return a work as a conversion; TypeError for another kind of work."""
    if not isinstance(work, Bf16Work):
        raise TypeError("this step takes a Bf16Work")
    return work
