"""Calls of programs: start runs, wait for them, follow them, and answer what they ask."""

from __future__ import annotations

import copy
import http.client
import json
import os
import time
from typing import Any, Iterable, Iterator

from . import durations, shapes
from .calls.caller import fields, segment
from .calls.entries import Entries
from .calls.limits import Limits
from .calls.people import People
from .calls.run import Run, RunFailed, RunNotEnded, submission
from .calls.schedules import Schedules
from .calls.server import Server
from .calls.threads import Threads
from .calls.webhooks import Webhooks
from .durations import Duration
from .problems import Problem
from .transport import Transport

__all__ = ["Client", "Run", "RunFailed", "RunNotEnded"]


class Client(Threads, People, Limits, Schedules, Webhooks, Entries, Server):
    """Calls a server. It may be used by several threads.

    Calls that change something have an idempotency key, a new one unless you give one, and are repeated under it.
    """

    def __init__(self, url: "str | Iterable[str] | None" = None, key: str | None = None, *, tenant: str = "",
                 patience: float = 30.0, timeout: float = 30.0, context: Any = None):
        url = url or os.environ.get("PERDURE_URL") or "http://127.0.0.1:7373"
        key = key if key is not None else os.environ.get("PERDURE_KEY", "")
        addresses = [url] if isinstance(url, str) else list(url)
        addresses = [a for u in addresses for a in u.split(",")]
        self.transport = Transport(addresses, key, tenant=tenant, patience=patience, timeout=timeout, context=context)

    def close(self) -> None:
        self.transport.drop()

    def for_tenant(self, tenant: str) -> "Client":
        """Returns a client for calls about another tenant."""
        other = copy.copy(self)
        other.transport = copy.copy(self.transport)
        other.transport.tenant = tenant
        return other

    # Runs

    def start(self, kind: str, input: Any = None, *, idempotency_key: str | None = None, **options: Any) -> Run:
        """Starts a run, and returns at once. options are the fields of a start: timeout, queue, metadata, thread_id …"""
        body = submission(kind, input, options)
        return Run(self.send("POST", "/api/v1/runs", body, idempotency_key=idempotency_key))

    def run(self, kind: str, input: Any = None, *, wait: Duration = 600, idempotency_key: str | None = None,
            **options: Any) -> Run:
        """Starts a run and waits for it. A run that has not ended in time is deferred, and goes on."""
        run = self.start(kind, input, idempotency_key=idempotency_key, **options)
        return self.join(run.id, wait)

    def start_many(self, runs: Iterable[dict[str, Any]], *, idempotency_key: str | None = None) -> list[dict[str, Any]]:
        """Starts up to 1000 runs, each accepted or refused by itself: {"kind": …, "input": …}, and options of a start."""
        bodies = [submission(r["kind"], r.get("input"), {n: v for n, v in r.items() if n not in ("kind", "input")})
                  for r in runs]
        answer = self.send("POST", "/api/v1/runs/batch", {"runs": bodies}, idempotency_key=idempotency_key)
        return list(answer["results"])

    def look(self, run_id: str) -> Run:
        return Run(self.get("/api/v1/runs/" + segment(run_id)))

    def by_name(self, name: str) -> Run:
        """Returns the run that has a name. A run gets its first name with the option name of its start."""
        return Run(self.get("/api/v1/runs/by-name/" + segment(name)))

    def name_run(self, run_id: str, name: str, *, from_seq: int = 0) -> dict[str, Any]:
        """Gives a run one more name, which stands for the run from a line of its log on."""
        path = "/api/v1/runs/%s/names/%s" % (segment(run_id), segment(name))
        return dict(self.send("PUT", path, fields(from_seq=from_seq or None)))

    def join(self, run_id: str, wait: Duration = 600) -> Run:
        """Waits for a run. One that has not ended in time is deferred, and goes on. Restarts of the server don't matter."""
        until = time.monotonic() + durations.microseconds(wait) / 1e6
        while True:
            left = max(0.0, min(until - time.monotonic(), 3000.0))
            answer = self.transport.call("GET", "/api/v1/runs/%s/join" % segment(run_id),
                                         query={"timeout": durations.timeout(left)}, timeout=left + self.transport.timeout)
            run = Run(answer.json())
            if run.ended or time.monotonic() >= until:
                return run
            time.sleep(0.05)  # the server shuts down, and another one answers

    def list(self, **filter: Any) -> Iterator[Run]:
        """Gives runs, the newest first, page after page. Filters are those of the API; metadata_k becomes metadata.k."""
        return (Run(r) for r in self.pages("/api/v1/runs", "runs", **_filter(filter)))

    def counts(self, **filter: Any) -> dict[str, Any]:
        """Counts the runs that match, by status, state, kind and queue."""
        return dict(self.get("/api/v1/runs/counts", **_filter(filter)))

    def cancel(self, run_id: str, reason: str = "", *, wait: Duration | None = None) -> Run:
        """Asks a run to stop; with wait, waits for its end."""
        query = {} if wait is None else {"wait": durations.timeout(wait)}
        seconds = 0.0 if wait is None else durations.microseconds(wait) / 1e6
        return Run(self.send("POST", "/api/v1/runs/%s/cancel" % segment(run_id), fields(reason=reason or None),
                             wait=seconds, query=query))

    def retry(self, run_id: str, **options: Any) -> Run:
        body = {("from" if n == "from_" else n): v for n, v in options.items()}
        return Run(self.send("POST", "/api/v1/runs/%s/retry" % segment(run_id), body))

    def retry_many(self, run_ids: Iterable[str], **options: Any) -> list[dict[str, Any]]:
        """Starts new runs from up to 1000 ended ones, with a result for each."""
        body = {"run_ids": [*run_ids], **{("from" if n == "from_" else n): v for n, v in options.items()}}
        return list(self.send("POST", "/api/v1/runs/retry", body)["results"])

    def defer(self, run_id: str) -> Run:
        return Run(self.send("POST", "/api/v1/runs/%s/defer" % segment(run_id)))

    def delete(self, run_id: str) -> None:
        self.send("DELETE", "/api/v1/runs/" + segment(run_id))

    def signal(self, run_id: str, name: str, data: Any = None, *, idempotency_key: str | None = None) -> dict[str, Any]:
        """Sends a signal. A run takes it when it waits for it, also later."""
        path = "/api/v1/runs/%s/signals/%s" % (segment(run_id), segment(name))
        return dict(self.send("POST", path, {"data": shapes.encode(data)[0]}, idempotency_key=idempotency_key))

    def activity(self, run_id: str) -> dict[str, Any]:
        return dict(self.get("/api/v1/runs/%s/activity" % segment(run_id)))

    def tree(self, run_id: str) -> Iterator[Run]:
        return (Run(r) for r in self.pages("/api/v1/runs/%s/tree" % segment(run_id), "runs"))

    def deliverable(self, run_id: str) -> dict[str, Any]:
        return dict(self.get("/api/v1/runs/%s/deliverable" % segment(run_id)))

    def views(self, run_id: str) -> list[dict[str, Any]]:
        """Returns the named views of a run, without their values."""
        return list(self.get("/api/v1/runs/%s/views" % segment(run_id))["views"] or [])

    def view(self, run_id: str, name: str) -> dict[str, Any]:
        return dict(self.get("/api/v1/runs/%s/views/%s" % (segment(run_id), segment(name))))

    def artifacts(self, run_id: str) -> list[dict[str, Any]]:
        return list(self.get("/api/v1/runs/%s/artifacts" % segment(run_id))["artifacts"] or [])

    def artifact(self, run_id: str, name: str) -> bytes:
        path = "/api/v1/runs/%s/artifacts/%s" % (segment(run_id), segment(name))
        return self.transport.call("GET", path).data

    def events(self, run_id: str, after: int = 0) -> Iterator[dict[str, Any]]:
        """Gives the log of a run by polling, until it has ended."""
        while True:
            page = self.get("/api/v1/runs/%s/events" % segment(run_id), after=after, wait="20s")
            yield from page.get("events") or []
            after = page["next_after"]
            if page.get("ended"):
                return

    def stream(self, run_id: str, after: int = 0, *, silence: float = 20.0) -> Iterator[dict[str, Any]]:
        """Gives the log of a run as it is written, each line once and in order, through restarts and addresses.

        It ends with the run. A line that is no longer kept is told as {"type": "stream:gap"}.
        """
        failures, path = 0, "/api/v1/runs/%s/stream" % segment(run_id)
        while True:
            try:
                for event in _events(self.transport.stream(path, {}, {"Accept": "text/event-stream",
                                                                      "Last-Event-ID": str(after)}, silence)):
                    failures = 0
                    if event["type"] == "stream:end":
                        return
                    if event["type"] == "stream:attached":
                        continue
                    after = max(after, event.get("seq", after))
                    yield event
                return  # 204: there is nothing more
            except Problem as e:
                if e.status not in (429, 503):
                    raise
                pause = e.retry_after
            except (OSError, EOFError, ValueError, http.client.HTTPException):
                pause = 0.0
            failures += 1
            self.transport.next_address()
            time.sleep(max(pause, min(2.0, 0.05 * 2 ** min(failures, 6))))


def _filter(filter: dict[str, Any]) -> dict[str, Any]:
    return {("metadata." + n[9:] if n.startswith("metadata_") and n != "metadata_value" else
             "class" if n == "run_class" else n): v for n, v in filter.items()}


def _events(lines: Iterator[bytes]) -> Iterator[dict[str, Any]]:
    """Reads server-sent events."""
    kind, data = "", []
    for line in lines:
        if not line:
            if data:
                body = json.loads(b"\n".join(data))
                yield {**body, "type": body.get("type", kind)}
            kind, data = "", []
        elif line.startswith(b"event:"):
            kind = line[6:].strip().decode()
        elif line.startswith(b"data:"):
            data.append(line[5:].lstrip())
