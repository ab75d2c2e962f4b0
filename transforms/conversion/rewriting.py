"""A graph that is rewritten as a scheme says: what the rows of a quantization read and change."""

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
    """A graph that is rewritten as a scheme says; ``targets``: what it names, after ``name_targets``."""

    scheme: Scheme
    targets: SchemeTargets | None

    @property
    def named(self) -> SchemeTargets:
        """The targets; ValueError before they are found."""


class BySchemeMixin:
    """What follows for the form of a graph from the scheme and what it names."""

    scheme: Scheme
    targets: SchemeTargets | None

    @property
    def named(self) -> SchemeTargets:
        """What the scheme names; ValueError before the row that finds it."""
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
    """A graph that is rewritten as a scheme says, without samples."""

    graph: gs.Graph
    scheme: Scheme
    record: Record = field(default_factory=Record)
    targets: SchemeTargets | None = None


def _keeps_tied(scheme: Scheme) -> bool:
    """Return whether heads multiply by the Transpose of an embedding: none has a format for weights alone."""
    activation, mixing = scheme.format(scheme.activation), scheme.auto_mixed_precision
    if mixing is not None:
        choices = mixing.choices(scheme.activation, scheme.weight)
        names = (scheme.activation, *(choice.activation or scheme.activation for choice in choices))
        return all(scheme.format(name) is None for name in names)
    return activation is None or (activation.is_float and scheme.weight == scheme.activation)
