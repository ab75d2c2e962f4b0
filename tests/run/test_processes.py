"""Processes that work for this one. Oracle: which of them are there, and what their tasks leave."""

from __future__ import annotations

import multiprocessing
import os
import time
from concurrent.futures import FIRST_COMPLETED, wait
from pathlib import Path

import pytest

from tests.helpers import tasks
from tests.helpers.tool_process import wait_for
from transforms.run.processes import open_processes


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_tasks_that_run_and_wait_are_dropped_with_the_block(tmp_path: Path) -> None:
    late = [tasks.LateSquare(float(n), 1200, str(tmp_path)) for n in range(8)]
    with pytest.raises(RuntimeError, match="enough"), open_processes(2) as executor:
        futures = [executor.submit(tasks.late_square, one) for one in late]
        wait_for(lambda: len(list(tmp_path.iterdir())) == 2)
        for future in futures:
            future.cancel()
        raise RuntimeError("enough")
    wait_for(lambda: not multiprocessing.active_children())
    assert len(list(tmp_path.iterdir())) == 2


def test_results_are_there_at_the_end_of_the_block() -> None:
    with open_processes(2) as executor:
        assert wait([executor.submit(os.getpid)], return_when=FIRST_COMPLETED).done
        late = executor.submit(time.sleep, 0.2)
    assert late.done() and late.exception() is None and multiprocessing.active_children() == []
