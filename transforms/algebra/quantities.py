"""The quantities of a normalisation or an activation: x, its mean and mean square, rsqrt, erf and tanh of it,
and ``relu6``, which is min(max(x + 3, 0), 6).

``rsqrt`` with parameter e stands for ``1 / sqrt(square - mean^2 + e)``.
"""

from __future__ import annotations

import numpy as np

from transforms.algebra.polynomial import ONE, Monomial, Polynomial, Symbol, is_close, monomial

X, MEAN, SQUARE, ERF, TANH, RELU6 = (Symbol(name) for name in ("x", "mean", "square", "erf", "tanh", "relu6"))
RSQRT = "rsqrt"

ERF_ARGUMENT = {monomial(x=1): float(np.sqrt(0.5))}
TANH_ARGUMENT = {
    monomial(x=1): float(np.sqrt(2 / np.pi)),
    monomial(x=3): float(np.sqrt(2 / np.pi)) * 0.044715,
}
RELU6_ARGUMENT: dict[Monomial, float] = {monomial(x=1): 1.0, ONE: 3.0}
_POWERS_OF_X: tuple[Monomial, ...] = (ONE, ((MEAN, 1),), ((SQUARE, 1),))


def variance_form(polynomial: Polynomial, tolerance: float) -> tuple[float, float] | None:
    """Return (c, e) of a polynomial that is c * (variance + e) with c > 0 and e >= 0, else None."""
    scale, mean_square = polynomial.get(((SQUARE, 1),)), polynomial.get(((MEAN, 2),))
    if len(polynomial.terms) > 3 or not polynomial.is_uniform or scale <= 0:
        return None
    if not is_close(-scale, mean_square, tolerance):
        return None
    offset = float(polynomial.get(ONE) / scale)
    is_whole = polynomial.terms.keys() <= {ONE, ((SQUARE, 1),), ((MEAN, 2),)}
    return (float(scale), offset) if is_whole and offset >= 0 else None


def inverse(polynomial: Polynomial, tolerance: float) -> Polynomial | None:
    """Return one divided by the polynomial, or None if that is not a polynomial."""
    form = variance_form(polynomial, tolerance)
    if form is not None:
        return Polynomial({((Symbol(RSQRT, form[1]), 2),): np.asarray(1 / form[0])})
    term = polynomial.single()
    if term is None or not np.all(term[1]):
        return None
    return Polynomial({tuple((symbol, -power) for symbol, power in term[0]): 1 / term[1]})


def square_root(polynomial: Polynomial, tolerance: float) -> Polynomial | None:
    """Return the root of a variance plus epsilon, or of an even power of such a root, else None."""
    form = variance_form(polynomial, tolerance)
    if form is not None:
        return Polynomial({((Symbol(RSQRT, form[1]), -1),): np.asarray(np.sqrt(form[0]))})
    term = polynomial.single()
    if term is None or np.any(term[1] <= 0):
        return None
    if any(symbol.name != RSQRT or power % 2 for symbol, power in term[0]):
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
    found = square_root(base, tolerance) if abs(number) == 0.5 else base
    if found is not None and number < 0:
        found = inverse(found, tolerance)
    if found is None:
        return None
    result = found
    for _ in range(int(abs(number)) - 1):
        result = result * found
    return result


def greater(left: Polynomial, right: Polynomial, tolerance: float) -> Polynomial | None:
    """Return the greater of a variance and 0, which is the variance up to rounding errors; None otherwise."""
    for one, other in ((left, right), (right, left)):
        if variance_form(one, tolerance) and not any(map(np.any, other.terms.values())):
            return one
    return None


def mean(polynomial: Polynomial) -> Polynomial | None:
    """Return the mean over the axes: ``mean`` for x, ``square`` for x^2, what does not vary for itself.

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
