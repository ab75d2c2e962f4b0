"""Compute the metadata of a quantized model, and the bytes of its files."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from transforms import model_io
from transforms.conversion.record import Record
from transforms.model import provenance
from transforms.pipelines.work import SCHEME_ENTRY, Work
from transforms.scheme import Scheme
from transforms.search.target import TargetError


def entries(work: Work, scheme: Scheme, record: Record) -> dict[str, str]:
    """Return the metadata: tool, version, options, the digest of the source, scheme and decisions."""
    origin = provenance.entries("quantize", work.options.recorded, work.record.source_sha256)
    return {
        **origin,
        SCHEME_ENTRY: scheme.to_toml(),
        **record.decisions.entries(),
        **work.record.metric_entries,
    }


def bytes_written(
    work: Work,
    graph: gs.Graph,
    scheme: Scheme,
    record: Record,
    exported: model_io.Exported | None = None,
) -> int:
    """Return an upper bound of the bytes of the files of a graph."""
    return model_io.bytes_written(
        graph,
        metadata=entries(work, scheme, record),
        external_data=work.options.external_data,
        functions=work.options.functions,
        exported=exported,
    )


def final_entries(work: Work) -> dict[str, str]:
    """Return the metadata of the final model.

    Raises TargetError for a file above the ``size_target`` of mixed precision: tuning, or nodes left in float
    after the first run, may enlarge a model.
    """
    rule = work.asked.auto_mixed_precision
    if rule is not None and rule.size_target is not None:
        exported = None if work.record.first is None else work.record.first.exported
        size = bytes_written(work, work.graph, work.scheme, work.record, exported)
        if size > rule.size_target:
            raise TargetError(f"size_target {rule.size_target:,} bytes is exceeded: the model takes {size:,}")
    return entries(work, work.scheme, work.record)
