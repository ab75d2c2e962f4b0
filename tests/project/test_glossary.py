"""Terms that summaries print are in the glossary. Oracle: the summary of a run, and the list here."""

from __future__ import annotations

import re

import pytest

from tests.helpers.documents import read

PAGE = read("docs/glossary.md")
TERMS = (
    *("activation", "bias", "block", "calibration", "equalized", "first choice", "full range", "headroom"),
    *("held-out samples", "kl divergence", "kept", "layers in float", "operator library", "outlier"),
    *("packed", "per channel", "preset", "range", "scale", "scheme", "sqnr", "standard error", "target"),
    *("tuned", "zero point"),
)
OLD = ("Extrapolated", "Wide", "room", "decided nothing", "what they are made of", "taken apart")
"""Words of earlier summaries that nobody understood."""


@pytest.mark.parametrize("term", TERMS)
def test_terms_are_explained(term: str) -> None:
    rows = re.findall(r"^\| ([^|]+) \| [^|]{8,} \|$", PAGE.lower(), re.MULTILINE)
    assert any(term in row for row in rows)


def test_the_page_is_short() -> None:
    assert len(PAGE.split()) <= 350


PAGES = ("README.md", "docs/integers.md", "docs/finetune.md", "docs/mixed_precision.md")


@pytest.mark.parametrize("page", PAGES)
def test_shown_summaries_have_one_vocabulary(page: str) -> None:
    shown = "".join(re.findall(r"^```text\n(.*?)^```", read(page), re.MULTILINE | re.DOTALL))
    assert not [word for word in OLD if re.search(rf"\b{word}\b", shown)]
