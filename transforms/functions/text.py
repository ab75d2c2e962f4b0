"""Pieces of function bodies, as text of ``onnx.parser``.

The power of two at or below a number is |q - (1 - u) q| with q = (1 / 2u + 1) times the number and u half a
unit in the last place of 1 (S. M. Rump, T. Ogita, S. Oishi, Accurate floating-point summation I, algorithm
3.5): a few basic operations, right for every number that neither overflows nor underflows, and no logarithm.
(1 - u) q is written as q - u q, because ONNX Runtime drops products with a constant that is nearly 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Numbers = float | Sequence[float] | Sequence[Sequence[float]]


def constant(name: str, kind: str, numbers: Numbers) -> str:
    """Return the line that defines a constant of an element type: one number, a vector or a matrix."""
    array = np.asarray(numbers)
    shape = f"[{', '.join(map(str, array.shape))}]" if array.shape else ""
    flat = array.reshape(-1).tolist()
    return f"{name} = Constant <value = {kind}{shape} {{{', '.join(map(repr, flat))}}}> ()\n"


def attribute(name: str, *, key: str | None = None) -> str:
    """Return the line that reads an integer attribute of the call."""
    return f"{name} = Constant <value_int: int = @{key or name}> ()\n"


def choice(name: str, key: str, legal: Sequence[Sequence[str]]) -> str:
    """Return lines for a vector with 1 at the place of a string attribute's value, among groups of aliases.

    No operator but this one reads strings before opset 19.
    """
    words = ", ".join(f'"{word}"' for words in legal for word in words)
    places = ", ".join(str(place) for place, words in enumerate(legal) for _ in words)
    return f"""{name}_text = Constant <value_string: string = @{key}> ()
{name}_texts = Reshape({name}_text, one)
{name} = TfIdfVectorizer <mode = "TF", min_gram_length = 1, max_gram_length = 1, max_skip_count = 0,
    pool_strings = [{words}], ngram_counts = [0], ngram_indexes = [{places}]> ({name}_texts)
"""


def either(result: str, condition: str, then: str, otherwise: str) -> str:
    """Return an If on a condition that is constant in a model, so that runtimes fold it."""
    return f"""{result} = If ({condition}) <
    then_branch = {result}_then () => ({result}_a) {{ {then} }},
    else_branch = {result}_else () => ({result}_b) {{ {otherwise} }}>
"""


def power_of_two(result: str, number: str, kind: str) -> str:
    """Return lines for the power of two at or below numbers of a type; 0 gives 0."""
    digits = {"float": 24, "double": 53}[kind]
    return f"""{constant(f"{result}_scale", kind, 2.0 ** (digits - 1) + 1)}{
        constant(f"{result}_last", kind, 2.0**-digits)
    }{result}_q = Mul({number}, {result}_scale)
{result}_u = Mul({result}_q, {result}_last)
{result}_r = Sub({result}_q, {result}_u)
{result}_s = Sub({result}_q, {result}_r)
{result} = Abs({result}_s)
"""


def rounded(result: str, number: str) -> str:
    """Return lines that round to integers, ties by ``rounding_mode``. The sign of a zero stays."""
    r = result
    ties = f"""{r}_even = Round({number})
{r}_rest = Sub({number}, {r}_even)
{r}_far = Abs({r}_rest)
{r}_tie = Equal({r}_far, half)
{r}_sign = Sign({number})
{r}_step = Mul({r}_sign, half)
{r}_away = Add({number}, {r}_step)
{r}_up = Ceil({number})
{r}_other = Where(ties_up, {r}_up, {r}_away)
{r}_change = Sub({r}_even, {r}_other)
{r}_changes = Where({r}_tie, {r}_change, nothing)
{r}_b = Sub({r}_even, {r}_changes)"""
    return either(result, "ties_even", f"{r}_a = Round({number})", ties)
