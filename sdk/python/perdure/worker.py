"""A worker: leases runs, executes tasks and agents, and keeps their leases alive.

Heartbeats have a thread of their own, so a handler that computes without a pause keeps its lease, as
far as Python's threads allow. Polls have threads, too; agents share one event loop.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import http.client
import json
import logging
import os
import random
import signal
import socket
import sys
import threading
import time
import urllib.parse
import uuid
from typing import Any, Callable, Iterable, TypeVar

from . import canonical, checks, durations, names
from .client import Client
from .grants import Trust, grants
from .handlers import Kind, execute_agent, execute_task
from .lease import PAUSE, Kept, Lease
from .problems import Problem, problem_of
from .threads import Threads

F = TypeVar("F", bound=Callable[..., Any])
_log = logging.getLogger("perdure")
_optional = ("confirms", "build", "start", "except_tenants", "holding")  # a server of the release before may not know
MAX_KEPT = 64 << 20


def default_build() -> str:
    """Returns a hash of the program's own files: those in the folder of the main script, and this package."""
    script = os.path.abspath(sys.argv[0]) if sys.argv and sys.argv[0] else ""
    files = set()
    for folder in {os.path.dirname(script) if os.path.isfile(script) else "", os.path.dirname(__file__)}:
        for root, folders, found in os.walk(folder) if folder else ():
            folders[:] = [f for f in folders if not f.startswith((".", "__")) and f not in ("venv", "node_modules")]
            files |= {os.path.join(root, f) for f in found if f.endswith(".py")}
            if len(files) > 2000:
                break
    h = hashlib.sha256()
    for path in sorted(files):
        try:
            with open(path, "rb") as f:
                h.update(os.path.basename(path).encode() + b"\0" + hashlib.sha256(f.read()).digest())
        except OSError:
            pass
    return "python-" + h.hexdigest()[:16]


class Worker:
    """Executes runs of its kinds until it is told to stop."""

    def __init__(self, url: "str | Iterable[str] | None" = None, key: str | None = None, *, id: str = "",
                 queues: Iterable[str] = ("default",), slots: int = 20, agent_slots: int = 5, build: str = "",
                 all_tenants: bool = False, except_tenants: Iterable[str] = (), trust: str = "",
                 require_signatures: bool = False, grace: float = 30.0, announce: bool = True, context: Any = None,
                 middleware: Iterable[Callable[..., Any]] = ()):
        if not 1 <= slots <= 1000 or not 1 <= agent_slots <= 1000:
            raise ValueError("slots and agent_slots are 1 to 1000")
        self.client = Client(url, key, context=context)
        self.transport = self.client.transport
        self.id = id or "python-%s-%s" % (socket.gethostname()[:40], uuid.uuid4().hex[:8])
        self.queues, self.slots, self.agent_slots = list(queues), slots, agent_slots
        self.build, self.grace, self.announce = build or default_build(), grace, announce
        self.all_tenants, self.except_tenants = all_tenants, list(except_tenants)
        self.trust = Trust(trust, require_signatures)
        self.middleware = list(middleware)
        self.kinds: dict[str, Kind] = {}
        self.kept = Kept(MAX_KEPT)
        self.leases: dict[tuple[str, int], Lease] = {}
        self.changed = threading.Condition()
        self.stopping = threading.Event()
        self.ended = threading.Event()
        self.refused: Problem | None = None
        self.without: set[str] = set()  # fields that the server does not know
        self.calls = Threads(agent_slots * 2 + 4, "perdure-call")
        self.steps = Threads(max(32, agent_slots * 8), "perdure-step")
        self.loop = asyncio.new_event_loop()
        self.lease_type = Lease
        # How many microseconds the clock of the server is ahead: perdure.testing moves it.
        self.ahead: Callable[[], int] = lambda: 0

    # Kinds

    def task(self, kind: str, function: F | None = None, **options: Any) -> Any:
        """Registers a task: a function of the input, or of the input and a perdure.Task. Also a decorator.

        options are the fields of a kind: timeout, retry, description, input_schema, output_schema …
        """
        return self._kind(kind, "task", function, options)

    def agent(self, kind: str, function: F | None = None, **options: Any) -> Any:
        """Registers an agent: an async function of a perdure.Context and the input. Also a decorator.

        ignores names fields of the input that are gone on purpose; signals has a type or a schema for each signal.
        """
        return self._kind(kind, "agent", function, options)

    def _kind(self, kind: str, run_class: str, function: Any, options: dict[str, Any]) -> Any:
        if function is None:
            return functools.partial(self._kind, kind, run_class, options=options)
        fault = names.fault(kind, 200)
        if fault:
            raise ValueError("the kind %r %s" % (kind, fault))
        if kind in self.kinds:
            raise ValueError("the kind %s is there already" % kind)
        if run_class == "agent" and not asyncio.iscoroutinefunction(function):
            raise ValueError("the agent %s is no async function" % kind)
        for name in ("timeout", "hold_timeout"):
            if name in options and not isinstance(options[name], str):
                options[name] = durations.timeout(options[name])
        self.kinds[kind] = Kind(kind, function, run_class, dict(options))
        return function

    def wrapped(self, kind: Kind, lease: Lease, function: Callable[..., Any] | None = None) -> Callable[..., Any]:
        """Returns the function of a kind within the middleware: the first one is the outermost."""
        out = function or kind.function
        for wrap in reversed(self.middleware):
            out = wrap(out, lease.grant)
        return out

    # The life of a worker

    def run(self) -> None:
        """Works until stop is called, or the process gets SIGTERM or SIGINT. Call it in the main thread.

        In a program that perdure builds check has started, it makes the check instead, and returns.
        """
        if not self.kinds:
            raise ValueError("the worker has no kind: register one with task or agent")
        if checks.checking():
            checks.answer(self)
            return
        if threading.current_thread() is threading.main_thread():
            for s in (signal.SIGTERM, signal.SIGINT):
                signal.signal(s, lambda *_: self.stop())
        threads = [threading.Thread(target=self.loop.run_forever, name="perdure-agents", daemon=True),
                   threading.Thread(target=self._heartbeats, name="perdure-heartbeats", daemon=True),
                   threading.Thread(target=self._news, name="perdure-news", daemon=True)]
        if self.announce:
            self._announce()
        pollers = [threading.Thread(target=self._poll, args=(run_class, most), name="perdure-poll-" + run_class, daemon=True)
                   for run_class, most in (("task", self.slots), ("agent", self.agent_slots))
                   if any(k.run_class == run_class for k in self.kinds.values())]
        for t in threads + pollers:
            t.start()
        while not self.stopping.wait(1):
            pass
        for t in pollers:
            t.join(40)  # a poll that is cut off may have leased runs
        self._drain()
        self.ended.set()
        self.loop.call_soon_threadsafe(self.loop.stop)
        if self.refused:
            raise self.refused

    def start(self) -> None:
        """Works in a thread of its own, for tests and programs that do something else."""
        thread = threading.Thread(target=self.run, name="perdure-worker", daemon=True)
        thread.start()

    def stop(self) -> None:
        """Leases no more, gives handlers the grace to end, and releases the others."""
        self.stopping.set()

    def _drain(self) -> None:
        until = time.monotonic() + self.grace
        with self.changed:
            while self.leases and time.monotonic() < until:
                self.changed.wait(min(0.5, max(0.01, until - time.monotonic())))
            left = [x for x in self.leases.values() if not x.lost.is_set()]
        if not left:
            return
        for x in left:
            x.released = True
            x.stop.set()
        try:
            self._call("release", {"runs": [x.key() for x in left]}, 10)
        except (OSError, http.client.HTTPException, Problem) as e:
            _log.warning("release failed runs=%d error=%s", len(left), e)

    def _announce(self) -> None:
        for kind in self.kinds.values():
            body = kind.announcement(self.build)
            if self.all_tenants:
                body["all_tenants"] = True
            try:
                self.transport.call("PUT", "/api/v1/kinds/" + urllib.parse.quote(kind.name, safe=""), body=body, again=True)
            except Problem as e:
                if e.code in ("unauthorized", "forbidden", "invalid", "too_large"):
                    raise
                _log.warning("kind not announced kind=%s error=%s", kind.name, e)

    def _call(self, verb: str, body: dict[str, Any], timeout: float) -> bytes:
        path = "/api/v1/workers/%s/%s" % (urllib.parse.quote(self.id), verb)
        answer = self.transport.once("POST", path, body=canonical.dumps(body).encode(), timeout=timeout)
        if answer.status >= 400:
            raise problem_of(answer.status, answer.headers, answer.data)
        return answer.data

    # Polls

    def _free(self, run_class: str, most: int) -> int:
        used = sum(self.kinds[x.kind].run_class == run_class for x in self.leases.values() if x.kind in self.kinds)
        return most - used

    def _poll(self, run_class: str, most: int) -> None:
        kinds = [k.name for k in self.kinds.values() if k.run_class == run_class]
        pause = 0.1
        while not self.stopping.is_set():
            with self.changed:
                free = self._free(run_class, most)
                if free <= 0:
                    self.changed.wait(0.5)
                    continue
            body: dict[str, Any] = {"queues": self.queues, "kinds": kinds, "slots": free, "wait": "5s", "start": True,
                                    "confirms": True, "build": self.build}
            if self.all_tenants:
                body["all_tenants"] = True
                if self.except_tenants:
                    body["except_tenants"] = self.except_tenants
            polled = time.monotonic()
            try:
                data = self._call("poll", {k: v for k, v in body.items() if k not in self.without}, 35)
            except Problem as e:
                if e.code == "invalid" and e.field in _optional and e.field not in self.without:
                    _log.warning("the server does not know a field of polls field=%s", e.field)
                    self.without.add(e.field)
                    continue
                if e.code in ("unauthorized", "forbidden", "invalid"):
                    self.refused = e
                    self.stop()
                    return
                pause = self._rest(max(pause, e.retry_after))
            except (OSError, http.client.HTTPException):
                self.transport.next_address()
                pause = self._rest(pause)
            else:
                pause = 0.1
                for grant, raw in grants(data):
                    self._lease(grant, raw, polled)

    def _rest(self, pause: float) -> float:
        self.stopping.wait(pause * (0.5 + random.random()))
        return min(5.0, pause * 2)

    def _lease(self, grant: dict[str, Any], raw: bytes, polled: float) -> None:
        lease = self.lease_type(self, grant, polled)
        with self.changed:
            self.leases[lease.run_id, lease.epoch] = lease
        kind = self.kinds[lease.kind]
        if not self.trust.accepts(grant, raw):
            _log.error("signature invalid run=%s", lease.run_id)
            self.calls.submit(self._reject, lease)
        elif kind.run_class == "agent":
            future = asyncio.run_coroutine_threadsafe(execute_agent(self, kind, lease), self.loop)
            future.add_done_callback(lambda f: self._done(lease, f))
        else:
            threading.Thread(target=self._task, args=(kind, lease), name="perdure-task", daemon=True).start()

    def _reject(self, lease: Lease) -> None:
        try:
            lease.commit({"outcome": {"type": "reject", "reason": "signature_invalid"}})
        except BaseException as e:
            _log.warning("reject failed run=%s error=%s", lease.run_id, e)
        self._forget(lease)

    def _task(self, kind: Kind, lease: Lease) -> None:
        try:
            execute_task(self, kind, lease)
        except BaseException as e:
            _log.error("task broken run=%s error=%r", lease.run_id, e)
        self._forget(lease)

    def _done(self, lease: Lease, future: Any) -> None:
        if not future.cancelled() and future.exception():
            _log.error("agent broken run=%s error=%r", lease.run_id, future.exception())
        self._forget(lease)

    def _forget(self, lease: Lease) -> None:
        with self.changed:
            self.leases.pop((lease.run_id, lease.epoch), None)
            self.changed.notify_all()

    # Heartbeats and news

    def _heartbeats(self) -> None:
        while not self.ended.wait(0.1):
            now = time.monotonic()
            with self.changed:
                due = [x for x in self.leases.values() if not x.lost.is_set() and not x.released and x.beat_at <= now]
            for n in range(0, len(due), 1000):
                self._beat(due[n:n + 1000])

    def _beat(self, leases: list[Lease]) -> None:
        told = [x for x in leases if x.cancel]
        beats = [x.beat() for x in leases]
        for x in leases:
            x.beat_at = time.monotonic() + x.every
        try:
            answer = json.loads(self._call("heartbeat", {"runs": beats}, 10))
        except (OSError, http.client.HTTPException):
            self.transport.next_address()
            for x in leases:
                x.beat_at = time.monotonic() + 0.5
            return
        except Problem as e:
            _log.warning("heartbeat refused error=%s", e)
            for x, beat in zip(leases, beats):
                if e.code not in PAUSE:
                    x.forget(beat)
                x.beat_at = time.monotonic() + max(1.0, e.retry_after)
            return
        lost, cancel, later = ({(x["run_id"], x["epoch"]) for x in answer.get(name) or []}
                               for name in ("lost", "cancel", "later"))
        for x, beat in zip(leases, beats):
            if (x.run_id, x.epoch) in later:
                # Its row is locked in the database: the server has noted nothing, and the lease goes on.
                if not x.heard.is_set():
                    x.beat_at = time.monotonic() + 0.5
                continue
            if (x.run_id, x.epoch) in lost:
                x.lose()
                continue
            x.reported(beat)
            x.heard.set()
            if (x.run_id, x.epoch) in cancel and x not in told:
                x.ask_to_stop()

    def _news(self) -> None:
        """Hears of cancels before the next heartbeat."""
        while not self.ended.is_set():
            with self.changed:
                holding = [x.key() for x in self.leases.values() if not x.cancel and not x.lost.is_set()][:1000]
            if not holding:
                self.ended.wait(0.2)
                continue
            body = {"news": True, "slots": 0, "wait": "2s", "holding": holding}
            try:
                answer = json.loads(self._call("poll", {k: v for k, v in body.items() if k not in self.without}, 10))
            except (OSError, http.client.HTTPException, Problem):
                self.ended.wait(1)
                continue
            if answer.get("news"):
                with self.changed:
                    for x in self.leases.values():
                        x.beat_at = min(x.beat_at, time.monotonic())
                self.ended.wait(0.3)
