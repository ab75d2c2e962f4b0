"""A graph to be rewritten according to a scheme: what the rows of a quantization read and change."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import onnx_graphsurgeon as gs

from transforms.conversion.record import Record
from transforms.conversion.standard_form import Formed, StandardForm
from transforms.graph.selection import Selection
from transforms.plan.scheme_targets import SchemeTargets
from transforms.scheme import Scheme


class Rewritten(Formed, Protocol):
    """A graph to be rewritten according to a scheme; ``targets``: what it names, after ``name_targets``."""

    scheme: Scheme
    targets: SchemeTargets | None

    @property
    def named(self) -> SchemeTargets:
        """The targets; ValueError before they are resolved."""


class BySchemeMixin:
    """Properties of a graph's form that follow from the scheme and its targets."""

    scheme: Scheme
    targets: SchemeTargets | None

    @property
    def named(self) -> SchemeTargets:
        """The scheme's targets; ValueError before the row that resolves them."""
        if self.targets is None:
            raise ValueError("the graph is not prepared yet: step 'name_targets' comes first")
        return self.targets

    @property
    def exclude(self) -> Selection:
        """The nodes that stay float."""
        return self.named.excluded

    @property
    def form(self) -> StandardForm:
        """The form that the scheme quantizes."""
        scheme = self.scheme
        return StandardForm(scheme.optimize, newest=scheme.opset, keep_tied=_keeps_tied(scheme))


@dataclass
class Rewriting(BySchemeMixin):
    """A graph to be rewritten according to a scheme, without samples."""

    graph: gs.Graph
    scheme: Scheme
    record: Record = field(default_factory=Record)
    targets: SchemeTargets | None = None


def _keeps_tied(scheme: Scheme) -> bool:
    """Return whether heads multiply by the Transpose of an embedding: in weight-only and float schemes."""
    activation, mixing = scheme.format(scheme.activation), scheme.auto_mixed_precision
    if mixing is not None:
        choices = mixing.choices(scheme.activation, scheme.weight)
        names = (scheme.activation, *(choice.activation or scheme.activation for choice in choices))
        return all(scheme.format(name) is None for name in names)
    return activation is None or (activation.is_float and scheme.weight == scheme.activation)
