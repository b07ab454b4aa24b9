"""Verifies Ed25519 signatures (RFC 8032). It can't sign, and holds no secret."""

from __future__ import annotations

import base64
import hashlib

_p = 2**255 - 19
_order = 2**252 + 27742317777372353535851937790883648493
_d = -121665 * pow(121666, _p - 2, _p) % _p
_root = pow(2, (_p - 1) // 4, _p)
_Point = tuple[int, int, int, int]


def _add(a: _Point, b: _Point) -> _Point:
    x = (a[1] - a[0]) * (b[1] - b[0]) % _p
    y = (a[1] + a[0]) * (b[1] + b[0]) % _p
    z = 2 * a[3] * b[3] * _d % _p
    w = 2 * a[2] * b[2] % _p
    e, f, g, h = y - x, w - z, w + z, y + x
    return e * f % _p, g * h % _p, f * g % _p, e * h % _p


def _times(n: int, a: _Point) -> _Point:
    out = (0, 1, 1, 0)
    while n:
        if n & 1:
            out = _add(out, a)
        a = _add(a, a)
        n >>= 1
    return out


def _x_of(y: int, sign: int) -> int | None:
    if y >= _p:
        return None
    xx = (y * y - 1) * pow(_d * y * y + 1, _p - 2, _p) % _p
    x = pow(xx, (_p + 3) // 8, _p)
    if (x * x - xx) % _p:
        x = x * _root % _p
    if (x * x - xx) % _p or not x and sign:
        return None
    return _p - x if x & 1 != sign else x


def _point(data: bytes) -> _Point | None:
    y = int.from_bytes(data, "little")
    sign, y = y >> 255, y & (1 << 255) - 1
    x = _x_of(y, sign)
    return None if x is None else (x, y, 1, x * y % _p)


def _bytes(a: _Point) -> bytes:
    inverse = pow(a[2], _p - 2, _p)
    x, y = a[0] * inverse % _p, a[1] * inverse % _p
    return (y | (x & 1) << 255).to_bytes(32, "little")


_base_y = 4 * pow(5, _p - 2, _p) % _p
_base_x = _x_of(_base_y, 0)
assert _base_x is not None
_base: _Point = (_base_x, _base_y, 1, _base_x * _base_y % _p)


def verify(public: bytes, message: bytes, signature: bytes) -> bool:
    """Tells whether a signature is that of a message by the holder of a public key."""
    if len(public) != 32 or len(signature) != 64:
        return False
    a, s = _point(public), int.from_bytes(signature[32:], "little")
    if a is None or s >= _order:
        return False
    k = int.from_bytes(hashlib.sha512(signature[:32] + public + message).digest(), "little") % _order
    negative = (_p - a[0], a[1], a[2], _p - a[3])
    return _bytes(_add(_times(s, _base), _times(k, negative))) == signature[:32]


_prefix = bytes.fromhex("302a300506032b6570032100")  # of a public key in PEM


def public_keys(pem: str) -> list[bytes]:
    """Reads the Ed25519 keys of a PEM text, as "perdure keys signing public" prints them."""
    out = []
    for part in pem.split("-----BEGIN PUBLIC KEY-----")[1:]:
        der = base64.b64decode("".join(part.split("-----END PUBLIC KEY-----")[0].split()))
        if len(der) != 44 or not der.startswith(_prefix):
            raise ValueError("a public key is no Ed25519 key")
        out.append(der[12:])
    if not out:
        raise ValueError("there is no public key in PEM")
    return out
