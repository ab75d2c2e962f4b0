"""The call that a command line asks for."""

from __future__ import annotations

import os
from typing import Any

import onnx_narrow
from tools.cli.job import Job


def call(job: Job) -> Any:
    """Call the function of a job with its options, print what it reports, and return its result."""
    from tools.cli.printed import Printed

    return getattr(onnx_narrow, job.name)(**job.keywords(), progress=Printed(verbose=job.verbose))


def call_on_one_thread(job: Job) -> Any:
    """Call the function of a job after :func:`keep_products_on_one_thread`."""
    keep_products_on_one_thread()
    return call(job)


def keep_products_on_one_thread() -> None:
    """Let NumPy's matrix products run on one thread, also where the environment asks for more.

    :mod:`transforms.run.run_each` does so, too, and explains why. This is for all of a tool and its
    processes, and does not import NumPy: it takes effect only before NumPy is imported.
    """
    for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
