r"""Values: what an expression comes to at a point, to as many digits as it needs.

Called by expressions.py with sympy's trees, not evaluated. Exact where the tree only adds, multiplies and raises to whole powers, else to
80 digits or more. A sum or product whose last index is a variable is added up term by term at a whole point, for sympy would look for a
closed form, which may never end.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

_FEWEST_DIGITS = 80
_DIGITS_BELOW_THE_SMALLEST = 50
_MOST_DIGITS = 1100
_DIGITS_OF_NOISE = 20
"""So many of the digits computed may be wrong; two values that agree in all others are equal."""
_MOST_DIGITS_INSIDE = 5
"""Times the digits asked for."""
_NOISE_BITS = 20
"""sympy marks what is left of a difference of equal numbers by a precision of a few bits."""
_MOST_BITS_OF_A_POWER = 1_000_000
_LARGEST_EXACT_FACTORIAL = 3000
_MOST_TERMS = 200
"""Of a sum whose bound is a variable; the points are no larger."""


@dataclass(frozen=True, slots=True)
class Value:
    """A complex number."""

    real: Fraction
    imaginary: Fraction = Fraction(0)
    is_exact: bool = False
    num_digits: int = _FEWEST_DIGITS

    @property
    def size(self) -> Fraction:
        return max(abs(self.real), abs(self.imaginary))

    def times(self, other: "Value") -> "Value":
        real = self.real * other.real - self.imaginary * other.imaginary
        imaginary = self.real * other.imaginary + self.imaginary * other.real
        return Value(real, imaginary, self.is_exact and other.is_exact, min(self.num_digits, other.num_digits))

    def equals(self, other: "Value") -> bool:
        if self.is_exact and other.is_exact:
            return (self.real, self.imaginary) == (other.real, other.imaginary)
        size = max(self.size, other.size)
        tolerance = size * Fraction(1, 10 ** (min(self.num_digits, other.num_digits) - _DIGITS_OF_NOISE))
        return max(abs(self.real - other.real), abs(self.imaginary - other.imaginary)) <= tolerance


def num_digits_for(*expressions: Any) -> int | None:
    r"""How many digits tell expressions apart from what they are without their smallest number: `\pi + 10^{-70}` from `\pi`.

    None where they would have to be more than 1,100.
    """
    smallest = min((_smallest_log10(expression) for expression in expressions), default=0.0)
    needed = max(_FEWEST_DIGITS, math.ceil(-smallest) + _DIGITS_BELOW_THE_SMALLEST) if smallest > -_MOST_DIGITS else _MOST_DIGITS + 1
    return needed if needed <= _MOST_DIGITS else None


def _smallest_log10(node: Any) -> float:
    """About the decimal logarithm of the smallest number that is a fraction or a power; 0 where there is none."""
    import sympy

    own = 0.0
    if isinstance(node, sympy.Rational) and node.p:
        own = math.log10(abs(int(node.p))) - math.log10(int(node.q))
    elif isinstance(node, sympy.Pow | sympy.exp) and not node.free_symbols:
        try:
            size = _fraction(abs(node.evalf(5, maxn=50)))
        except (MemoryError, RecursionError):
            raise
        except Exception:  # border: sympy raises anything for what has no value
            size = Fraction(0)
        own = math.log10(size.numerator) - math.log10(size.denominator) if size else 0.0
    return min([own, *(_smallest_log10(child) for child in getattr(node, "args", ()))])


def value_of(expression: Any, values: Mapping[str, Fraction], num_digits: int = _FEWEST_DIGITS) -> Value | None:
    """None where sympy finds no finite number. `i` is the imaginary unit."""
    import sympy

    substitution = {
        symbol: sympy.I if symbol.name == "i" else sympy.Rational(values[symbol.name].numerator, values[symbol.name].denominator)
        for symbol in symbols_of(expression)
    }
    try:
        expression = _added_up(expression, substitution)
        exact = _exact(expression, substitution)
        if exact is not None:
            return Value(exact, is_exact=True)
        value = expression.evalf(num_digits, subs=substitution, maxn=num_digits * _MOST_DIGITS_INSIDE)
        parts = value.as_real_imag()
        is_known = all(part.is_Number and part.is_finite for part in parts)
        return Value(_fraction(parts[0]), _fraction(parts[1]), num_digits=num_digits) if is_known else None
    except MemoryError:
        raise
    except Exception:  # border: sympy raises anything for what has no value, a matrix or a set included
        return None


def symbols_of(expression: Any) -> set[Any]:
    return getattr(expression, "free_symbols", set())


def has_symbolic_bound(node: Any) -> bool:
    """Whether a sum or a product in the tree has as many terms as a variable says."""
    import sympy

    own = isinstance(node, sympy.Sum | sympy.Product) and any(bound.free_symbols for limit in node.limits for bound in limit[1:])
    return own or any(has_symbolic_bound(child) for child in getattr(node, "args", ()))


def _added_up(node: Any, substitution: Mapping[Any, Any]) -> Any:
    """The tree with each sum of a symbolic bound written out.

    Raises:
        ValueError: a bound is no whole number there, or too far away.
    """
    import sympy

    if not has_symbolic_bound(node):
        return node
    if not isinstance(node, sympy.Sum | sympy.Product):
        return node.func(*(_added_up(child, substitution) for child in node.args))
    *inner, (index, first, last) = node.limits
    first, last = (_exact(bound, substitution) for bound in (first, last))
    if first is None or last is None or first.denominator * last.denominator != 1 or last - first > _MOST_TERMS:
        raise ValueError("a bound that is no whole number")
    with sympy.evaluate(False):  # else sympy would compute each power at once, however large
        summand = node.func(node.function, *inner) if inner else node.function
        terms = [_added_up(summand.xreplace({index: sympy.Integer(int(at))}), substitution) for at in range(int(first), int(last) + 1)]
        return sympy.Add(*terms) if isinstance(node, sympy.Sum) else sympy.Mul(*terms)


def _exact(node: Any, substitution: Mapping[Any, Any]) -> Fraction | None:
    """The value without rounding, where the tree only adds, multiplies and raises to whole powers: 2^100 is not 2^100 + 1."""
    import sympy

    node = substitution.get(node, node)
    if node.is_Rational:
        return Fraction(int(node.p), int(node.q))
    if not isinstance(node, sympy.Add | sympy.Mul | sympy.Pow | sympy.factorial):
        return None
    parts = []
    for child in node.args:
        part = _exact(child, substitution)
        if part is None:
            return None
        parts.append(part)
    if isinstance(node, sympy.Pow):
        return _whole_power(*parts)
    if isinstance(node, sympy.factorial):
        whole = parts[0].denominator == 1 and 0 <= parts[0] <= _LARGEST_EXACT_FACTORIAL
        return Fraction(math.factorial(int(parts[0]))) if whole else None
    return sum(parts, Fraction(0)) if isinstance(node, sympy.Add) else math.prod(parts, start=Fraction(1))


def _whole_power(base: Fraction, exponent: Fraction) -> Fraction | None:
    size = max(abs(base.numerator), base.denominator).bit_length() * abs(exponent)
    if exponent.denominator != 1 or size > _MOST_BITS_OF_A_POWER or (base == 0 and exponent < 0):
        return None
    return base ** int(exponent)


def _fraction(number: Any) -> Fraction:
    if number.is_Float and number._prec < _NOISE_BITS:
        return Fraction(0)
    if number.is_Float:
        sign, mantissa, exponent, _ = number._mpf_
        return (-1) ** sign * Fraction(int(mantissa)) * Fraction(2) ** int(exponent)
    return Fraction(int(number.p), int(number.q))
