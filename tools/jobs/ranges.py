"""Files of ranges that ``tools.quantize`` reads and writes."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.cli.output_file import check_writable
from tools.jobs.quantize_options import QuantizeJob
from transforms.files.cleanup import replacing
from transforms.files.named_file import named
from transforms.plan import range_files
from transforms.plan.tensor_grids import FixedGrids, TensorGrid
from transforms.scheme import Scheme

_ENCODINGS, _OWN = ".encodings", ".json"


def read(job: QuantizeJob, scheme: Scheme) -> FixedGrids:
    """Return the grids of ``--ranges``, none without it, and check that ``--export-ranges`` can be written.

    Raises ValueError for another kind of file, OSError if it cannot be read.
    """
    for words, path in (("--ranges", job.ranges), ("--export-ranges", job.export_ranges)):
        if path and scheme.auto_mixed_precision:
            raise ValueError(f"{words} goes with schemes without automatic mixed precision")
        if path and scheme.block_size:
            raise ValueError(f"{words} goes with schemes without block_size: files have no scales of blocks")
    if job.export_ranges:
        if scheme.finetune:
            raise ValueError("--export-ranges goes with schemes without fine-tuning, which changes scales")
        if job.data is not None and not job.ranges and scheme.fits_weights:
            words = "weights of few bits get other scales by the outputs"
            raise ValueError(f"--export-ranges goes with --fast here: {words} after their ranges are known")
        if job.export_ranges.suffix not in (_OWN, _ENCODINGS):
            raise ValueError(f"--export-ranges '{job.export_ranges}' ends neither in {_OWN} nor {_ENCODINGS}")
        check_writable(job.export_ranges, force=job.force, inputs=(job.input, job.ranges))
    return _grids(job.ranges) if job.ranges else FixedGrids()


def _grids(path: Path) -> FixedGrids:
    with named(path):
        found = FixedGrids(range_files.from_text(path.read_text(encoding="utf-8")))
        if not found:
            raise ValueError("no grid of integers is in it")
        return found


@contextmanager
def writing(job: QuantizeJob, grids: Collection[TensorGrid]) -> Iterator[None]:
    """Write the file of ``--export-ranges``, if it is given, which appears if the block succeeds."""
    if not job.export_ranges:
        yield
        return
    text = range_files.to_text(grids, encodings=job.export_ranges.suffix == _ENCODINGS)
    with replacing(job.export_ranges) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")
        yield


def line(job: QuantizeJob, grids: Collection[TensorGrid]) -> Iterator[str]:
    """Yield what was written, if it was asked for."""
    if job.export_ranges:
        yield f"Ranges of {len(grids)} tensors written to '{job.export_ranges}'"
