"""Canonical JSON and digests, as docs/journal.md of Perdure defines them.

Values are compared by digests of their canonical JSON: members sorted by name, no white space, and
numbers as ECMAScript prints them. Python prints doubles in another way, so all JSON of this package
is written here.
"""

from __future__ import annotations

import decimal
import hashlib
import json
import math
import re
from json.encoder import encode_basestring
from typing import Any

MAX_DEPTH = 64  # a canonical form nests no deeper

# Texts of numbers that Python may have printed otherwise than ECMAScript. A match within a string
# does no harm: the value is then written by the slower writer, with the same result.
_unusual = re.compile(r"\d[eE][-+]?\d|\d\.0(?!\d)|NaN|Infinity|-0")
_surrogate = re.compile("[\ud800-\udfff]")


class Number(str):
    """The text of a number, which is printed as it is."""


def float_text(f: float) -> str:
    """Prints a double as ECMAScript does."""
    if f == 0:
        return "0"
    sign, digits, exponent = decimal.Decimal(repr(f)).normalize().as_tuple()
    assert isinstance(exponent, int)
    d = "".join(map(str, digits))
    k, n = len(d), len(d) + exponent
    if k <= n <= 21:
        out = d + "0" * (n - k)
    elif 0 < n <= 21:
        out = d[:n] + "." + d[n:]
    elif -6 < n <= 0:
        out = "0." + "0" * -n + d
    else:
        e = n - 1
        out = d[0] + ("." + d[1:] if k > 1 else "") + ("e+" if e > 0 else "e-") + str(abs(e))
    return "-" + out if sign else out


def _text(s: str) -> str:
    return encode_basestring(_surrogate.sub("\ufffd", s))


def _print(v: Any, depth: int) -> str:
    if depth > MAX_DEPTH:
        raise ValueError("is nested more than %d levels deep" % MAX_DEPTH)
    if v is None:
        return "null"
    if v is True or v is False:
        return "true" if v else "false"
    if isinstance(v, Number):
        return str(v)
    if isinstance(v, str):
        return _text(v)
    if isinstance(v, int):
        return int.__repr__(v)
    if isinstance(v, float):
        if not math.isfinite(v):
            raise ValueError("%r is no JSON" % v)
        return float_text(v)
    if isinstance(v, dict):
        names = {_surrogate.sub("\ufffd", n): n for n in v}
        if len(names) < len(v):
            raise ValueError("an object has a name twice")
        return "{" + ",".join(_text(n) + ":" + _print(v[names[n]], depth + 1) for n in sorted(names)) + "}"
    if isinstance(v, (list, tuple)):
        return "[" + ",".join([_print(x, depth + 1) for x in v]) + "]"
    raise TypeError("a %s is no JSON" % type(v).__name__)


def canonical(value: Any) -> str:
    """Returns the canonical JSON of a value of dicts, lists, texts and numbers."""
    return _print(value, 0)


def _of_digits(text: str) -> Number:
    return Number("0" if text == "-0" else text)


def _of_float(text: str) -> Number:
    f = float(text)
    return Number(text) if math.isinf(f) else Number(float_text(f))


def _no_constant(text: str) -> Any:
    raise ValueError(text + " is no JSON")


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) < len(pairs):
        raise ValueError("an object has a name twice")
    return dict(pairs)


def canonical_of_text(text: str) -> str:
    """Returns the canonical JSON of a JSON text. Integers keep all their digits."""
    return canonical(json.loads(text, parse_int=_of_digits, parse_float=_of_float, parse_constant=_no_constant,
                                object_pairs_hook=_members))


def dumps(value: Any) -> str:
    """Writes a value as JSON, with canonical numbers. Members keep their order, because "aside" has to be first."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    if not _unusual.search(text):
        return text
    return _write(value)


def _write(v: Any) -> str:
    if isinstance(v, dict):
        return "{" + ",".join(_text(n) + ":" + _write(x) for n, x in v.items()) + "}"
    if isinstance(v, (list, tuple)):
        return "[" + ",".join([_write(x) for x in v]) + "]"
    return _print(v, 0)


def sha(data: bytes, size: int = 12) -> str:
    """Returns the first bytes of SHA-256, in hexadecimal."""
    return hashlib.sha256(data).digest()[:size].hex()


def digest(value: Any) -> str:
    """Returns the digest of a value: 24 hexadecimal digits."""
    return sha(canonical(value).encode())


def action_hash(value: Any) -> str:
    """Returns the hash by which the server compares actions to approve.

    Integers and doubles are as this package writes them, so the text is the canonical one.
    """
    return "sha256:" + hashlib.sha256(canonical(value).encode()).hexdigest()
