"""Limits: how many runs may be leased at once, and how often."""

from __future__ import annotations

import datetime
from typing import Any, Iterator

from ..durations import Duration
from .caller import Caller, fields, segment


def _limit(name: str, *rest: str) -> str:
    return "/".join(["/api/v1/limits", segment(name), *map(segment, rest)])


class Limits(Caller):
    def put_limit(self, name: str, *, concurrency: int | None = None, rate: dict[str, Any] | None = None,
                  per_key: bool = False, description: str = "", idempotency_key: str | None = None) -> dict[str, Any]:
        """Makes a limit, or changes the one of this name. rate is {"count": 5, "per": seconds, "burst": 2}."""
        body = fields(concurrency=concurrency, rate=rate, per_key=per_key or None, description=description or None)
        return dict(self.send("PUT", _limit(name), body, idempotency_key=idempotency_key))

    def limits(self) -> Iterator[dict[str, Any]]:
        return self.pages("/api/v1/limits", "limits")

    def limit(self, name: str) -> dict[str, Any]:
        """Returns a limit, with some of the runs that hold its slots and of those that wait there."""
        return dict(self.get(_limit(name)))

    def delete_limit(self, name: str) -> None:
        """Deletes a limit. Runs that wait there go on."""
        self.send("DELETE", _limit(name))

    def close_limit(self, name: str, duration: Duration | None = None, *, until: datetime.datetime | None = None,
                    key: str = "", reason: str = "") -> dict[str, Any]:
        """Closes a limit, or a key of it: nothing is granted under it for so long, or until then."""
        body = fields(key=key or None, until=until, reason=reason or None, **{"for": duration})
        return dict(self.send("POST", _limit(name, "close"), body))

    def open_limit(self, name: str, *, key: str = "") -> dict[str, Any]:
        return dict(self.send("POST", _limit(name, "open"), fields(key=key or None)))

    def limit_keys(self, name: str) -> Iterator[dict[str, Any]]:
        """Gives the keys of a limit that are in use, closed, or have values of their own."""
        return self.pages(_limit(name, "keys"), "keys")

    def put_limit_key(self, name: str, key: str, *, concurrency: int | None = None,
                      rate: dict[str, Any] | None = None) -> dict[str, Any]:
        """Gives a key of a limit values of its own."""
        return dict(self.send("PUT", _limit(name, "keys", key), fields(concurrency=concurrency, rate=rate)))

    def delete_limit_key(self, name: str, key: str) -> dict[str, Any]:
        """Gives a key the values of the limit again."""
        return dict(self.send("DELETE", _limit(name, "keys", key)))
