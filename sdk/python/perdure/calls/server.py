"""Kinds, queues, groups, and what the server says about itself."""

from __future__ import annotations

import json
from typing import Any, Iterable, Iterator

from .. import durations
from ..durations import Duration
from ..problems import problem_of
from .caller import Caller, fields, segment


def _kind(kind: str, *rest: str) -> str:
    return "/".join(["/api/v1/kinds", segment(kind), *rest])


class Server(Caller):
    # Kinds and queues

    def kinds(self) -> list[dict[str, Any]]:
        return [*self.pages("/api/v1/kinds", "kinds")]

    def kind(self, kind: str) -> dict[str, Any]:
        return dict(self.get(_kind(kind)))

    def change_kind(self, kind: str, *, remove: Iterable[str] = (), **changes: Any) -> dict[str, Any]:
        """Overrides fields of a kind. remove names overrides to remove: "timeout", or "retry" for all of retry."""
        body = fields(**{("class" if n == "run_class" else n): v for n, v in changes.items()})
        for name in remove:
            outer, _, inner = name.partition(".")
            if inner:
                body.setdefault(outer, {})[inner] = None
            else:
                body[outer] = None
        return dict(self.send("PATCH", _kind(kind), body))

    def delete_kind(self, kind: str) -> None:
        self.send("DELETE", _kind(kind))

    def kind_stats(self, kind: str) -> dict[str, Any]:
        """Says how the newest runs of a kind went."""
        return dict(self.get(_kind(kind, "stats")))

    def queues(self) -> Iterator[dict[str, Any]]:
        return self.pages("/api/v1/queues", "queues")

    # Groups

    def create_group(self, run_ids: Iterable[str], **options: Any) -> dict[str, Any]:
        return dict(self.send("POST", "/api/v1/groups", fields(run_ids=[*run_ids], **options)))

    def group(self, group_id: str) -> dict[str, Any]:
        return dict(self.get("/api/v1/groups/" + segment(group_id)))

    def groups(self, state: str = "") -> Iterator[dict[str, Any]]:
        """Gives groups without their runs, newest first. state is "open", "satisfied", "timed_out", or "ended"."""
        return self.pages("/api/v1/groups", "groups", state=state)

    def join_group(self, group_id: str, wait: Duration = 600) -> dict[str, Any]:
        seconds = durations.microseconds(wait) / 1e6
        return dict(self.transport.call("GET", "/api/v1/groups/%s/join" % segment(group_id),
                                        query={"timeout": durations.timeout(wait)},
                                        timeout=seconds + self.transport.timeout).json())

    # The server

    def session(self) -> dict[str, Any]:
        """Returns what the server knows of this client's key: its tenant and its scopes."""
        return dict(self.get("/api/v1/session"))

    def signing_keys(self) -> list[dict[str, Any]]:
        """Returns the public keys of signatures. The one that signs new runs is first."""
        return list(self.get("/api/v1/signing-keys")["keys"])

    def attention(self) -> dict[str, Any]:
        """Says what may need a person."""
        return dict(self.get("/api/v1/attention"))

    def run_history(self, since: Duration, step: Duration | None = None) -> dict[str, Any]:
        """Counts what happened to runs since a while ago, at most a week, in steps."""
        return dict(self.get("/api/v1/history", since=durations.timeout(since),
                             step="" if step is None else durations.timeout(step)))

    def health(self) -> dict[str, Any]:
        """Asks once whether the server's process is alive."""
        return self._asked("/healthz")[1]

    def ready(self) -> tuple[dict[str, Any], bool]:
        """Asks once whether the server should get traffic. One that is not ready is an answer, not an error."""
        status, body = self._asked("/readyz")
        return body, status == 200

    def _asked(self, path: str) -> tuple[int, dict[str, Any]]:
        answer = self.transport.once("GET", path)
        if answer.status not in (200, 503):
            raise problem_of(answer.status, answer.headers, answer.data)
        return answer.status, dict(json.loads(answer.data))
