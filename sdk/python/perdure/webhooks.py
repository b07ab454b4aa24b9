"""Verifies messages of webhooks, which are signed as Standard Webhooks says."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from typing import Any, Mapping


class NotSigned(Exception):
    """A message is not from Perdure, or too old."""


def verify(secret: str, headers: Mapping[str, str], body: bytes, *, tolerance: float = 300, now: float | None = None) -> Any:
    """Returns the message, or raises NotSigned. body has the bytes as they came; secret begins with whsec_."""
    lower = {name.lower(): value for name, value in headers.items()}
    ident, when = lower.get("webhook-id", ""), lower.get("webhook-timestamp", "")
    if not ident or not when.isascii() or not when.isdecimal():
        raise NotSigned("the message has no webhook-id, or no webhook-timestamp")
    if abs((time.time() if now is None else now) - int(when)) > tolerance:
        raise NotSigned("the message is older than %d s" % tolerance)
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = ("%s.%s." % (ident, when)).encode() + body
    want = b"v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest())
    sent = lower.get("webhook-signature", "").encode().split(b" ")
    if not any(hmac.compare_digest(want, s) for s in sent):
        raise NotSigned("no signature of the message fits")
    return json.loads(body)
