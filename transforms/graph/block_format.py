"""The block format that a node rounds to."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from ops.formats import Format, format_of


def block_format_of(node: gs.Node) -> Format | None:
    """Return the format of a block operator, with defaults for missing attributes; None for other nodes.

    Raises ValueError naming node, attribute and value if the operator does not accept them.
    """
    try:
        return format_of(node.op, node.attrs)
    except ValueError as error:
        raise ValueError(f"node '{node.name}': {error}") from None
