"""Durations as the API writes them, in the form of Go: 1m30s."""

from __future__ import annotations

import datetime
from typing import Union

Duration = Union[int, float, datetime.timedelta]

_LONGEST = 366 * 24 * 3600


def microseconds(d: Duration) -> int:
    """Returns a duration in microseconds. A number has seconds."""
    if isinstance(d, datetime.timedelta):
        out = d // datetime.timedelta(microseconds=1)
    elif isinstance(d, (int, float)) and not isinstance(d, bool) and d == d and abs(d) < 1e12:
        out = round(d * 1_000_000)
    else:
        raise ValueError("%r is no duration: give seconds or a timedelta" % (d,))
    if out > _LONGEST * 1_000_000:
        raise ValueError("%s is longer than 366 days" % text(out))
    return out


def text(us: int) -> str:
    """Writes microseconds as Go does: 1h0m0s, 1.5s, 1ms."""
    if us == 0:
        return "0s"
    sign, us = ("-", -us) if us < 0 else ("", us)
    if us < 1000:
        return "%s%dµs" % (sign, us)
    if us < 1_000_000:
        return sign + _decimals(us, 1000) + "ms"
    minutes, rest = divmod(us, 60_000_000)
    hours, minutes = divmod(minutes, 60)
    out = _decimals(rest, 1_000_000) + "s"
    if hours or minutes:
        out = "%dm%s" % (minutes, out)
    if hours:
        out = "%dh%s" % (hours, out)
    return sign + out


def _decimals(n: int, unit: int) -> str:
    whole, rest = divmod(n, unit)
    if not rest:
        return str(whole)
    return "%d.%s" % (whole, str(rest).zfill(len(str(unit)) - 1).rstrip("0"))


def timeout(d: Duration) -> str:
    """Writes the timeout of a wait; less than nothing is nothing."""
    return text(max(0, microseconds(d)))
