"""What all calls of a client share: keys, pages, and how values and times are written."""

from __future__ import annotations

import datetime
import uuid
from typing import Any, Iterator
from urllib.parse import quote

from .. import durations
from ..transport import Transport

_durations = ("timeout", "delay", "wait", "every", "jitter", "for", "max", "per")


def segment(text: str) -> str:
    """Writes an id or a name as a part of a path."""
    return quote(text, safe="")


def instant(at: Any) -> Any:
    """Writes a time as the API does. Other values stay as they are."""
    if not isinstance(at, datetime.datetime):
        return at
    if at.tzinfo is None:
        raise ValueError("%s has no time zone" % at)
    return at.astimezone(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def fields(**given: Any) -> dict[str, Any]:
    """Returns the body of a call: what is None is left out, and seconds become durations."""
    return {name: _value(name, value) for name, value in given.items() if value is not None}


def _value(name: str, value: Any) -> Any:
    if name in _durations and not isinstance(value, (str, dict)):
        return durations.timeout(value)
    if name in ("unique", "debounce", "rate") and isinstance(value, dict):
        return {n: _value(n, v) for n, v in value.items()}
    return instant(value)


class Caller:
    """Makes calls. The other classes of this package are mixed into Client."""

    transport: Transport

    def get(self, path: str, **query: Any) -> Any:
        """Makes a call that reads. path is that of the API."""
        return self.transport.call("GET", path, query={n: instant(v) for n, v in query.items()}).json()

    def send(self, method: str, path: str, body: Any = None, *, idempotency_key: str | None = None, wait: float = 0,
             query: dict[str, Any] | None = None) -> Any:
        """Makes a call that changes something, again under its key while nobody answers."""
        key = idempotency_key or str(uuid.uuid4())
        answer = self.transport.call(method, path, query=query, body={} if body is None else body, idempotency_key=key,
                                     timeout=self.transport.timeout + wait)
        return answer.json()

    def pages(self, path: str, field: str, **query: Any) -> Iterator[dict[str, Any]]:
        """Gives the entries of a list that has pages."""
        cursor = ""
        while True:
            page = self.get(path, **{**query, "cursor": cursor})
            yield from page.get(field) or []
            cursor = page.get("next_cursor", "")
            if not cursor:
                return
