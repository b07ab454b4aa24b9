"""Reads the answer of a poll, and checks the signatures of its grants."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from typing import Any, Iterator

from . import ed25519

_space = re.compile(r"[ \t\n\r]*")
_decoder = json.JSONDecoder()
_tokens = re.compile(r'"(?:[^"\\]|\\.)*"|[^"\s]+')


def _members(text: str, at: int) -> Iterator[tuple[str, int, int]]:
    """Gives the members of the object that begins at a place: name, begin and end of the value."""
    at += 1
    while True:
        at = _skip(text, at)
        if text[at] == "}":
            return
        if text[at] == ",":
            at = _skip(text, at + 1)
        name, at = _decoder.raw_decode(text, at)
        begin = _skip(text, _skip(text, at) + 1)
        _, at = _decoder.raw_decode(text, begin)
        yield name, begin, at


def _skip(text: str, at: int) -> int:
    match = _space.match(text, at)
    return match.end() if match else at


def grants(data: bytes) -> list[tuple[dict[str, Any], bytes]]:
    """Returns the grants of an answer, each with the bytes of its input as they stand there."""
    text = data.decode()
    out = []
    for name, begin, _ in _members(text, _skip(text, 0)):
        if name != "runs" or text[begin] != "[":
            continue
        at = _skip(text, begin + 1)
        while text[at] != "]":
            if text[at] == ",":
                at = _skip(text, at + 1)
            grant, end = _decoder.raw_decode(text, at)
            raw = b""
            for field, first, last in _members(text, at):
                if field == "input":
                    raw = "".join(_tokens.findall(text[first:last])).encode()
            out.append((grant, raw))
            at = _skip(text, end)
    return out


def signed(grant: dict[str, Any], raw: bytes) -> bytes:
    """Returns the bytes that the signature of a grant is over."""
    fields = ["perdure-run-v1", grant["signature"]["key_id"], grant["tenant"], grant["run_id"], grant["kind"],
              grant["queue"], hashlib.sha256(raw).hexdigest(), grant["deadline_at"]]
    origin = grant.get("origin_run_id") or grant["run_id"]
    if origin != grant["run_id"]:
        fields.append(origin)
    return b"".join(b"%d:%s," % (len(f.encode()), f.encode()) for f in fields)


class Trust:
    """Public keys by which grants are checked. Without keys nothing is checked."""

    def __init__(self, pem: str = "", required: bool = False):
        self.keys = ed25519.public_keys(pem) if pem else []
        self.required = required
        if required and not self.keys:
            raise ValueError("signatures are required, and there is no key to check them by")

    def accepts(self, grant: dict[str, Any], raw: bytes) -> bool:
        if not self.keys:
            return True
        signature = grant.get("signature")
        if not signature:
            return not self.required
        try:
            message, value = signed(grant, raw), base64.b64decode(signature["value"], validate=True)
        except (KeyError, TypeError, ValueError):
            return False
        return any(ed25519.verify(key, message, value) for key in self.keys)
