"""Every operator: the models of the onnx package's own operator tests, some 1,900, through both converters.

``python -m pytest -m heavy`` runs this, in a few minutes. Oracle: what the full checker accepts and ONNX
Runtime's CPU provider loads before a conversion, both accept after it.
"""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from onnx_narrow.options import options
from tests.helpers import real_models
from tools import convert_fp16_to_bf16, convert_fp32_to_bf16

pytestmark = pytest.mark.heavy

REFUSED = {"test_scan_sum": "Scan of opset 8"}
NO_FLOAT = "tensor to convert"


def is_valid(model: Path) -> bool:
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception:
        return False
    return True


def loads(model: Path) -> bool:
    try:
        real_models.session(model)
    except Exception:
        return False
    return True


def failure(source: Path, target: Path, form: str, capsys: pytest.CaptureFixture[str]) -> str | None:
    """Return what is wrong with the conversion of one model, None where nothing is."""
    target.unlink(missing_ok=True)
    arguments = ["--input", str(source), "--output", str(target), "--format", form]
    errors = ""
    for tool in (convert_fp32_to_bf16, convert_fp16_to_bf16):
        code = tool.main(arguments)
        said = capsys.readouterr()
        errors = said.err + said.out * (code == 3)
        if "use tools." not in errors:
            break
    if code:
        return None if NO_FLOAT in errors else errors
    if not target.exists():
        return None
    if not is_valid(target):
        return "the result is not valid"
    return "the result does not load" if form != "bf16" and loads(source) and not loads(target) else None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", options("convert_bf16")["format"].kind.choices)
def test_operator_models_stay_valid_and_loadable(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from onnx.backend.test.case.node import collect_testcases

    failures, count = {}, 0
    for case in collect_testcases(None):
        source = tmp_path / "source.onnx"
        onnx.save(case.model, source)
        if not is_valid(source):
            continue
        count += 1
        wrong = failure(source, tmp_path / "target.onnx", form, capsys)
        if wrong and REFUSED.get(case.name, "\n") not in wrong:
            failures[case.name] = wrong
    assert count > 1000
    assert failures == {}
