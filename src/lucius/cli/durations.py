"""Parses the durations of command-line options."""

import re
from collections.abc import Mapping

MAX_DURATION_MS = 2**62
AGE_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}
ALL_UNITS_MS = {"ms": 1, "min": 60_000, **AGE_UNITS_MS}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)")


def parse_duration(text: str, units_ms: Mapping[str, int] = ALL_UNITS_MS, default_unit: str = "") -> int | None:
    """Return the milliseconds of a number with a unit, such as 1.5s, 10m, 2h or 7d; None if it is none or too long.

    Units are in lower case: `6M` may mean months. Without a unit the number has the default one. Zero needs none.
    """
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        return None
    number, unit_ms = float(found[1]), units_ms.get(found[2] or default_unit)
    if unit_ms is None:
        return 0 if number == 0 and not found[2] else None
    return round(number * unit_ms) if number * unit_ms <= MAX_DURATION_MS else None
