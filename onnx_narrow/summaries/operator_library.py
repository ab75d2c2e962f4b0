"""Which library of operators a model needs that ONNX Runtime does not have, in words."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from transforms.functions import DOMAIN as PACKED
from transforms.graph import walk
from transforms.graph.rewire import STANDARD_DOMAINS

_OURS = ("ai.onnx.contrib", "com.amd.quark")
_BUILT_IN = ("ai.onnx.ml", "com.microsoft", PACKED)
_LIBRARY = "this package's (ops.register_custom_ops, or ops.get_library_path)"
_INSIDE = "none (standard-operator functions inside; faster with ours)"


def needed_library(graph: gs.Graph, *, functions: bool) -> str | None:
    """Return the libraries to register for the nodes of a graph that was saved, or None.

    With ``functions`` the model has them for all operators of ours.
    Operators of onnx and those that ONNX Runtime brings along need nothing. No library of ours has the
    operators of any other domain.
    """
    domains = {node.domain for node in walk.nodes(graph) if node.domain not in STANDARD_DOMAINS}
    foreign = sorted(domain for domain in domains if domain not in _OURS and not _is_built_in(domain))
    has_ours = bool(domains & set(_OURS))
    needed = [_LIBRARY] if has_ours and not functions else []
    if foreign:
        names = ", ".join(f"'{domain}'" for domain in foreign)
        needed.append(f"one that is not this package's, for the operators of domain {names}")
    return " and ".join(needed) or (_INSIDE if has_ours else None)


def _is_built_in(domain: str) -> bool:
    return any(domain == one or domain.startswith(f"{one}.") for one in _BUILT_IN)
