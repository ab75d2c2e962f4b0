"""The call that a command line asks for."""

from __future__ import annotations

from typing import Any

import onnx_narrow
from tools.cli.job import Job


def call(job: Job) -> Any:
    """Call the function of a job with its options, print what it tells, and return what it returns."""
    from tools.cli.printed import Printed

    return getattr(onnx_narrow, job.name)(**job.keywords(), progress=Printed(verbose=job.verbose))
