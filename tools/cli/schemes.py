"""The scheme of a command: a preset, a target or formats are required."""

from __future__ import annotations

from onnx_narrow.options.shared import TARGETS
from tools.cli.job import Job

_SCHEME = "one of --config NAME|FILE, --target {}, or --set activation=FORMAT and --set weight=FORMAT"


def why_no_scheme(job: Job, *missing: str, runtime: str = "NAME") -> str | None:
    """Return the error of a job without a scheme, or with more than one target, or None.

    ``missing``: other options that are required; ``runtime``: how the value of ``--target`` is written.
    """
    target = job.get("target", ())
    runtimes = [name for name in ([target] if isinstance(target, str) else target) if name in TARGETS]
    keys = {assignment.partition("=")[0].strip() for assignment in job.get("assignments", ())}
    has_scheme = job.get("config") or runtimes or keys >= {"activation", "weight"}
    required = [*missing, *([] if has_scheme else [_SCHEME.format(runtime)])]
    if required:
        return f"the following arguments are required: {', '.join(required)}"
    return (
        f"--target {runtimes[0]} and {runtimes[1]}: a model is made for one runtime" if runtimes[1:] else None
    )
