"""The lines of a comparison of results after its tables: errors over steps, figures of language models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from onnx_narrow.summaries.words import figure
from transforms.files.spelling import spelled
from transforms.graph.some_names import counted

if TYPE_CHECKING:
    from transforms.compare.compare_results import Comparison
    from transforms.compare.language import Greedy, Language
    from transforms.graph.output_view import OutputView


def step_lines(steps: Mapping[str, Mapping[int, float]]) -> Iterator[str]:
    """Yield lines on the SQNR of each output over the first steps of sequences; none without steps."""
    if steps:
        yield "Sqnr over the first steps of sequences:"
    for output, by_mark in steps.items():
        marks = (f"{figure(db, 4)} dB ({counted(mark, 'step')})" for mark, db in by_mark.items())
        yield f"  {output or 'output'}: {', '.join(marks)}"


def view_lines(view: OutputView) -> Iterator[str]:
    """Yield how the outputs of a language model were compared; nothing for other models."""
    for name in sorted(view.logits):
        yield f"Of the logits '{name}', the mean of each row is left out: Softmax cancels it"
    if view.caches:
        yield f"Caches, {counted(len(view.caches), 'output')}, do not enter what is said of all results"


def cache_line(results: Sequence[Comparison], view: OutputView) -> Iterator[str]:
    """Yield a line on the worst of the caches; nothing without caches."""
    from transforms.compare.compare_results import output_sqnr

    by_output = output_sqnr([result for result in results if result.output in view.caches])
    if by_output:
        name, least = by_output[0]
        yield f"  {least:6.1f} dB  the worst of {counted(len(by_output), 'cache')}, '{name}'"


def language_lines(language: Language | None) -> Iterator[str]:
    """Yield lines on what a language model loses; none if that is not known."""
    if language is None:
        return
    yield f"KL divergence: {language.kl:.4g} nats per token, over {language.tokens:,} tokens"
    yield f"Same first choice: {language.same:.1%}"
    if language.perplexity:
        before, after = language.perplexity
        yield f"Perplexity: {before:.2f} -> {after:.2f}"


def greedy_lines(greedy: Greedy | None) -> Iterator[str]:
    """Yield a line on what both models wrote; nothing if they wrote nothing."""
    if greedy is not None:
        yield (
            f"Greedy agreement: {greedy.same:.1%} of {counted(greedy.tokens, 'token')}, "
            f"{greedy.first:.1f} before the first other one, mean of {counted(greedy.texts, 'text')}"
        )


def missed(limits: Mapping[str, float], language: Language | None, greedy: Greedy | None) -> Iterator[str]:
    """Yield a line for each limit that is missed, by the name of its option."""
    measured: dict[str, float] = {}
    if language is not None:
        measured |= {"max_kl": language.kl, "min_same": language.same}
    if language is not None and language.perplexity:
        measured["max_perplexity"] = language.perplexity[1]
    if greedy is not None:
        measured["min_greedy"] = greedy.same
    for name, value in measured.items():
        limit = limits.get(name)
        if limit is None:
            continue
        if value > limit if name.startswith("max") else value < limit:
            yield f"{spelled(f'{{{name}:{limit:g}}}')} is missed: {value:.4g}"
