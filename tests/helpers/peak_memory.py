"""The peak of memory that the system cannot take back from a process: mapped files do not count."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_PAUSE = 0.002  # seconds between two looks
_FIELDS = re.compile(r"^Rss(?:Anon|Shmem):\s+(\d+) kB$", re.M)


def anonymous_peak(arguments: Sequence[str]) -> int:
    """Run ``python ARGUMENTS`` from the project's root to its end; return the most bytes that it held.

    Linux only. Raises CalledProcessError if the process fails.
    """
    with subprocess.Popen(
        [sys.executable, *arguments], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        peak, status = 0, Path(f"/proc/{process.pid}/status")
        while process.poll() is None:
            peak = max(peak, sum(map(int, _FIELDS.findall(status.read_text()))))
            time.sleep(_PAUSE)
        assert process.stderr is not None, "a pipe"
        if process.returncode:
            raise subprocess.CalledProcessError(
                process.returncode, process.args, stderr=process.stderr.read()
            )
    return peak * 1024
