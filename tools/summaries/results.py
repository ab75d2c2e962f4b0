"""What a comparison of results says beside its tables: errors after steps, figures of language models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from tools.summaries.words import figure
from transforms.graph.some_names import counted

if TYPE_CHECKING:
    from transforms.compare.language import Language


def step_lines(steps: Mapping[str, Mapping[int, float]]) -> Iterator[str]:
    """Yield lines on the SQNR of each output over the first steps of sequences; none without steps."""
    if steps:
        yield "Sqnr over the first steps of sequences:"
    for output, by_mark in steps.items():
        marks = (f"{figure(db, 4)} dB ({counted(mark, 'step')})" for mark, db in by_mark.items())
        yield f"  {output or 'output'}: {', '.join(marks)}"


def language_lines(language: Language) -> Iterator[str]:
    """Yield lines on what a language model loses."""
    yield f"KL divergence: {language.kl:.4g} nats per token, over {language.tokens:,} tokens"
    yield f"Same first choice: {language.same:.1%}"
    if language.perplexity:
        before, after = language.perplexity
        yield f"Perplexity: {before:.2f} -> {after:.2f}"
