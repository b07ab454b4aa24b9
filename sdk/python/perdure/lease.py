"""A run that this worker holds: its heartbeats, and commits that are sent until the server has answered."""

from __future__ import annotations

import http.client
import json
import logging
import random
import threading
import time
import urllib.parse
from typing import TYPE_CHECKING, Any

from . import canonical
from .errors import Lost, Refused
from .problems import Problem, problem_of

if TYPE_CHECKING:
    from .worker import Worker

GONE = ("stale_epoch", "wrong_state", "run_ended", "not_found")
PAUSE = ("unavailable", "unknown_outcome", "shutting_down", "too_many_requests", "quota_exceeded", "storage_full",
         "query_timeout")


class Lease:
    """(run_id, epoch) is the right to write to a run."""

    def __init__(self, worker: "Worker", grant: dict[str, Any], polled: float):
        self.worker, self.grant = worker, grant
        self.run_id, self.epoch, self.kind = grant["run_id"], grant["epoch"], grant["kind"]
        self.every = min(10.0, grant.get("lease_ms", 60000) / 4000)
        #: A run with one attempt begins when a heartbeat was answered.
        self.once = grant.get("max_attempts") == 1
        self.heard = threading.Event()
        self.beat_at = polled + (0.0 if self.once else min(2.0, self.every))
        self.cancel, self.told = bool(grant.get("cancel")), False
        self.lost = threading.Event()
        self.stop = threading.Event()  # asked to stop, lost, or released
        self.released = False
        self.activity, self.progress = "", None
        self.commits = 0
        self.lock = threading.Lock()
        self.on_cancel: Any = None
        if self.cancel:
            self.stop.set()

    def key(self) -> dict[str, Any]:
        return {"run_id": self.run_id, "epoch": self.epoch}

    def beat(self) -> dict[str, Any]:
        out = self.key()
        if self.activity:
            out["activity"] = self.activity
        if self.progress is not None:
            out["progress"] = self.progress
        if self.cancel:
            out["cancel_ack"] = True
        return out

    def reported(self, beat: dict[str, Any]) -> None:
        """Clears the progress that a heartbeat has reported, unless there is a newer one."""
        if self.progress is beat.get("progress"):
            self.progress = None

    def forget(self, beat: dict[str, Any]) -> None:
        """Drops what a heartbeat has said, because the server has refused it: the lease is renewed without it."""
        self.reported(beat)
        if self.activity == beat.get("activity"):
            self.activity = ""

    def ask_to_stop(self) -> None:
        if not self.cancel:
            self.cancel = True
            self.beat_at = time.monotonic()  # acknowledge at once
            self.stop.set()
            if self.on_cancel:
                self.on_cancel()

    def lose(self) -> None:
        self.lost.set()
        self.stop.set()
        if self.on_cancel:
            self.on_cancel()

    def commit(self, commit: dict[str, Any]) -> dict[str, Any]:
        """Sends a commit, the same bytes again until the server has answered. Commits of a run keep their order."""
        with self.lock:
            self.commits += 1
            body = {"commit_id": "e%d-%d" % (self.epoch, self.commits), **self.key(), **commit}
            if self.cancel and "cancel_ack" not in body:
                body["cancel_ack"] = True
            data = canonical.dumps({"commits": [body]}).encode()
            with self.worker.kept.hold(len(data)):
                return self._send("commit", data, commit.get("outcome", {}).get("type") == "complete")

    def take_limits(self, step: str, takes: list[dict[str, Any]], number: int) -> dict[str, Any]:
        """Asks for the limits of a step, before the call of its function with a number, from 0."""
        ask = {**self.key(), "step": step, "limits": takes, **({"try": number} if number else {})}
        return self._send("limits", canonical.dumps({"steps": [ask]}).encode(), False)

    def _send(self, verb: str, data: bytes, finished: bool) -> dict[str, Any]:
        """Sends a call about this lease alone, the same bytes again until the server has answered."""
        path = "/api/v1/workers/%s/%s" % (urllib.parse.quote(self.worker.id), verb)
        pause, failures = 0.1, 0
        while True:
            # A result that comes too late is kept by the server, so it is sent even when the lease is lost.
            if self.lost.is_set() and not finished or self.released:
                raise Lost()
            try:
                answer = self.worker.transport.once("POST", path, body=data, idempotency_key="", timeout=60)
            except (OSError, http.client.HTTPException):
                self.worker.transport.next_address()
            else:
                problem = problem_of(answer.status, answer.headers, answer.data) if answer.status >= 400 else None
                if problem is None:
                    result = json.loads(answer.data)["results"][0]
                    error = result.get("error")
                    if not error:
                        return self._result(result)
                    problem = Problem(error["code"], error.get("detail", ""), status=answer.status,
                                      field=error.get("field", ""))
                if problem.code == "quota_exceeded" and self.cancel:  # it need not wait for the quota any longer
                    raise Refused("cancel_requested", problem.detail, problem.field)
                failures += problem.code == "internal"
                if problem.code not in PAUSE and (problem.code != "internal" or failures > 5):
                    if verb == "limits" and problem.code == "not_found":  # a server of a release before has no limits
                        raise Refused(problem.code, problem.detail, problem.field)
                    self._refused(problem.code, problem.detail, problem.field)
                pause = max(pause, problem.retry_after)
            time.sleep(pause * (0.5 + random.random()))
            pause = min(5.0, pause * 2)

    def _result(self, result: dict[str, Any]) -> dict[str, Any]:
        if result.get("cancel"):
            self.ask_to_stop()
        self.heard.set()
        return result

    def _refused(self, code: str, detail: str, field: str) -> None:
        if code in GONE and not field or code in ("unauthorized", "forbidden"):
            self.lose()
            raise Lost()
        raise Refused(code, detail, field)

    # Pages

    def get(self, what: str, **query: Any) -> dict[str, Any]:
        """Reads a page of what belongs to the lease, until the server has answered."""
        path = "/api/v1/runs/%s/%s" % (urllib.parse.quote(self.run_id), what)
        while True:
            if self.lost.is_set() or self.released:
                raise Lost()
            try:
                return dict(self.worker.transport.call("GET", path, query={"epoch": self.epoch, **query}).json())
            except Problem as e:
                if e.code in GONE and not e.field:
                    self.lose()
                    raise Lost() from e
                if e.code not in PAUSE:
                    raise

    def read_on(self) -> None:
        """Reads the journal and the inbox that did not come with the grant."""
        for part in ("journal", "inbox"):
            after = self.grant.get(part + "_next")
            entries = self.grant.setdefault(part, [])
            if entries is None:
                entries = self.grant[part] = []
            while after:
                page = self.get(part, after=after, limit=1000)
                entries += page.get(part) or []
                after = page.get(part + "_next")


class Kept:
    """Bounds the bytes of commits that the server has not answered."""

    def __init__(self, most: int):
        self.most, self.now = most, 0
        self.changed = threading.Condition()

    def hold(self, size: int) -> "_Hold":
        return _Hold(self, size)


class _Hold:
    def __init__(self, kept: Kept, size: int):
        self.kept, self.size = kept, size

    def __enter__(self) -> None:
        with self.kept.changed:
            if self.kept.now and self.kept.now + self.size > self.kept.most:
                logging.getLogger("perdure").warning("commits wait: %d bytes are kept for the server", self.kept.now)
            while self.kept.now and self.kept.now + self.size > self.kept.most:
                self.kept.changed.wait()
            self.kept.now += self.size

    def __exit__(self, *_: object) -> None:
        with self.kept.changed:
            self.kept.now -= self.size
            self.kept.changed.notify_all()
