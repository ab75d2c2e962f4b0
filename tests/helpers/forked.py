"""Work in a fork of this process, which has imported what takes long."""

from __future__ import annotations

import gc
import os
import sys
import traceback
from collections.abc import Callable

_FAILED, _LEFT = 99, 98


def forked(work: Callable[[], int]) -> int:
    """Start a fork that leaves with the exit code that ``work`` returns; return its number.

    The code is 99 after an exception, whose traceback is printed, and 98 if it leaves with words.
    """
    child = os.fork()
    if child:
        return child
    code = _FAILED
    gc.freeze()  # a session of this process that nobody holds waits for its threads, which are not here
    try:
        code = work()
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else _LEFT
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
