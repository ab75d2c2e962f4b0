"""What the search for layers that have to be finer found."""

from __future__ import annotations

from collections.abc import Iterator

from transforms.graph.some_names import counted
from transforms.origins.finer_layers import Reached
from transforms.origins.held_out import HeldOut
from transforms.search.target import Target


def reached_lines(found: Reached, target: Target, fallback: str, apart: HeldOut) -> Iterator[str]:
    """Yield what the target took: the metric before and after, the layers by name, and their price."""
    where = counted(len(apart.feeds), "held-out sample")
    if not apart.is_apart:
        where = f"{counted(len(apart.feeds), 'sample')}, too few to hold any out"
    if not found.layers:
        yield f"Target of {target.bound}: {target.text(found.before)} on {where}, no layer needs {fallback}"
        return
    change = f"{target.text(found.before)} -> {target.text(found.after)}"
    yield f"Target of {target.bound}: {change} on {where}"
    yield f"In {fallback}: {len(found.layers)} of {counted(found.count, 'layer')}"
    for part in found.layers:
        others = f" with {', '.join(part.nodes[1:])}" if part.nodes[1:] else ""
        yield f"  {part.name} ({part.op}){others}"
    more = found.bytes_after - found.bytes_before
    share = 100 * more / max(found.bytes_before, 1)
    yield f"Price: {more:+,} bytes of weights ({share:+.0f} %)"
