"""``--threads`` without samples. Oracle: the options of the sessions that are opened on models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest

from tests.helpers import build
from tools import convert_fp32_to_bf16, quantize


@pytest.mark.parametrize(
    ("tool", "options"),
    [
        *((quantize, ("--config", name)) for name in ("W8", "W4", "MX6", "FP16")),
        (convert_fp32_to_bf16, ()),
    ],
)
def test_threads_of_the_first_run(
    tool: Any, options: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    session = onnxruntime.InferenceSession

    class _Seen(session):  # type: ignore[misc, valid-type]
        def __init__(self, model: Any, settings: Any = None, *args: Any, **named: Any) -> None:
            seen.append(named.get("sess_options", settings).intra_op_num_threads)
            super().__init__(model, settings, *args, **named)

    monkeypatch.setattr(onnxruntime, "InferenceSession", _Seen)
    onnx.save(build.dense(64), tmp_path / "m.onnx")
    given = ["--input", str(tmp_path / "m.onnx"), "--output", str(tmp_path / "q.onnx"), "--force", *options]
    assert tool.main([*given, "--threads", "3"]) == 0
    assert 3 in seen
    with_three = seen.count(3)
    seen.clear()
    assert tool.main(given) == 0
    assert 3 not in seen and len(seen) >= with_three
