"""Executes leased runs: tasks in threads, agents on the event loop."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import time
import urllib.parse
import uuid
from typing import TYPE_CHECKING, Any, AsyncIterator, Callable

from . import shapes
from .agent import Context, Execution, limits
from .agent import outcome as outcomes
from .durations import Duration
from .errors import Lost, Refused
from .lease import Lease
from .problems import Problem

if TYPE_CHECKING:
    from .worker import Worker

_log = logging.getLogger("perdure")


class Kind:
    """What a worker executes."""

    def __init__(self, name: str, function: Callable[..., Any], run_class: str, options: dict[str, Any]):
        self.name, self.function, self.run_class, self.options = name, function, run_class, options
        self.ignores = tuple(options.pop("ignores", ()))
        parameters = [p.name for p in inspect.signature(function).parameters.values()]
        place = 1 if run_class == "agent" else 0
        self.takes = len(parameters)
        self.input_type = shapes.of_function(function, parameters[place]) if len(parameters) > place else Any
        self.result_type = shapes.of_function(function, "return")

    def announcement(self, build: str) -> dict[str, Any]:
        out: dict[str, Any] = {"class": self.run_class, "build": build, **self.options}
        for field, tp in (("input_schema", self.input_type), ("output_schema", self.result_type)):
            schema = shapes.schema(tp)
            if schema:
                out.setdefault(field, schema)
        signals = out.get("signals")
        if signals:
            out["signals"] = {name: tp if isinstance(tp, dict) else shapes.schema(tp) for name, tp in signals.items()}
        return out


class Task:
    """Is given to the function of a task, if it has a second parameter."""

    def __init__(self, lease: Lease):
        self._lease = lease
        self.run_id, self.attempt = lease.run_id, int(lease.grant.get("attempt", 1))
        #: A key for other systems. It is the same in every attempt and retry.
        self.idempotency_key = str(lease.grant.get("origin_run_id") or lease.run_id)

    @property
    def stopped(self) -> bool:
        """Whether the run was asked to stop, or is another worker's by now."""
        return self._lease.stop.is_set()

    def wait(self, seconds: float) -> bool:
        """Waits so long, or until the run has to stop. Returns whether it has."""
        return self._lease.stop.wait(seconds)

    def heartbeat(self, activity: str = "", progress: Any = None) -> None:
        """Tells those who watch what the task is doing. It goes with the next heartbeat."""
        self._lease.activity = activity or self._lease.activity
        if progress is not None:
            self._lease.progress = shapes.encode(progress)[0]

    def delta(self, text: str) -> None:
        """Streams text to those who watch."""
        self._event("llm:delta", {"text": shapes.encode(text)[0]})

    def emit(self, type: str, data: Any = None) -> None:
        """Writes a line of the type x:… into the log."""
        if not type.startswith("x:"):
            raise ValueError("the type of a line begins with x:, and %r does not" % type)
        self._event(type, shapes.encode(data)[0])

    def close_limit(self, name: str, closed_for: Duration, *, key: str = "", reason: str = "") -> None:
        """Closes a limit, or one of its keys, for a time: nobody passes it meanwhile, on whatever worker."""
        self._lease.commit({"limits": [limits.closure(name, closed_for, key, reason)]})

    def _event(self, type: str, data: Any) -> None:
        self._lease.commit({"events": [{"type": type, "data": data}]})


def execute_task(worker: "Worker", kind: Kind, lease: Lease) -> None:
    """Executes a task in its thread."""
    if lease.once:
        while not lease.heard.wait(0.2):
            if lease.stop.is_set() and not lease.cancel:
                return
    if lease.cancel:
        commit_outcome(lease, {"type": "cancelled"})
        return
    try:
        value = shapes.decode(lease.grant.get("input"), kind.input_type, strict=False)
    except shapes.Unfit as e:
        commit_outcome(lease, {"type": "fail", "retryable": False,
                               "error": {"code": "invalid_input", "message": outcomes.clean(str(e))}})
        return
    try:
        args = (value, Task(lease))[:kind.takes] if kind.takes else ()
        result = worker.wrapped(kind, lease)(*args)
        if inspect.isawaitable(result):
            result = asyncio.run_coroutine_threadsafe(_await(result), worker.loop).result()
        tree, _ = shapes.encode(result, kind.result_type)
        outcome: dict[str, Any] = {"type": "complete", "result": tree}
    except Lost:
        return
    except shapes.Unrecordable as e:
        outcome = {"type": "fail", "retryable": False,
                   "error": {"code": "invalid_result", "message": outcomes.clean("the result of the task: %s" % e)}}
    except Exception as e:
        _log.warning("task failed run=%s kind=%s error=%r", lease.run_id, kind.name, e, exc_info=_traced(e))
        outcome = {"type": "cancelled"} if lease.cancel else _failed(e)
    commit_outcome(lease, outcome)


def _traced(e: Exception | None) -> Exception | None:
    """Returns an error whose traceback says more than its text: one that was not raised on purpose."""
    return None if outcomes.failure_of(e) else e


def _failed(e: Exception) -> dict[str, Any]:
    failure = outcomes.failure_of(e)
    return {"type": "fail", "retryable": not (failure and failure.permanent),
            "error": {"code": outcomes.code_of(e), "message": outcomes.message_of(e)}}


async def _await(awaitable: Any) -> Any:
    return await awaitable


def commit_outcome(lease: Lease, outcome: dict[str, Any]) -> None:
    """Commits an outcome; one that the server refuses becomes a failure that says so."""
    try:
        lease.commit({"outcome": outcome})
    except Lost:
        pass
    except Refused as e:
        try:
            lease.commit({"outcome": {"type": "fail", "retryable": False, "error": {
                "code": "result_refused", "message": outcomes.clean(str(e))}}})
        except (Lost, Refused):
            _log.warning("outcome refused run=%s error=%s", lease.run_id, e)


class Session:
    """The worker's side of an agent's execution."""

    prompt = True

    def __init__(self, worker: "Worker", lease: Lease, loop: asyncio.AbstractEventLoop):
        self.worker, self.lease, self.loop, self.grant = worker, lease, loop, lease.grant
        self.execution: Execution | None = None
        self.seen = max([i["seq"] for i in lease.grant.get("inbox") or []] or [0])

    async def commit(self, commit: dict[str, Any]) -> dict[str, Any]:
        outcome = commit.get("outcome") or {}
        if outcome.get("type") == "fail":
            error = outcome["error"]
            _log.warning("agent failed run=%s kind=%s code=%s error=%s", self.lease.run_id, self.grant["kind"],
                         error["code"], error["message"], exc_info=_traced(self.execution and self.execution.raised))
        return dict(await self.in_pool(self.lease.commit, commit))

    async def in_pool(self, f: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return await self.loop.run_in_executor(self.worker.calls, lambda: f(*args, **kwargs))

    async def in_thread(self, f: Callable[..., Any], *args: Any) -> Any:
        context = contextvars.copy_context()
        return await self.loop.run_in_executor(self.worker.steps, lambda: context.run(f, *args))

    async def take_limits(self, step: str, takes: list[dict[str, Any]], number: int) -> dict[str, Any]:
        return dict(await self.in_pool(self.lease.take_limits, step, takes, number))

    async def more(self) -> list[dict[str, Any]]:
        out: list[dict[str, Any]] = []
        after: Any = self.seen
        while after is not None:
            page = await self.in_pool(self.lease.get, "inbox", after=after, limit=1000)
            out += page.get("inbox") or []
            after = page.get("inbox_next")
        self.seen = max([i["seq"] for i in out] + [self.seen])
        return out

    async def messages(self, after: int) -> AsyncIterator[dict[str, Any]]:
        while True:
            page = await self.in_pool(self.lease.get, "messages", after=after)
            found = page.get("messages") or []
            for m in found:
                yield m
            if not found:
                return
            after = page["next_after"]

    async def newest(self, last: int) -> AsyncIterator[dict[str, Any]]:
        before = last + 1 if last else (1 << 53) - 1
        while before:
            page = await self.in_pool(self.lease.get, "messages", before=before)
            for m in page.get("messages") or []:
                yield m
            before = page.get("next_before") or 0

    async def peek(self, child: str) -> Any:
        path = "children/%s/activity" % urllib.parse.quote(child, safe="")
        try:
            return await self.in_pool(self.lease.get, path)
        except Problem as e:
            raise Refused(e.code, e.detail) from e

    def now(self) -> int:
        return time.time_ns() // 1000 + self.worker.ahead()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def uuid(self) -> str:
        return str(uuid.uuid4())

    def call_soon(self, f: Callable[..., Any], *args: Any) -> None:
        self.loop.call_soon_threadsafe(f, *args)

    def activity(self, text: str) -> None:
        self.lease.activity = text

    def stopped(self) -> bool:
        return self.lease.stop.is_set()


async def execute_agent(worker: "Worker", kind: Kind, lease: Lease) -> None:
    """Executes an agent on the event loop."""
    session = Session(worker, lease, asyncio.get_running_loop())
    try:
        if lease.once:
            await session.in_pool(_heard, lease)
        await session.in_pool(lease.read_on)
        session.seen = max([i["seq"] for i in lease.grant.get("inbox") or []] + [session.seen])
        function = kind.function if kind.takes > 1 else lambda ctx, _: kind.function(ctx)
        execution = Execution(session, worker.wrapped(kind, lease, function), Context, kind.input_type, kind.result_type,
                              kind.ignores)
        session.execution = execution

        def stopped() -> None:
            if lease.cancel:
                execution.cancelled = True
        lease.on_cancel = lambda: session.call_soon(stopped)
        await execution.run()
    except Lost:
        _log.info("lease lost run=%s epoch=%d", lease.run_id, lease.epoch)
    except Refused as e:
        _log.warning("commit refused run=%s error=%s", lease.run_id, e)
        await session.in_pool(commit_outcome, lease, {"type": "fail", "retryable": False, "error": {
            "code": e.code, "message": outcomes.clean(e.detail)}})


def _heard(lease: Lease) -> None:
    while not lease.heard.wait(0.2):
        if lease.lost.is_set() or lease.released:
            raise Lost()

