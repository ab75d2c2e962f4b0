"""Oracle: lines of /proc/cpuinfo written here."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from transforms.runtime.processor import has_vnni


@pytest.mark.parametrize(
    ("flags", "found"),
    [("fpu avx2 avx_vnni", True), ("fpu avx512_vnni", True), ("fpu avx2 avx512bw", False), ("", False)],
)
def test_flags_of_x86(flags: str, found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    info = tmp_path / "cpuinfo"
    info.write_text(f"processor\t: 0\nflags\t\t: {flags}\nbugs\t\t: x\n")
    assert has_vnni(info) is found


def test_what_is_not_known_and_other_processors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "AMD64")
    assert has_vnni(tmp_path / "absent") is None
    (tmp_path / "empty").write_text("processor: 0\n")
    assert has_vnni(tmp_path / "empty") is None
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert has_vnni(tmp_path / "absent") is True
