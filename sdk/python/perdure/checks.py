"""Replays live runs with a worker's agents before it is released, and tells which it would hold.

A replay is an ordinary execution that ends where it would do something new: execute a step, commit, or
read what is not recorded. Nothing is executed and nothing is written. "perdure builds check" starts the
worker's program with PERDURE_CHECK, and Worker.run answers it: the protocol is in docs/releases.md.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import random
import re
import ssl
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, AsyncIterator, Callable, Iterable, Iterator

from .agent import Context, Execution
from .client import Client
from .problems import Problem

if TYPE_CHECKING:
    from .worker import Worker

VARIABLE = "PERDURE_CHECK"
LIVE = "queued,dispatched,running,suspended,deferred"
MAX_CAUSES, MAX_RUNS = 1000, 100
_varying = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9]+")
_where = re.compile(r"^(?:the (?:step|wait|child|branch|map|token|history|version|choice) )?([^:\n]+(?::[^ \n]+)*): ")


def checking() -> bool:
    """Tells whether perdure builds check has started this program. Leave out what it does beside its workers."""
    return bool(os.environ.get(VARIABLE))


class Unchecked(Exception):
    """The check could not be made."""


class Report(dict[str, Any]):
    """What a check has found, as perdure builds check --json prints it."""

    @property
    def ok(self) -> bool:
        """Whether every run can be continued."""
        return not self["held"] + self["failed"] + self["unknown"]

    def __str__(self) -> str:
        out = "%d runs replayed: %d would be held, %d would fail, %d could not be checked" % (
            self["runs"], self["held"], self["failed"], self["unknown"])
        return "\n".join([out] + ["%d %s, %s, %s at %s: %s" % (
            c["count"], c["kind"], c["verdict"], c["code"], c.get("where") or "its beginning", c["message"])
            for c in self["causes"]])


class Session:
    """The side of an execution that replays and sends nothing."""

    prompt, checking = False, True

    def __init__(self, replay: dict[str, Any]):
        self.grant, self.thread = replay, replay.get("messages") or []
        self.asleep = [w["id"] for w in replay.get("waits") or [] if w.get("asleep")]
        self.outcome: dict[str, Any] = {}
        self.looked, self.passed = False, 0.0

    async def commit(self, commit: dict[str, Any]) -> dict[str, Any]:
        self.outcome = commit.get("outcome") or self.outcome
        return {}

    async def more(self) -> list[dict[str, Any]]:
        return []

    async def messages(self, after: int) -> AsyncIterator[dict[str, Any]]:
        for m in self.thread:
            if m["seq"] > after:
                yield m

    async def newest(self, last: int) -> AsyncIterator[dict[str, Any]]:
        for m in reversed(self.thread):
            if not last or m["seq"] <= last:
                yield m

    def now(self) -> int:
        return time.time_ns() // 1000 + int(self.passed * 1e6)

    async def sleep(self, seconds: float) -> None:
        self.passed += seconds
        await asyncio.sleep(0)

    def uuid(self) -> str:
        return "00000000-0000-4000-8000-000000000000"

    def call_soon(self, f: Callable[..., Any], *args: Any) -> None:
        """Lines of steps: no step is executed."""

    def activity(self, text: str) -> None:
        """Nobody watches a check."""

    def stopped(self) -> bool:
        return False


class _Grant:
    def __init__(self, grant: dict[str, Any]):
        self.grant = grant


class Check:
    """One check of a worker's agents."""

    def __init__(self, worker: "Worker", *, files: Iterable[str] = (), sample: int = 0, at_once: int = 0,
                 timeout: float = 30.0, client: Client | None = None,
                 progress: Callable[[int, int], None] | None = None):
        self.worker, self.files, self.sample = worker, [*files], sample
        self.at_once, self.timeout = at_once or 2 * (os.cpu_count() or 1), timeout
        self.client, self.progress = client or worker.client, progress
        self.kinds = sorted(k.name for k in worker.kinds.values() if k.run_class == "agent")
        self.report = Report(build=worker.build, kinds=self.kinds, runs=0, held=0, failed=0, unknown=0, causes=[], ms=0)
        self.causes: dict[tuple[str, ...], dict[str, Any]] = {}
        self.lock = threading.Lock()
        self.error: BaseException | None = None

    def run(self) -> Report:
        began = time.monotonic()
        todo: "queue.Queue[Callable[[], None] | None]" = queue.Queue(self.at_once * 2)
        threads = [threading.Thread(target=self._work, args=(todo,), daemon=True) for _ in range(self.at_once)]
        for t in threads:
            t.start()
        try:
            for job in self._files() if self.files else self._live():
                todo.put(job)
                if self.error:
                    break
        finally:
            for _ in threads:
                todo.put(None)
            for t in threads:
                t.join()
        if self.error:
            raise self.error
        for cause in self.causes.values():
            cause["runs"].sort()
        self.report["causes"] = sorted(self.causes.values(), key=lambda c: (-c["count"], c["kind"], c["message"]))
        self.report["ms"] = int((time.monotonic() - began) * 1000)
        return self.report

    def _work(self, todo: "queue.Queue[Callable[[], None] | None]") -> None:
        while True:
            job = todo.get()
            if job is None:
                return
            try:
                if not self.error:
                    job()
            except Exception as e:
                self.error = self.error or e

    def _files(self) -> Iterator[Callable[[], None]]:
        for name in self.files:
            yield lambda name=name: self._file(name)  # type: ignore[misc]

    def _live(self) -> Iterator[Callable[[], None]]:
        for kind in self.kinds:
            ids = (r.id for r in self.client.list(kind=kind, status=LIVE, limit=200))
            for id in _sampled(ids, self.sample) if self.sample else ids:
                yield lambda id=id: self._run(id)  # type: ignore[misc]

    def _file(self, name: str) -> None:
        with open(name, encoding="utf-8") as f:
            try:
                replay = json.load(f)
                version = int(replay["replay_version"])
                kind = replay["kind"]
            except (ValueError, KeyError, TypeError):
                raise Unchecked("%s: the file is no exported journal: perdure journal RUN --export FILE writes one"
                                % name) from None
        if version > 1:
            raise Unchecked("%s: the file has version %d, and this library reads up to 1" % (name, version))
        if kind not in self.kinds:
            raise Unchecked("%s: it is a run of the kind %r, and this worker has no such agent: it has %s" % (
                name, kind, ", ".join(self.kinds) or "none"))
        self.judge(replay)

    def _run(self, run_id: str) -> None:
        try:
            replay = self.client.replay(run_id)
        except Problem as e:
            if e.code == "not_found":
                return  # it has ended, and was deleted
            if e.code not in ("damaged", "wrong_state"):
                raise Unchecked("read run %s: %s" % (run_id, e)) from e
            self.add("unknown", {"run_id": run_id, "kind": ""}, {"code": e.code, "message": str(e)})
            return
        if replay["state"] not in ("completed", "failed", "cancelled", "timeout"):
            self.judge(replay)

    def judge(self, replay: dict[str, Any]) -> None:
        """Replays a run, and adds the verdict."""
        kind, session = self.worker.kinds[replay["kind"]], Session(replay)
        ends: list[BaseException | None] = []

        def execute() -> None:
            try:
                asyncio.run(asyncio.wait_for(self._execute(kind, session), self.timeout))
                ends.append(None)
            except BaseException as e:
                ends.append(e)
        thread = threading.Thread(target=execute, daemon=True)  # a function may hold its thread for ever
        thread.start()
        thread.join(self.timeout + 1)
        if not ends or isinstance(ends[0], (asyncio.TimeoutError, TimeoutError)):
            self.add("unknown", replay, {"code": "wait_timeout", "message": (
                "its replay did not end in %gs: does the function wait for something that a step does?" % self.timeout)})
            return
        if ends[0]:
            raise ends[0]
        out = session.outcome
        error = out.get("error")
        if not error or session.looked:
            self.add("", replay, {})
        elif out.get("defect"):
            self.add("held", replay, error)
        elif replay["state"] == "suspended" and not replay.get("cancel"):
            self.add("fails", replay, error)
        else:
            self.add("", replay, {})  # its journal says that it fails

    async def _execute(self, kind: Any, session: Session) -> None:
        function = kind.function if kind.takes > 1 else lambda ctx, _: kind.function(ctx)
        wrapped = self.worker.wrapped(kind, _Grant(session.grant), function)  # type: ignore[arg-type]
        await Execution(session, wrapped, Context, kind.input_type, kind.result_type, kind.ignores).run()

    def add(self, verdict: str, replay: dict[str, Any], why: dict[str, Any]) -> None:
        """Counts a run, and its cause if it has one."""
        with self.lock:
            self.report["runs"] += 1
            if verdict:
                self.report["failed" if verdict == "fails" else verdict] += 1
                self._cause(verdict, replay, why)
            if self.progress and self.report["runs"] % 100 == 0:
                self.progress(self.report["runs"], self.report["held"] + self.report["failed"])

    def _cause(self, verdict: str, replay: dict[str, Any], why: dict[str, Any]) -> None:
        text = why["message"].split("\n", 1)[0]
        key = (verdict, replay["kind"], why["code"], _varying.sub("#", text))
        cause = self.causes.get(key)
        if cause is None:
            if len(self.causes) >= MAX_CAUSES:
                return
            cause = {"verdict": verdict, "kind": replay["kind"], "code": why["code"], "message": why["message"],
                     "count": 0, "runs": []}
            found = _where.match(why["message"]) if why["code"] == "nondeterminism" else None
            if found:
                cause["where"], cause["message"] = found.group(1), why["message"][found.end():]
            self.causes[key] = cause
        cause["count"] += 1
        if len(cause["runs"]) < MAX_RUNS:
            cause["runs"].append(replay["run_id"])


def _sampled(ids: Iterable[str], most: int) -> list[str]:
    """Each has the same chance to be in the sample."""
    out: list[str] = []
    for n, id in enumerate(ids):
        if len(out) < most:
            out.append(id)
        else:
            at = random.randrange(n + 1)
            if at < most:
                out[at] = id
    return out


def check(worker: "Worker", **options: Any) -> Report:
    """Replays live runs of a worker's agents, or the runs of files, and reports which this build would hold.

    options are files, sample, at_once, timeout, client and progress. Nothing is executed and nothing is written.
    """
    return Check(worker, **options).run()


def answer(worker: "Worker") -> None:
    """Makes the check that perdure builds check asks for, and appends the result to its file."""
    ask = json.loads(os.environ[VARIABLE])
    _append(ask["report"], {"began": True})
    try:
        context = ssl.create_default_context(cafile=ask["ca"]) if ask.get("ca") else None
        client = Client(ask["url"], ask.get("key", ""), tenant=ask.get("tenant", ""), context=context) \
            if ask.get("url") else None
        report = check(worker, files=ask.get("files") or (), sample=ask.get("sample", 0), at_once=ask.get("at_once", 0),
                       client=client, progress=_Progress())
    except Exception as e:
        _append(ask["report"], {"ended": True, "error": str(e) or repr(e)})
        return
    _append(ask["report"], {"ended": True, "report": report})


class _Progress:
    """Says now and then how far a check is."""

    def __init__(self) -> None:
        self.said = time.monotonic()

    def __call__(self, done: int, held: int) -> None:
        if time.monotonic() - self.said > 2:
            self.said = time.monotonic()
            print("%d runs replayed, %d would be held" % (done, held), file=sys.stderr, flush=True)


def _append(file: str, line: dict[str, Any]) -> None:
    """Adds a line by one write, which the system appends as a whole: a program may have several workers."""
    handle = os.open(file, os.O_APPEND | os.O_WRONLY)
    try:
        os.write(handle, json.dumps(line).encode() + b"\n")
    finally:
        os.close(handle)
