"""Polynomials in a few named quantities, with arrays as coefficients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

CANCELLATION = 1e-6
"""A sum this much smaller than its summands is a rounding error of float32 constants, and counts as zero."""


class Symbol(NamedTuple):
    """A quantity that polynomials are built from; ``parameter`` tells apart two of one kind."""

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
    """A sum of coefficient times monomial; powers may be negative. Coefficients are float64, of any shapes
    that broadcast with each other."""

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
