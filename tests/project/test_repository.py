"""What GitHub reads of the repository: workflows, issue forms, the citation. Oracle: the schemas of each."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys

import pytest

from tests.helpers.documents import ROOT, read

FILES = {
    "github-workflows": ".github/workflows/*.yml",
    "github-issue-forms": ".github/ISSUE_TEMPLATE/[!c]*.yml",
    "github-issue-config": ".github/ISSUE_TEMPLATE/config.yml",
    "citation-file-format": "CITATION.cff",
}


@pytest.mark.skipif(
    importlib.util.find_spec("check_jsonschema") is None, reason="check-jsonschema is not installed"
)
@pytest.mark.parametrize("schema", FILES)
def test_files_are_what_their_schema_says(schema: str) -> None:
    files = sorted(map(str, ROOT.glob(FILES[schema])))
    assert files
    command = ["check_jsonschema", "--builtin-schema", f"vendor.{schema}", "--default-filetype", "yaml"]
    done = subprocess.run([sys.executable, "-m", *command, *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_versions_agree() -> None:
    versions = {
        re.search(pattern, read(name), re.MULTILINE)[1]  # type: ignore[index]
        for name, pattern in {
            "pyproject.toml": r'^version = "(.+)"$',
            "CITATION.cff": r"^version: (.+)$",
        }.items()
    }
    assert len(versions) == 1
    assert f"## [{versions.pop()}] - " in read("CHANGELOG.md")


def test_badges_are_of_files_that_exist() -> None:
    for workflow in re.findall(r"actions/workflows/([\w.]+)", read("README.md")):
        assert (ROOT / ".github" / "workflows" / workflow).exists()
    oldest = re.search(r'requires-python = ">=(.+)"', read("pyproject.toml"))
    assert oldest and f"[![Python {oldest[1]}+]" in read("README.md")


def test_nothing_that_commands_make_is_kept() -> None:
    done = subprocess.run(
        ["git", "ls-files", "--cached", "--ignored", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        pytest.skip("no checkout")
    assert not done.stdout
