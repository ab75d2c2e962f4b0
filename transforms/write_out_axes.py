"""Pad, Resize and CenterCropPad with a list of axes, rewritten to cover all axes.

Version 1.32 of ONNX Runtime moves Transposes, which its integer kernels also insert, across such a node as if
its values for some axes were values for all of them: the model fails, or has different outputs. Across
reductions, Slice, Split, Squeeze, normalizations and all others it moves them correctly.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_graphsurgeon as gs

from transforms.graph import walk
from transforms.graph.constants import Constants
from transforms.graph.rewire import onnx_op
from transforms.graph.shapes import Shape, shape_of
from transforms.plan.exact_arithmetic import shape_arithmetic

_ROI, _SCALES, _SIZES = 1, 2, 3  # inputs of Resize
_PADS, _PAD_AXES = 1, 3  # of Pad
_CROP = "tf_crop_and_resize"  # the only mode that reads the roi


def write_out_axes(graph: gs.Graph) -> int:
    """Write Pad, Resize and CenterCropPad with axes, also in bodies, without them; return how many.

    The axes that were not listed get pads of 0, scales of 1 and the sizes of the input. Each node computes
    the same. It stays unchanged if its rank is not known, if its region is computed, if its scales are
    computed from something else than shapes, or if it keeps an aspect ratio.
    """
    nodes = [node for node in walk.nodes(graph) if _has_axes(node)]
    if not nodes:
        return 0
    writer = _Writer(graph)
    written = sum(map(writer.write, nodes))
    for inner in walk.graphs(graph) if writer.new_nodes else ():
        inner.nodes = [
            placed for node in inner.nodes for placed in (*writer.new_nodes.get(id(node), ()), node)
        ]
    return written


def _has_axes(node: gs.Node) -> bool:
    if onnx_op(node) == "Pad":
        return len(node.inputs) > _PAD_AXES and not node.inputs[_PAD_AXES].is_empty()
    return onnx_op(node) in ("Resize", "CenterCropPad") and "axes" in node.attrs


class _Writer:
    """Rewrites nodes to cover all axes; ``new_nodes``: nodes to place before a node, by its id."""

    def __init__(self, graph: gs.Graph) -> None:
        self._constants, self._names = Constants(graph), walk.Names(graph)
        self._of_shapes = shape_arithmetic(graph)
        self.new_nodes: dict[int, list[gs.Node]] = {}

    def write(self, node: gs.Node) -> bool:
        """Rewrite a node to cover all axes; return whether that was possible."""
        data = node.inputs[0]
        shape = shape_of(data) or shape_of(node.outputs[0])
        listed = node.attrs.get("axes")
        if listed is None:
            listed = self._constants.integers(node.inputs[_PAD_AXES])
            if listed is None and shape is not None:
                return self._pad_computed(node, len(shape))
        if shape is None or listed is None or any(not -len(shape) <= axis < len(shape) for axis in listed):
            return False
        axes = [axis % len(shape) for axis in listed]
        if len(set(axes)) < len(axes):
            return False
        sizes = shape_of(data) or (None,) * len(shape)
        write = {"Pad": self._pad, "Resize": self._resize, "CenterCropPad": self._crop}[node.op]
        return write(node, axes, sizes)

    def _pad(self, node: gs.Node, axes: list[int], sizes: Shape) -> bool:
        pads = self._spread(node, node.inputs[_PADS], np.zeros(2 * len(sizes), np.int64), _ends(axes, sizes))
        return pads is not None and self._without_axes(node, pads)

    def _pad_computed(self, node: gs.Node, rank: int) -> bool:
        """Scatter the pads to computed axes; ONNX Runtime may also fold these to constants."""
        axes, pads = node.inputs[_PAD_AXES], node.inputs[_PADS]
        if axes.dtype not in (np.int32, np.int64):
            return False
        count = self._constant(node, np.array(rank, axes.dtype))
        starts = self._add(node, "Mod", [axes, count], None)
        ends = self._add(node, "Add", [starts, count], None)
        places = self._add(node, "Concat", [starts, ends], None, axis=0)
        zeros = self._constant(node, np.zeros(2 * rank, np.int64))
        spread = self._add(node, "ScatterElements", [zeros, places, pads], 2 * rank)
        return self._without_axes(node, spread)

    @staticmethod
    def _without_axes(node: gs.Node, pads: gs.Tensor) -> bool:
        value = node.inputs[2:_PAD_AXES]
        node.inputs = [node.inputs[0], pads, *(tensor for tensor in value if not tensor.is_empty())]
        return True

    def _crop(self, node: gs.Node, axes: list[int], sizes: Shape) -> bool:
        wanted = self._sizes(node, node.inputs[1], axes, sizes)
        if wanted is None:
            return False
        node.inputs = [node.inputs[0], wanted]
        del node.attrs["axes"]
        return True

    def _resize(self, node: gs.Node, axes: list[int], sizes: Shape) -> bool:
        inputs = [*node.inputs, *(gs.Variable.empty() for _ in range(len(node.inputs), _SIZES + 1))]
        roi = self._roi(node, inputs[_ROI], axes, sizes)
        by_sizes = not inputs[_SIZES].is_empty()
        if by_sizes:
            wanted = self._sizes(node, inputs[_SIZES], axes, sizes)
        else:
            wanted = self._scales(node, inputs[_SCALES], axes, sizes)
        keeps_ratio = by_sizes and node.attrs.get("keep_aspect_ratio_policy", "stretch") != "stretch"
        if wanted is None or roi is None or keeps_ratio:
            return False
        node.inputs = [inputs[0], roi, *((gs.Variable.empty(), wanted) if by_sizes else (wanted,))]
        for name in ("axes", "keep_aspect_ratio_policy"):
            node.attrs.pop(name, None)
        return True

    def _roi(self, node: gs.Node, roi: gs.Tensor, axes: list[int], sizes: Shape) -> gs.Tensor | None:
        """Return the region for all axes, None if it is computed; empty if the mode does not read it."""
        if roi.is_empty() or node.attrs.get("coordinate_transformation_mode", "half_pixel") != _CROP:
            return gs.Variable.empty()
        values = self._constants.values(roi)
        if values is None:
            return None
        full = np.repeat(np.array([0, 1], values.dtype), len(sizes))
        return self._spread(node, roi, full, _ends(axes, sizes))

    def _scales(self, node: gs.Node, scales: gs.Tensor, axes: list[int], sizes: Shape) -> gs.Tensor | None:
        """Return the scales for all axes, None if they are computed in floats that may get quantized."""
        maker = walk.producer(scales)
        if self._constants.values(scales) is None and (maker is None or id(maker) not in self._of_shapes):
            return None
        return self._spread(node, scales, np.ones(len(sizes), np.float32), axes)

    def _sizes(self, node: gs.Node, part: gs.Tensor, axes: list[int], sizes: Shape) -> gs.Tensor | None:
        """Return the sizes for all axes; axes that were not listed keep those of the input."""
        defaults = [0 if axis in axes else size for axis, size in enumerate(sizes)]
        if all(isinstance(size, int) for size in defaults):
            return self._spread(node, part, np.array(defaults, np.int64), axes)
        return self._spread(node, part, self._add(node, "Shape", [node.inputs[0]], len(sizes)), axes)

    def _spread(
        self, node: gs.Node, part: gs.Tensor, base: np.ndarray | gs.Tensor, places: Sequence[int]
    ) -> gs.Tensor | None:
        """Return ``base`` with ``part`` scattered to ``places``, None if lengths or types do not match."""
        values = self._constants.values(part)
        if values is not None and values.shape != (len(places),):
            return None
        if values is not None and isinstance(base, np.ndarray):
            filled = base.copy()
            filled[list(places)] = values
            return self._constant(node, filled)
        if isinstance(base, np.ndarray):
            base = self._constant(node, base)
        if values is not None:
            part = self._constant(node, values.astype(base.dtype))
        if part.dtype != base.dtype:
            return None
        at = self._constant(node, np.array(places, np.int64))
        return self._add(node, "ScatterElements", [base, at, part], base.shape[0])

    def _constant(self, node: gs.Node, values: np.ndarray) -> gs.Constant:
        return gs.Constant(self._names.derive(node.outputs[0].name, "axes"), values)

    def _add(
        self, node: gs.Node, op: str, inputs: list[gs.Tensor], size: object, **attrs: int
    ) -> gs.Variable:
        """Place a new node before another one; return its output, a vector."""
        dtype = np.int64 if op == "Shape" else inputs[0].dtype
        output = gs.Variable(self._names.derive(node.outputs[0].name, op.lower()), dtype, [size])
        label = self._names.derive(node.name or node.outputs[0].name, op.lower())
        self.new_nodes.setdefault(id(node), []).append(gs.Node(op, label, attrs, inputs, [output]))
        return output


def _ends(axes: list[int], sizes: Shape) -> list[int]:
    """Return the positions of the values for the start of each axis, then for its end."""
    return [*axes, *(axis + len(sizes) for axis in axes)]
