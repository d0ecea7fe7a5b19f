"""Text with a unit to base units and back. Nowhere else in the package is a unit converted.

Base units: byte, second, token, USD, joule, FLOP. A quantity is a number and a product of units,
as in ``80 GiB``, ``25 GB/s``, ``3.50 USD/hour`` or ``0.12 USD/kWh``.
Decimal and binary multiples are kept apart: ``GB`` is 1e9 bytes, ``GiB`` is 2**30.
"""

import re

from kvpaper.errors import hint

_SI = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
_HOUR = 3600.0
_DAY = 24 * _HOUR
_YEAR = 365.25 * _DAY

_KINDS = {
    "byte": {
        **{f"{prefix}B": factor for prefix, factor in (_SI | _BINARY).items()},
        **{f"{prefix}bit": factor / 8 for prefix, factor in _SI.items()},
        **{"byte": 1, "bytes": 1},
    },
    "FLOP": {f"{prefix}FLOP": factor for prefix, factor in _SI.items()},
    "joule": {
        **{f"{prefix}J": factor for prefix, factor in _SI.items()},
        **{f"{prefix}Wh": factor * _HOUR for prefix, factor in _SI.items()},
    },
    # Power is energy over time, so that W and J meet in one dimension.
    "joule/second": {f"{prefix}W": factor for prefix, factor in _SI.items()},
    "second": {
        **{"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1, "min": 60, "h": _HOUR},
        **{"hour": _HOUR, "day": _DAY, "month": _YEAR / 12, "year": _YEAR},
        **{"hours": _HOUR, "days": _DAY, "months": _YEAR / 12, "years": _YEAR},
    },
    "token": {"token": 1, "tokens": 1},
    "USD": {"USD": 1},
    # Counts: written where they help the reader, without a dimension of their own.
    "": {"request": 1, "requests": 1, "GPU": 1, "%": 0.01},
}
# name -> (factor to the base unit, base unit)
_UNITS = {name: (factor, kind) for kind, units in _KINDS.items() for name, factor in units.items()}
TIMES = ("ns", "us", "ms", "s", "min", "hour", "day", "year")
SIZES = ("B", "kB", "MB", "GB", "TB", "PB", "EB")
_SPELLED = ("hour", "day", "month", "year")

_QUANTITY = re.compile(
    r"\s*([+-]?(?:(?:\d{1,3}(?:[,_]\d{3})+|\d+)(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)"
    r"(?![\d,_.])\s*(.*?)\s*\Z",
    re.S,
)

Dimension = tuple[tuple[str, int], ...]


def _unit(text: str) -> tuple[float, dict[str, int]]:
    """Factor and dimension of a product such as ``USD/GB/month``; ``/`` binds one name."""
    factor, powers = 1.0, {}
    for position, part in enumerate(text.replace("*", " * ").split("/")):
        for name in part.split(" "):
            if name in ("", "*", "1"):
                continue
            if name not in _UNITS:
                raise ValueError(f"unknown unit {name!r}{hint(name, _UNITS)}")
            scale, kind = _UNITS[name]
            sign = -1 if position else 1
            factor = factor / scale if position else factor * scale
            for below, base in enumerate(filter(None, kind.split("/"))):
                powers[base] = powers.get(base, 0) + (-sign if below else sign)
    return factor, {base: power for base, power in powers.items() if power}


def dimension(unit: str) -> Dimension:
    """Dimension of a unit, as sorted (base, power) pairs.

    >>> dimension("GB/s") == dimension("B/hour")
    True
    >>> dimension("kW") == dimension("J/s")
    True
    """
    return tuple(sorted(_unit(unit)[1].items()))


def quantity(text: str, unit: str) -> float:
    """Read ``text`` and return its value in base units; it must have the dimension of ``unit``.

    Parameters
    ----------
    text : str
        A number with its unit. Underscores and commas may group the digits in threes.
    unit : str
        Any unit of the expected dimension, for instance ``"B/s"``; ``""`` for a pure number.

    Raises
    ------
    ValueError
        If there is no number, no unit where one belongs, or a unit of another dimension.

    Examples
    --------
    >>> quantity("80 GiB", "B")
    85899345920.0
    >>> quantity("400 Gbit/s", "B/s")
    50000000000.0
    >>> quantity("50 %", "")
    0.5
    >>> quantity("300", "s")
    Traceback (most recent call last):
    ...
    ValueError: a number without a unit
    >>> quantity("3 GB", "B/s")
    Traceback (most recent call last):
    ...
    ValueError: a unit of another kind, 'GB'
    """
    match = _QUANTITY.match(text)
    if not match:
        raise ValueError("no number")
    number, found = match.groups()
    factor, powers = _unit(found)
    if tuple(sorted(powers.items())) != dimension(unit) or (not unit and found not in ("", "%")):
        raise ValueError(
            f"a unit of another kind, {found!r}" if found else "a number without a unit"
        )
    return float(number.replace("_", "").replace(",", "")) * factor


def per(value: float, unit: str) -> float:
    """``value``, in base units, expressed in ``unit``.

    >>> per(1e9 / 3600, "GB/hour")
    1.0
    >>> per(2**31, "GiB")
    2.0
    """
    return value / _unit(unit)[0]


def text(value: float, units: tuple[str, ...]) -> str:
    """``value``, in base units, in the largest of ``units`` (ascending) in which it is at least 1.

    >>> text(0.000208, ("ns", "us", "ms", "s"))
    '208 us'
    >>> text(5400, ("s", "min", "hour"))
    '1.5 hours'
    """
    fitting = [unit for unit in units if abs(per(value, unit)) >= 1]
    unit = fitting[-1] if fitting else units[0]
    number = f"{per(value, unit):.3g}"
    return f"{number} {unit}{'s' if unit in _SPELLED and number != '1' else ''}"
