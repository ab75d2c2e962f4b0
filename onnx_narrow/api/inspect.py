"""What a model is, how it is stored and what it needs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import onnx

from onnx_narrow.api.result import Result
from onnx_narrow.api.sources import Model, source_of
from onnx_narrow.api.told import Told, Watcher
from onnx_narrow.api.usage import checked
from onnx_narrow.summaries import found_grids, inspection, listing
from transforms import model_io
from transforms.compare.inspect_model import inspect_model
from transforms.compare.list_model import list_model
from transforms.compare.model_differences import model_differences
from transforms.graph.found_grids import found_weights
from transforms.run.events import Events

_Said = tuple[dict[str, Any], Iterable[str]]
"""The content that is returned, and the same as lines of text."""


def inspect(
    model: Model,
    *,
    against: Model | None = None,
    layers: bool = False,
    tensors: bool = False,
    grids: bool = False,
    progress: Watcher | Events | None = None,
) -> dict[str, Any]:
    """Return what a model is, how it is stored and what it needs: ``onnx-narrow inspect --json``.

    Parameters
    ----------
    model : path, ModelProto or Graph
        The model to look at, of any size; external data may be missing.
    against : path, ModelProto or Graph, optional
        Another model: returns ``models``, and how it differs in ``differences``.
    layers, tensors : bool
        Return only the nodes, with names, operators, inputs and outputs, and the tensors, with types and
        shapes.
    grids : bool
        Return only the weights of products and the embeddings, with the grids that they lie on already; a
        program reads ``grid`` None for those on none.
    progress : Events, optional
        Told what ``onnx-narrow inspect`` prints.

    Raises
    ------
    TypeError, ValueError
        A ModelError where ``model`` is not a model.
    OSError
        If the model cannot be read.

    Examples
    --------
    >>> import onnx_narrow
    >>> onnx_narrow.inspect("tests/examples/digits.onnx")["ir_version"]
    8
    >>> found = onnx_narrow.inspect("tests/examples/digits.onnx", layers=True)
    >>> found["layers"][0]["operator"]
    'Conv'
    """
    checked("inspect", locals())
    with Told(progress) as told:
        if grids:
            content, lines = _on_grids(model)
        elif layers or tensors:
            content, lines = _listed(model, layers=layers, tensors=tensors)
        else:
            content, lines = _inspected(model) if against is None else _differing(model, against)
        told.tell(lines)
    plain: dict[str, Any] = json.loads(json.dumps(content))
    return plain


def _inspected(model: Model) -> _Said:
    facts = inspect_model(_readable(model))
    return inspection.as_json(facts), inspection.lines(facts)


def _differing(model: Model, against: Model) -> _Said:
    both = inspect_model(_readable(model)), inspect_model(_readable(against))
    differences = model_differences(*both)
    content = {
        "models": [inspection.as_json(facts) for facts in both],
        "differences": vars(differences),
    }
    return content, inspection.against(*both, differences)


def _listed(model: Model, *, layers: bool, tensors: bool) -> _Said:
    listed = list_model(_readable(model))
    content = listing.as_json(listed, layers=layers, tensors=tensors)
    return content, listing.lines(listed, layers=layers, tensors=tensors)


def _on_grids(model: Model) -> _Said:
    weights = list(found_weights(source_of(model).load()))
    return found_grids.as_json(weights), found_grids.lines(weights)


def _readable(model: Model) -> Path | onnx.ModelProto:
    """Return a model as a file or as an unparsed message: any model, whether it runs or not.

    Raises TypeError where it is not a model.
    """
    if isinstance(model, Result):
        return model.path or model.model
    if isinstance(model, str | os.PathLike):
        return Path(model)
    return model if isinstance(model, onnx.ModelProto) else model_io.to_proto(source_of(model).load())
