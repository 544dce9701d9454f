"""Bounds of numbers as llguidance can hold them: it computes in 64-bit floats and 64-bit integers.

Bounds beyond those are moved inward, so that a number may be lost at the edge and none is gained.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from decimal import ROUND_CEILING, Context, Decimal
from fractions import Fraction
from typing import Any

from slipway.text.errors import GrammarError

Json = Any
Schema = dict[str, Any]

LEAST_INTEGER = -(2**63) + 1024
"""The float next to -2**63, which llguidance cannot negate."""
MOST_INTEGER = 2**63 - 1
ONE_SIDED_INTEGER = 10**18
"""From here on llguidance needs the other bound, too."""
WIDEST = 9 * 10**18
"""Of numbers that are no integers: the digits in front of the point are read as an integer of 64 bits."""
TINIEST = Decimal("1e-22")
"""llguidance reads JSON's numbers exactly with up to so many decimals and DIGITS digits."""
DIGITS = 15
MOST_DECIMALS = 10
"""Of `multipleOf`: llguidance reads no power of ten below that exactly."""
MOST_MULTIPLE = 10_000
"""Of the digits of `multipleOf`, without the point. Each remainder is a state of the lexer, whose number
LIMITS of `matcher.py` bounds: outputs under 65,536 ended by it."""

_KEYWORDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
_UPWARD = Context(prec=DIGITS, rounding=ROUND_CEILING, Emin=-30, Emax=400)
_EXACT = Context(prec=1200)
_NOTHING = {"minimum": 1, "maximum": 0}
"""Bounds of no number."""


def hold_bounds(schema: Schema) -> bool:
    """Write a schema's bounds as llguidance holds them exactly. Whether that took a `multipleOf`."""
    if schema.keys() & {"const", "enum"}:
        _keep_values(schema)
    step = _multiple(schema["multipleOf"]) if "multipleOf" in schema else None
    said = {keyword: _bound(keyword, schema.pop(keyword)) for keyword in _KEYWORDS if keyword in schema}
    if not said:
        return False
    named = schema.get("type")
    types = {named} if isinstance(named, str) else set(map(str, named)) if isinstance(named, list) else set()
    whole = "integer" in types and "number" not in types
    least, most = _integers(said) if whole else _floats(said)
    if whole and step is not None:
        step = Fraction(math.lcm(step.numerator, step.denominator), step.denominator)
    if least is not None and most is not None:
        low, high = _exactly(least), _exactly(most)
        if low > high or (step is not None and math.ceil(low / step) * step > high):
            schema |= _NOTHING
            return False
    schema |= {"minimum": least} if least is not None else {}
    schema |= {"maximum": most} if most is not None else {}
    return not whole and _exclude(schema, said, step)


def _keep_values(schema: Schema) -> None:
    """Drop listed numbers that are out of bounds. The bounds go, too, for they are about numbers alone."""
    said = {keyword: _bound(keyword, schema.pop(keyword)) for keyword in _KEYWORDS if keyword in schema}
    step = _step(schema.pop("multipleOf")) if "multipleOf" in schema else None

    def fits(value: Json) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return True
        if isinstance(value, float) and not math.isfinite(value):
            return True  # `check_constants` refuses it
        number = _number("enum", value)
        return (
            said.get("minimum", number) <= number <= said.get("maximum", number)
            and said.get("exclusiveMinimum", number - 1) < number < said.get("exclusiveMaximum", number + 1)
            and (step is None or number % step == 0)
        )

    listed = schema.get("enum")
    if isinstance(listed, list) and (kept := [value for value in listed if fits(value)]):
        schema["enum"] = kept
    elif isinstance(listed, list):
        schema |= _NOTHING
    if not fits(schema.get("const")):
        schema |= _NOTHING


def _exclude(schema: Schema, said: dict[str, Fraction], step: Fraction | None) -> bool:
    """Say an exclusive bound away from zero as such. Whether `multipleOf` bounds the decimals then.

    Under an inclusive bound of many digits llguidance has no shorter numbers: under 0.999 there is no 0.9.
    """
    decimals = MOST_DECIMALS
    for bound, excluded, sign in (("minimum", "exclusiveMinimum", -1), ("maximum", "exclusiveMaximum", 1)):
        edge = said.get(excluded, Fraction(0)) * sign
        if not 0 < edge <= WIDEST or said.get(bound, edge * sign) * sign < edge:
            continue
        few = min(decimals, max(0, DIGITS - len(str(int(edge)))))
        if step is not None and _digits(step) > few:
            continue
        decimals = few
        del schema[bound]
        schema[excluded] = _plain(-Fraction(_UPWARD.plus(_decimal(-edge))) * sign)
    if step is not None or not schema.keys() & {"exclusiveMinimum", "exclusiveMaximum"}:
        return False
    schema["multipleOf"] = float(f"1e-{decimals}") if decimals else 1
    return True


def check_constants(schema: Schema) -> None:
    """Raises GrammarError where `const` or `enum` has a number that llguidance would write as another."""
    for keyword in schema.keys() & {"const", "enum"}:
        for number in _numbers(schema[keyword]):
            if abs(number) > MOST_INTEGER or _as_written(number) != number:
                raise GrammarError(
                    f"{keyword} has the number {_shown(number)}, which a grammar cannot write digit by "
                    "digit; give it as a string, or leave it out"
                )


def check_multiples(schemas: Iterable[Schema]) -> None:
    """Raises GrammarError where `multipleOf` of several schemas could overflow when they are combined."""
    steps = {_multiple(schema["multipleOf"]) for schema in schemas if "multipleOf" in schema}
    if len(steps) < 2:
        return
    scale = max(_digits(step) for step in steps)
    whole = [int(step * 10**scale) for step in steps]
    if math.lcm(*whole) > MOST_MULTIPLE:
        raise GrammarError(
            "multipleOf of schemas that may apply together have no small common multiple; say multipleOf once"
        )


def _integers(said: dict[str, Fraction]) -> tuple[int | None, int | None]:
    lower = [math.ceil(said["minimum"])] if "minimum" in said else []
    lower += [math.floor(said["exclusiveMinimum"]) + 1] if "exclusiveMinimum" in said else []
    upper = [math.floor(said["maximum"])] if "maximum" in said else []
    upper += [math.ceil(said["exclusiveMaximum"]) - 1] if "exclusiveMaximum" in said else []
    least, most = max(lower, default=None), min(upper, default=None)
    if least is not None and most is not None and least > most:
        return _NOTHING["minimum"], _NOTHING["maximum"]
    if (least is not None and least > MOST_INTEGER) or (most is not None and most < LEAST_INTEGER):
        raise _out_of_reach(said, "integers have up to 64 bits here")
    if least is not None:
        least = _up(max(least, LEAST_INTEGER))
        most = MOST_INTEGER if most is None and least >= ONE_SIDED_INTEGER else most
    if most is not None:
        most = MOST_INTEGER if most >= MOST_INTEGER else -_up(-most)
        least = LEAST_INTEGER if least is None and most <= -ONE_SIDED_INTEGER else least
    if least is not None and most is not None and least > most:
        raise _out_of_reach(said, "no 64-bit float is between them")
    return least, most


def _up(least: int) -> int:
    """The least integer from this on that is a float."""
    near = float(least)
    return int(near if int(near) >= least else math.nextafter(near, math.inf))


def _floats(said: dict[str, Fraction]) -> tuple[float | int | None, float | int | None]:
    least = _lower(said.get("minimum"), said.get("exclusiveMinimum"))
    upper = _lower(_negated(said.get("maximum")), _negated(said.get("exclusiveMaximum")))
    most = _negated(upper)
    if least is not None and most is not None and least > most:
        if _have_a_number(said):
            raise _out_of_reach(said, f"numbers have at most {DIGITS} digits here")
        return _NOTHING["minimum"], _NOTHING["maximum"]
    if (least is not None and least > WIDEST) or (most is not None and most < -WIDEST):
        raise _out_of_reach(said, f"numbers are at most {WIDEST:.0e} here")
    if least is not None:
        least = max(least, Fraction(-WIDEST))
        most = Fraction(WIDEST) if most is None and least >= ONE_SIDED_INTEGER else most
    if most is not None:
        most = min(most, Fraction(WIDEST))
        least = Fraction(-WIDEST) if least is None and most <= -ONE_SIDED_INTEGER else least
    return _plain(least), _plain(most)


def _have_a_number(said: dict[str, Fraction]) -> bool:
    lower = [said[keyword] for keyword in ("minimum", "exclusiveMinimum") if keyword in said]
    upper = [said[keyword] for keyword in ("maximum", "exclusiveMaximum") if keyword in said]
    if max(lower) == min(upper):
        return said.get("exclusiveMinimum") != max(lower) and said.get("exclusiveMaximum") != min(upper)
    return max(lower) < min(upper)


def _lower(least: Fraction | None, above: Fraction | None) -> Fraction | None:
    """The least number, of few enough digits to be read exactly. None is no bound.

    Outputs have any number of digits: one above a bound by less than a float tells is read as the bound, so
    the next number of DIGITS digits is the least.
    """
    bounds = []
    for bound, excluded in ((least, False), (above, True)):
        if bound is None or abs(bound) > WIDEST:
            bounds += [] if bound is None else [bound]
            continue
        exact = _decimal(bound)
        near = _UPWARD.plus(exact)
        near = _UPWARD.next_plus(near) if excluded and near <= exact else near
        if abs(near) < WIDEST // 10**DIGITS:
            near = near.quantize(TINIEST, ROUND_CEILING, context=_EXACT)
        bounds.append(Fraction(near))
    return max(bounds, default=None)


def _decimal(number: Fraction) -> Decimal:
    return _EXACT.divide(Decimal(number.numerator), Decimal(number.denominator))


def _negated(bound: Fraction | None) -> Fraction | None:
    return None if bound is None else -bound


def _plain(bound: Fraction | None) -> float | int | None:
    if bound is None:
        return None
    return int(bound) if bound.denominator == 1 else float(bound)


def _exactly(number: float | int) -> Fraction:
    return Fraction(number) if isinstance(number, int) else _written(number)


def _written(number: float) -> Fraction:
    """What its shortest digits say."""
    return Fraction(Decimal(repr(number)))


def _number(keyword: str, value: Json) -> Fraction:
    if isinstance(value, int) and not isinstance(value, bool):
        return Fraction(value)
    if isinstance(value, float) and math.isfinite(value):
        return _written(value)
    raise GrammarError(f"{keyword} is a number, and not {str(value)[:80]}")


def _bound(keyword: str, value: Json) -> Fraction:
    """What a bound's digits say; of whole floats the narrower of that and of the float that is read of them.

    Integers are compared with a float exactly. Others are read as floats, whose order is that of digits.
    """
    digits = _number(keyword, value)
    if isinstance(value, float) and not value.is_integer():
        return digits
    narrower = max if keyword.lower().endswith("minimum") else min
    return narrower(digits, Fraction(value))


def _step(value: Json) -> Fraction:
    step = _number("multipleOf", value)
    if step <= 0:
        raise GrammarError(f"multipleOf is a number above 0, and not {_shown(value)}")
    return step


def _multiple(value: Json) -> Fraction:
    """Raises GrammarError for one that llguidance does not read as it is written."""
    step = _step(value)
    read, digits = float(value) if step <= MOST_MULTIPLE else math.inf, 0
    while read <= MOST_MULTIPLE and not read.is_integer():  # in this way, rounding included
        read, digits = read * 10, digits + 1
    if read > MOST_MULTIPLE or Fraction(int(read), 10**digits) != step:
        raise GrammarError(
            f"multipleOf {_shown(value)} has too many digits for a grammar; give one of at most "
            f"{MOST_MULTIPLE:,} without the point, or leave it out"
        )
    return step


def _digits(step: Fraction) -> int:
    """Behind the point."""
    return max(0, -int(_decimal(step).normalize(_EXACT).as_tuple().exponent))


def _numbers(value: Json) -> Iterator[int | float]:
    """Those in a value. Raises GrammarError for one that JSON does not have."""
    match value:
        case bool():
            return
        case float() if not math.isfinite(value):
            raise GrammarError(f"{value} is no number of JSON")
        case int() | float():
            yield value
        case list():
            for each in value:
                yield from _numbers(each)
        case dict():
            for each in value.values():
                yield from _numbers(each)


def _as_written(number: int | float) -> int | Fraction:
    """What llguidance writes of a number, which it reads with two roundings."""
    if isinstance(number, int):
        return int(float(number))
    _, digits, exponent = Decimal(repr(number)).as_tuple()
    power = float(f"1e{abs(int(exponent))}")
    coefficient = float("".join(map(str, digits)))
    read = coefficient / power if int(exponent) < 0 else coefficient * power
    read = math.copysign(read, number)
    return int(Decimal(repr(read))) if read.is_integer() else Fraction(read)


def _shown(number: Json) -> str:
    return str(number)[:40]


def _out_of_reach(said: dict[str, Fraction], why: str) -> GrammarError:
    named = ", ".join(
        f"{keyword} {float(bound):g}" for keyword, bound in said.items() if abs(bound) < 10**300
    )
    return GrammarError(f"no number can be held to {named or 'its bounds'}: {why}")
