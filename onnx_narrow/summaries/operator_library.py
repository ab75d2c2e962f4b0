"""Which library of operators a model needs that ONNX Runtime does not have, in words."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_graphsurgeon as gs

from transforms.functions import DOMAIN as PACKED
from transforms.graph import walk
from transforms.graph.rewire import STANDARD_DOMAINS

OURS = ("ai.onnx.contrib", "com.amd.quark")
_BUILT_IN = ("ai.onnx.ml", "com.microsoft", PACKED)
_LIBRARY = "this package's (ops.register_custom_ops, or ops.get_library_path)"
INSIDE = "standard-operator functions inside"


def needed_library(graph: gs.Graph, *, functions: bool) -> str | None:
    """Return the libraries to register for the nodes of a graph that was saved, or None.

    With ``functions`` the model has them for all operators of ours.
    Operators of onnx and those that ONNX Runtime brings along need nothing. No library of ours has the
    operators of any other domain.
    """
    domains = {node.domain for node in walk.nodes(graph) if node.domain not in STANDARD_DOMAINS}
    foreign = sorted(domain for domain in domains if domain not in OURS and not _is_built_in(domain))
    has_ours = bool(domains & set(OURS))
    inside = f"none ({INSIDE}; faster with ours)" if has_ours else None
    return named(foreign, ours=has_ours and not functions) or inside


def named(foreign: Sequence[str], *, ours: bool) -> str:
    """Return the libraries to register for operators of ``foreign`` domains, and of ours; empty for none."""
    names = ", ".join(f"'{domain}'" for domain in foreign)
    other = f"one that is not this package's, for the operators of domain {names}"
    return " and ".join([*([_LIBRARY] if ours else []), *([other] if foreign else [])])


def _is_built_in(domain: str) -> bool:
    return any(domain == one or domain.startswith(f"{one}.") for one in _BUILT_IN)
