"""Polynomials in the quantities of a normalisation or an activation, with arrays as coefficients.

Quantities are x, its mean and mean square, ``rsqrt``, erf and tanh of x, and ``relu6``, which is
min(max(x + 3, 0), 6). ``rsqrt`` with parameter e stands for ``1 / sqrt(square - mean^2 + e)``, ``rms`` for
``1 / sqrt(square + e)``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

CANCELLATION = 1e-6
"""Ratio below which a sum of cancelling terms is a rounding error of float32 constants and counts as 0."""


class Symbol(NamedTuple):
    """A quantity in polynomials; ``parameter`` distinguishes two of one kind."""

    name: str
    parameter: float = 0.0


Monomial = tuple[tuple[Symbol, int], ...]
ONE: Monomial = ()


def monomial(**powers: int) -> Monomial:
    """Return the product of symbols without parameter, ``monomial(x=2)`` for the square of ``x``."""
    return tuple(sorted((Symbol(name), power) for name, power in powers.items()))


def is_close(a: ArrayLike, b: ArrayLike, tolerance: float) -> bool:
    """Return whether all elements agree within a relative tolerance, broadcasting."""
    a, b = np.asarray(a), np.asarray(b)
    return bool(np.all(np.abs(a - b) <= tolerance * np.maximum(np.abs(a), np.abs(b))))


@dataclass(frozen=True)
class Polynomial:
    """A sum of coefficient times monomial; powers may be negative.

    Coefficients are float64, with shapes that broadcast with each other.
    """

    terms: Mapping[Monomial, NDArray[np.float64]]

    @classmethod
    def constant(cls, values: ArrayLike) -> Polynomial:
        """Return the polynomial that is a number or an array."""
        return cls({ONE: np.asarray(values, np.float64)})

    @classmethod
    def symbol(cls, symbol: Symbol) -> Polynomial:
        """Return one symbol."""
        return cls({((symbol, 1),): np.asarray(1.0)})

    @property
    def is_uniform(self) -> bool:
        """Whether every coefficient is a single number."""
        return all(coefficient.ndim == 0 for coefficient in self.terms.values())

    def has(self, symbol: Symbol) -> bool:
        """Return whether the symbol occurs."""
        return any(symbol == factor for product in self.terms for factor, _ in product)

    def get(self, product: Monomial) -> NDArray[np.float64]:
        """Return the coefficient of a monomial, 0 if it does not occur."""
        return self.terms.get(product, np.asarray(0.0))

    def __add__(self, other: Polynomial) -> Polynomial:
        total = dict(self.terms)
        for product, b in other.terms.items():
            a = total.pop(product, None)
            if a is None:
                total[product] = b
            elif np.any(np.abs(a + b) > CANCELLATION * np.maximum(np.abs(a), np.abs(b))):
                total[product] = a + b
        return Polynomial(total)

    def __neg__(self) -> Polynomial:
        return Polynomial({product: -coefficient for product, coefficient in self.terms.items()})

    def __sub__(self, other: Polynomial) -> Polynomial:
        return self + -other

    def __mul__(self, other: Polynomial) -> Polynomial:
        total = Polynomial({})
        for left, a in self.terms.items():
            for right, b in other.terms.items():
                total = total + Polynomial({_product(left, right): a * b})
        return total

    def single(self) -> tuple[Monomial, NDArray[np.float64]] | None:
        """Return the only term, or None if there are several or none."""
        return next(iter(self.terms.items())) if len(self.terms) == 1 else None

    def is_close(self, expected: Mapping[Monomial, float], tolerance: float) -> bool:
        """Return whether there are exactly these terms, with these coefficients up to rounding."""
        return self.terms.keys() == expected.keys() and all(
            is_close(self.terms[product], value, tolerance) for product, value in expected.items()
        )


def _product(left: Monomial, right: Monomial) -> Monomial:
    powers = dict(left)
    for symbol, power in right:
        powers[symbol] = powers.get(symbol, 0) + power
    return tuple(sorted((symbol, power) for symbol, power in powers.items() if power))


X, MEAN, SQUARE, ERF, TANH, RELU6 = (Symbol(name) for name in ("x", "mean", "square", "erf", "tanh", "relu6"))
RSQRT, RMS = "rsqrt", "rms"

ERF_ARGUMENT = {monomial(x=1): float(np.sqrt(0.5))}
TANH_ARGUMENT = {
    monomial(x=1): float(np.sqrt(2 / np.pi)),
    monomial(x=3): float(np.sqrt(2 / np.pi)) * 0.044715,
}
RELU6_ARGUMENT: dict[Monomial, float] = {monomial(x=1): 1.0, ONE: 3.0}
_POWERS_OF_X: tuple[Monomial, ...] = (ONE, ((MEAN, 1),), ((SQUARE, 1),))


def variance_form(polynomial: Polynomial, tolerance: float) -> tuple[float, Symbol] | None:
    """Return (c, s) of a polynomial that is c / s^2 with c > 0, else None.

    ``s`` is the inverse root of the variance, or of the mean square, plus e >= 0.
    """
    scale, mean_square = polynomial.get(((SQUARE, 1),)), polynomial.get(((MEAN, 2),))
    if len(polynomial.terms) > 3 or not polynomial.is_uniform or scale <= 0:
        return None
    is_centred = ((MEAN, 2),) in polynomial.terms
    if is_centred and not is_close(-scale, mean_square, tolerance):
        return None
    offset = float(polynomial.get(ONE) / scale)
    is_whole = polynomial.terms.keys() <= {ONE, ((SQUARE, 1),), ((MEAN, 2),)}
    return (float(scale), Symbol(RSQRT if is_centred else RMS, offset)) if is_whole and offset >= 0 else None


def inverse(polynomial: Polynomial, tolerance: float) -> Polynomial | None:
    """Return one divided by the polynomial, or None if that is not a polynomial."""
    form = variance_form(polynomial, tolerance)
    if form is not None:
        return Polynomial({((form[1], 2),): np.asarray(1 / form[0])})
    term = polynomial.single()
    if term is None or not np.all(term[1]):
        return None
    return Polynomial({tuple((symbol, -power) for symbol, power in term[0]): 1 / term[1]})


def square_root(polynomial: Polynomial, tolerance: float) -> Polynomial | None:
    """Return the root of a variance or mean square plus epsilon, or of an even power of it, else None."""
    form = variance_form(polynomial, tolerance)
    if form is not None:
        return Polynomial({((form[1], -1),): np.asarray(np.sqrt(form[0]))})
    term = polynomial.single()
    if term is None or np.any(term[1] <= 0):
        return None
    if any(symbol.name not in (RSQRT, RMS) or power % 2 for symbol, power in term[0]):
        return None
    return Polynomial({tuple((symbol, power // 2) for symbol, power in term[0]): np.sqrt(term[1])})


def quotient(left: Polynomial, right: Polynomial, tolerance: float) -> Polynomial | None:
    """Return one polynomial divided by another, or None if that is not a polynomial."""
    divisor = inverse(right, tolerance)
    return None if divisor is None else left * divisor


def power(base: Polynomial, exponent: Polynomial, tolerance: float) -> Polynomial | None:
    """Return the polynomial raised to the number 0.5, 1, 2 or 3, or to minus these; None otherwise."""
    number = float(exponent.get(ONE)) if exponent.is_uniform and exponent.terms.keys() == {ONE} else 0.0
    if abs(number) not in (0.5, 1, 2, 3):
        return None
    root = square_root(base, tolerance) if abs(number) == 0.5 else base
    if root is not None and number < 0:
        root = inverse(root, tolerance)
    if root is None:
        return None
    result = root
    for _ in range(int(abs(number)) - 1):
        result = result * root
    return result


def greater(left: Polynomial, right: Polynomial, tolerance: float) -> Polynomial | None:
    """Return the greater of a variance and 0, which is the variance up to rounding errors; None otherwise."""
    for variance, other in ((left, right), (right, left)):
        if variance_form(variance, tolerance) and not any(map(np.any, other.terms.values())):
            return variance
    return None


def mean(polynomial: Polynomial) -> Polynomial | None:
    """Return the mean over the axes: ``mean`` for x, ``square`` for x^2, constants for themselves.

    None if a coefficient may vary along the axes or a power of x has no name.
    """
    total = Polynomial({})
    for product, coefficient in polynomial.terms.items():
        power_of_x = dict(product).get(X, 0)
        if not 0 <= power_of_x < len(_POWERS_OF_X) or coefficient.ndim:
            return None
        rest = tuple(factor for factor in product if factor[0] != X)
        total = total + Polynomial({rest: coefficient}) * Polynomial(
            {_POWERS_OF_X[power_of_x]: np.asarray(1.0)}
        )
    return total
