"""Calls of programs: start runs, wait for them, follow them, and answer what they ask."""

from __future__ import annotations

import http.client
import json
import os
import time
import urllib.parse
import uuid
from typing import Any, Iterable, Iterator

from . import durations, shapes
from .durations import Duration
from .problems import Problem
from .transport import Transport

_quote = urllib.parse.quote
_ends = ("completed", "failed", "cancelled", "timeout")


class Run(dict[str, Any]):
    """A run as the server tells it. All its fields are those of the API."""

    @property
    def id(self) -> str:
        return str(self["run_id"])

    @property
    def state(self) -> str:
        return str(self["state"])

    @property
    def deferred(self) -> bool:
        """Whether it goes on, and nobody waits for it any more."""
        return self.get("status") == "deferred"

    @property
    def ended(self) -> bool:
        return self.state in _ends

    @property
    def result(self) -> Any:
        """The result of a completed run; the failure of another one is raised."""
        if self.state == "completed":
            return self.get("result")
        if not self.ended:
            raise RunNotEnded("run %s is %s" % (self.id, self.state))
        raise RunFailed(self)


class RunNotEnded(Exception):
    """A run has no result yet."""


class RunFailed(Exception):
    """A run has ended without a result."""

    def __init__(self, run: Run):
        error = run.get("error") or {}
        self.run, self.code, self.message = run, error.get("code", run.state), error.get("message", "")
        super().__init__("run %s is %s: %s: %s" % (run.id, run.state, self.code, self.message))


def _fields(**fields: Any) -> dict[str, Any]:
    out = {}
    for name, value in fields.items():
        if value is None:
            continue
        if name in ("timeout", "delay", "wait", "every", "jitter") and not isinstance(value, str):
            value = durations.timeout(value)
        out[name] = value
    return out


class Client:
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

    def get(self, path: str, **query: Any) -> Any:
        """Makes a call that reads. path is that of the API."""
        return self.transport.call("GET", path, query=query).json()

    def send(self, method: str, path: str, body: Any = None, *, idempotency_key: str | None = None, wait: float = 0,
             **query: Any) -> Any:
        """Makes a call that changes something, again under its key while nobody answers."""
        key = idempotency_key or str(uuid.uuid4())
        answer = self.transport.call(method, path, query=query, body={} if body is None else body, idempotency_key=key,
                                     timeout=self.transport.timeout + wait)
        return answer.json()

    # Runs

    def start(self, kind: str, input: Any = None, *, idempotency_key: str | None = None, **options: Any) -> Run:
        """Starts a run, and returns at once. options are the fields of a start: timeout, queue, metadata, thread_id …"""
        body = self._start(kind, input, options)
        return Run(self.send("POST", "/api/v1/runs", body, idempotency_key=idempotency_key))

    def run(self, kind: str, input: Any = None, *, wait: Duration = 600, idempotency_key: str | None = None,
            **options: Any) -> Run:
        """Starts a run and waits for it. A run that has not ended in time is deferred, and goes on."""
        run = self.start(kind, input, idempotency_key=idempotency_key, **options)
        return self.join(run.id, wait)

    def _start(self, kind: str, input: Any, options: dict[str, Any]) -> dict[str, Any]:
        run_class = options.pop("run_class", None)
        body = _fields(kind=kind, **options)
        if run_class:
            body["class"] = run_class
        if input is not None:
            body["input"] = shapes.encode(input)[0]
        return body

    def start_many(self, runs: Iterable[dict[str, Any]], *, idempotency_key: str | None = None) -> list[dict[str, Any]]:
        """Starts up to 1000 runs, each accepted or refused by itself."""
        answer = self.send("POST", "/api/v1/runs/batch", {"runs": list(runs)}, idempotency_key=idempotency_key)
        return list(answer["results"])

    def look(self, run_id: str) -> Run:
        return Run(self.get("/api/v1/runs/" + _quote(run_id)))

    def join(self, run_id: str, wait: Duration = 600) -> Run:
        """Waits for a run. One that has not ended in time is deferred, and goes on. Restarts of the server don't matter."""
        until = time.monotonic() + durations.microseconds(wait) / 1e6
        while True:
            left = max(0.0, min(until - time.monotonic(), 3000.0))
            answer = self.transport.call("GET", "/api/v1/runs/%s/join" % _quote(run_id),
                                         query={"timeout": durations.timeout(left)}, timeout=left + self.transport.timeout)
            run = Run(answer.json())
            if run.ended or time.monotonic() >= until:
                return run
            time.sleep(0.05)  # the server shuts down, and another one answers

    def list(self, **filter: Any) -> Iterator[Run]:
        """Gives runs, the newest first, page after page. Filters are those of the API; metadata_k becomes metadata.k."""
        query = {("metadata." + n[9:] if n.startswith("metadata_") and n != "metadata_value" else n): v
                 for n, v in filter.items()}
        return (Run(r) for r in self.pages("/api/v1/runs", "runs", **query))

    def pages(self, path: str, field: str, **query: Any) -> Iterator[dict[str, Any]]:
        """Gives the entries of a list that has pages."""
        cursor = ""
        while True:
            page = self.get(path, **{**query, "cursor": cursor})
            yield from page.get(field) or []
            cursor = page.get("next_cursor", "")
            if not cursor:
                return

    def cancel(self, run_id: str, reason: str = "", *, wait: Duration | None = None) -> Run:
        """Asks a run to stop; with wait, waits for its end."""
        query = {} if wait is None else {"wait": durations.timeout(wait)}
        seconds = 0.0 if wait is None else durations.microseconds(wait) / 1e6
        return Run(self.send("POST", "/api/v1/runs/%s/cancel" % _quote(run_id), _fields(reason=reason or None),
                             wait=seconds, **query))

    def retry(self, run_id: str, **options: Any) -> Run:
        body = {("from" if n == "from_" else n): v for n, v in options.items()}
        return Run(self.send("POST", "/api/v1/runs/%s/retry" % _quote(run_id), body))

    def defer(self, run_id: str) -> Run:
        return Run(self.send("POST", "/api/v1/runs/%s/defer" % _quote(run_id)))

    def delete(self, run_id: str) -> None:
        self.send("DELETE", "/api/v1/runs/" + _quote(run_id))

    def signal(self, run_id: str, name: str, data: Any = None, *, idempotency_key: str | None = None) -> dict[str, Any]:
        """Sends a signal. A run takes it when it waits for it, also later."""
        path = "/api/v1/runs/%s/signals/%s" % (_quote(run_id), _quote(name, safe=""))
        return dict(self.send("POST", path, {"data": shapes.encode(data)[0]}, idempotency_key=idempotency_key))

    def activity(self, run_id: str) -> dict[str, Any]:
        return dict(self.get("/api/v1/runs/%s/activity" % _quote(run_id)))

    def tree(self, run_id: str) -> Iterator[Run]:
        return (Run(r) for r in self.pages("/api/v1/runs/%s/tree" % _quote(run_id), "runs"))

    def deliverable(self, run_id: str) -> dict[str, Any]:
        return dict(self.get("/api/v1/runs/%s/deliverable" % _quote(run_id)))

    def view(self, run_id: str, name: str) -> dict[str, Any]:
        return dict(self.get("/api/v1/runs/%s/views/%s" % (_quote(run_id), _quote(name, safe=""))))

    def artifacts(self, run_id: str) -> Any:
        return self.get("/api/v1/runs/%s/artifacts" % _quote(run_id))

    def artifact(self, run_id: str, name: str) -> bytes:
        path = "/api/v1/runs/%s/artifacts/%s" % (_quote(run_id), _quote(name, safe=""))
        return self.transport.call("GET", path).data

    def events(self, run_id: str, after: int = 0) -> Iterator[dict[str, Any]]:
        """Gives the log of a run by polling, until it has ended."""
        while True:
            page = self.get("/api/v1/runs/%s/events" % _quote(run_id), after=after, wait="20s")
            yield from page.get("events") or []
            after = page["next_after"]
            if page.get("ended"):
                return

    def stream(self, run_id: str, after: int = 0, *, silence: float = 20.0) -> Iterator[dict[str, Any]]:
        """Gives the log of a run as it is written, each line once and in order, through restarts and addresses.

        It ends with the run. A line that is no longer kept is told as {"type": "stream:gap"}.
        """
        failures, path = 0, "/api/v1/runs/%s/stream" % _quote(run_id)
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

    # People

    def approvals(self, **filter: Any) -> Iterator[dict[str, Any]]:
        return self.pages("/api/v1/approvals", "approvals", **filter)

    def decide(self, approval_id: str, decision: str, action_hash: str, *, comment: str = "",
               answer: Any = None) -> dict[str, Any]:
        """Decides about an action: "approve" or "reject". action_hash is that of the action that was looked at."""
        body = _fields(decision=decision, action_hash=action_hash, comment=comment or None, answer=answer)
        return dict(self.transport.call("POST", "/api/v1/approvals/" + _quote(approval_id), body=body, again=True).json())

    def answer_callback(self, token: str, result: Any = None, *, error: dict[str, str] | None = None) -> dict[str, Any]:
        """Answers a callback with a result or an error {"code", "message"}. The same answer may be given again."""
        body = {"error": error} if error else {"result": shapes.encode(result)[0]}
        return dict(self.transport.call("POST", "/api/v1/callbacks/" + _quote(token), body=body, again=True).json())

    # Threads

    def create_thread(self, metadata: Any = None) -> dict[str, Any]:
        return dict(self.send("POST", "/api/v1/threads", _fields(metadata=metadata)))

    def threads(self, **filter: Any) -> Iterator[dict[str, Any]]:
        return self.pages("/api/v1/threads", "threads", **filter)

    def messages(self, thread_id: str, after: int = 0) -> Iterator[dict[str, Any]]:
        while True:
            page = self.get("/api/v1/threads/%s/messages" % _quote(thread_id), after=after)
            found = page.get("messages") or []
            yield from found
            if not found or page.get("next_after", after) <= after:
                return
            after = page["next_after"]

    def append_message(self, thread_id: str, role: str, content: Any, *, metadata: Any = None,
                       idempotency_key: str | None = None) -> dict[str, Any]:
        body = _fields(role=role, content=content, metadata=metadata)
        return dict(self.send("POST", "/api/v1/threads/%s/messages" % _quote(thread_id), body,
                              idempotency_key=idempotency_key))

    def chat(self, message: Any, *, wait: Duration | None = None, idempotency_key: str | None = None,
             **options: Any) -> dict[str, Any]:
        """Says something to an agent. With wait the answer is there if it came in time."""
        seconds = 0.0 if wait is None else durations.microseconds(wait) / 1e6
        return dict(self.send("POST", "/api/v1/chat", _fields(message=message, wait=wait, **options), wait=seconds,
                              idempotency_key=idempotency_key))

    # Groups, kinds, schedules

    def create_group(self, run_ids: Iterable[str], **options: Any) -> dict[str, Any]:
        return dict(self.send("POST", "/api/v1/groups", _fields(run_ids=[*run_ids], **options)))

    def join_group(self, group_id: str, wait: Duration = 600) -> dict[str, Any]:
        seconds = durations.microseconds(wait) / 1e6
        return dict(self.transport.call("GET", "/api/v1/groups/%s/join" % _quote(group_id),
                                        query={"timeout": durations.timeout(wait)},
                                        timeout=seconds + self.transport.timeout).json())

    def kinds(self) -> list[dict[str, Any]]:
        return [*self.get("/api/v1/kinds")["kinds"]]

    def kind(self, kind: str) -> dict[str, Any]:
        return dict(self.get("/api/v1/kinds/" + _quote(kind, safe="")))

    def create_schedule(self, kind: str, **options: Any) -> dict[str, Any]:
        return dict(self.send("POST", "/api/v1/schedules", self._start(kind, options.pop("input", None), options)))

    def schedules(self) -> Iterator[dict[str, Any]]:
        return self.pages("/api/v1/schedules", "schedules")

    def delete_schedule(self, name: str) -> None:
        self.send("DELETE", "/api/v1/schedules/" + _quote(name, safe=""))

    def trigger_schedule(self, name: str) -> Run:
        return Run(self.send("POST", "/api/v1/schedules/%s/trigger" % _quote(name, safe="")))


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
