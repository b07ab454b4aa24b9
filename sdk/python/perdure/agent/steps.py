"""Steps: a function whose result is recorded."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import time
from typing import Any, Callable

from .. import canonical, durations, shapes
from ..errors import Cancelled, Defect, Failure, Lost, StepFailed, Suspended
from . import limits, outcome
from .branch import Branch, current, inside

UNDO_TRIES = 5


@dataclasses.dataclass(frozen=True)
class Retry:
    """How often a function is called again in one execution: attempts in all, with pauses that double."""

    attempts: int = 3
    first: durations.Duration = 1.0
    max: durations.Duration = 60.0
    except_codes: tuple[str, ...] = ()

    def fault(self) -> str:
        """Returns what is wrong with it, or nothing."""
        if not isinstance(self.attempts, int) or self.attempts < 0:
            return "a Retry of %r attempts; a negative number of calls can't be made" % (self.attempts,)
        try:
            negative = min(durations.microseconds(self.first), durations.microseconds(self.max)) < 0
        except ValueError as e:
            return "a Retry: %s" % e
        return "a Retry with a negative pause" if negative else ""


class StepContext:
    """Is given to the function of a step."""

    def __init__(self, b: Branch, name: str, key: str, number: int):
        self._b, self._name, self._try = b, name, number
        self._since = time.monotonic()
        grant = b.ex.session.grant
        #: A key for the systems that the step calls. It is the same in every execution and retry.
        self.idempotency_key = "%s/%s" % (grant.get("origin_run_id") or grant.get("run_id", ""), key)
        self.run_id: str = grant.get("run_id", "")

    @property
    def cancelled(self) -> bool:
        """Whether the run was asked to stop, or the lease is gone."""
        return bool(self._b.ex.cancelled or self._b.ex.session.stopped())

    def delta(self, text: str) -> None:
        """Streams text to those who watch. A step that is executed again streams again."""
        self._event("llm:delta", {"text": text, "step": self._name, "try": self._try})

    def reasoning(self, text: str) -> None:
        """Streams what a model thinks before it answers. It is no part of the run's text."""
        self._event("llm:delta", {"text": text, "step": self._name, "try": self._try, "channel": "reasoning"})

    def emit(self, type: str, data: Any = None) -> None:
        """Writes a line of the type x:… into the log."""
        if not type.startswith("x:"):
            raise ValueError("the type of a line begins with x:, and %r does not" % type)
        self._event(type, data)

    def progress(self, data: Any) -> None:
        self._event("run:progress", data)

    def heartbeat(self, activity: str) -> None:
        """Tells those who watch what the step is doing. It goes with the next heartbeat."""
        self._b.ex.session.activity(activity)

    def close_limit(self, name: str, closed_for: durations.Duration, *, key: str = "", reason: str = "") -> None:
        """Closes a limit, or one of its keys, for a time: no step and no run passes it, on whatever worker.

        It does not wait: the closure goes with the next commit. One that holds for longer stays, and a limit that is
        not there is left out.
        """
        ex = self._b.ex
        ex.session.call_soon(ex.close_limit, limits.closure(name, closed_for, key, reason))

    async def unread(self, after: int) -> bool:
        """Tells whether a user has appended messages to the thread after the one with a number. It is not recorded."""
        session = self._b.ex.session
        if not session.grant.get("thread_id"):
            return False
        async for m in session.messages(after):
            if m["role"] == "user" and m.get("run_id") != self.run_id:
                return True
        return False

    def _event(self, type: str, data: Any) -> None:
        tree, _ = shapes.encode(data)
        ex = self._b.ex
        ex.session.call_soon(ex.event, type, tree)


def takes_context(f: Callable[..., Any]) -> bool:
    """Tells whether a function has a parameter for the context of its step."""
    try:
        parameters = inspect.signature(f).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)


async def call(b: Branch, what: str, f: Callable[..., Any], *args: Any) -> Any:
    """Calls a function that may be async. A plain one is called in a thread."""
    token, here = inside.set(what), current.set(b)
    try:
        return await _called(b, f, *args)
    except (SystemExit, KeyboardInterrupt) as e:
        raise Failure("exit", "%s ends the process: %r" % (what, e)) from e
    finally:
        inside.reset(token)
        current.reset(here)


async def _called(b: Branch, f: Callable[..., Any], *args: Any) -> Any:
    if inspect.iscoroutinefunction(f):
        return await f(*args)
    result = await b.ex.session.in_thread(f, *args)
    return await result if inspect.isawaitable(result) else result


async def tried(b: Branch, key: str, name: str, f: Callable[..., Any], retry: Retry | None,
                timeout: durations.Duration | None, takes: list[dict[str, Any]], through: bool = False) -> Any:
    """Calls the function of a step until it succeeds or has had its tries."""
    tries = max(1, retry.attempts) if retry else 1
    pause = durations.microseconds(retry.first) / 1e6 if retry else 0.0
    for n in range(1, tries + 1):
        s = StepContext(b, name, key, b.ex.epoch * 1000 + n)
        try:
            return await _limited(b, key, f, (s,) if takes_context(f) else (), timeout)
        except Defect:
            raise
        except Exception as e:
            code = outcome.code_of(e)
            failure = outcome.failure_of(e)
            if n == tries or failure and failure.permanent or retry and code in retry.except_codes \
                    or s.cancelled and not through:
                raise
            b.ex.event("x:step_retried", {"step": key, "try": n, "code": code, "message": outcome.message_of(e),
                                          "pause_ms": int(pause * 1000)})
            await b.ex.session.sleep(pause)
            await limits.admit_again(b, key, takes, n)
            pause = min(pause * 2, durations.microseconds(retry.max) / 1e6 if retry else 0)


async def _limited(b: Branch, key: str, f: Callable[..., Any], args: tuple[Any, ...],
                   limit: durations.Duration | None) -> Any:
    what = "the step " + key
    if limit is None:
        return await call(b, what, f, *args)
    seconds = max(0.0, durations.microseconds(limit) / 1e6)
    late = StepFailed("step_timeout", "step %s: it took longer than %s" % (key, durations.text(int(seconds * 1e6))))
    if not inspect.iscoroutinefunction(f):  # a thread can't be stopped: its result comes too late
        began = time.monotonic()
        result = await call(b, what, f, *args)
        if time.monotonic() - began > seconds:
            raise late
        return result
    try:
        return await asyncio.wait_for(call(b, what, f, *args), seconds)
    except asyncio.TimeoutError:
        raise late from None


async def step(b: Branch, name: str, f: Callable[..., Any], *, about: Any = None, has_about: bool = False, undo: Any = None,
               retry: Retry | None = None, timeout: durations.Duration | None = None,
               takes: "list[dict[str, Any]] | None" = None, tp: Any = None, key: str = "", aside: bool = False,
               crew: "limits.Crew | None" = None) -> Any:
    """Executes a step, or returns what is recorded of it."""
    ex = b.ex
    key = key or b.use("step", name)
    tp = tp if tp is not None else shapes.of_function(f, "return")
    of = ""
    if has_about:
        try:
            of = canonical.digest(shapes.encode(about)[0])
        except (shapes.Unrecordable, ValueError) as e:
            b.wrong("the value that the step %s is about: %s" % (key, e))
    point = "" if aside else "step " + key
    saga = b.sagas[-1] if b.sagas and undo is not None else None
    if key in ex.facts.entries:
        return recorded(b, key, of, tp, point, saga, undo)
    b.begin("the step " + key)
    await ex.fresh()
    if ex.cancelled:
        raise Cancelled()
    return await _execute(b, name, f, key, of, undo, retry, timeout, takes or [], tp, aside, point, saga, crew)


async def _execute(b: Branch, name: str, f: Callable[..., Any], key: str, of: str, undo: Any, retry: Retry | None,
                   timeout: Any, takes: list[dict[str, Any]], tp: Any, aside: bool, point: str, saga: Any,
                   crew: "limits.Crew | None") -> Any:
    ex = b.ex
    value: dict[str, Any] = {"aside": True} if aside else {}
    try:
        await limits.admit(b, key, takes, crew)
        result = await tried(b, key, name, f, retry, timeout, takes)
        if ex.defect:
            raise ex.defect
        try:
            tree, marks = shapes.encode(result, tp)
        except shapes.Unrecordable as e:
            raise Failure(e.code, "step %s: its result, a %s: %s" % (key, shapes.name_of(type(result)), e),
                          permanent=True) from None
    except (Defect, Suspended, Lost):
        raise
    except Exception as e:
        raise await _failed(b, key, e, value, of, point) from e
    if of:
        value["of"] = of
    if marks:
        value["as"] = marks
    value["ok"] = tree
    ex.record(key, value)
    if saga is not None:
        ex.record("_undo:" + key, True)
        saga.outermost().done.append((key, undo, tp))
    if point:
        b.point = point
    await ex.flush()
    return _typed(b, key, tree, tp)


async def _failed(b: Branch, key: str, e: Exception, value: dict[str, Any], of: str, point: str) -> Failure:
    """Returns the error of a step, and records it if it is permanent."""
    ex = b.ex
    if ex.defect:
        raise ex.defect
    cause = outcome.failure_of(e)
    failure = StepFailed(outcome.code_of(e), outcome.message_of(e), permanent=bool(cause and cause.permanent))
    if point:
        b.point = point + "!"
    if isinstance(cause, Cancelled) and ex.cancelled:
        return cause
    if not failure.permanent:
        failure._of, failure._aside = of, bool(value)  # type: ignore[attr-defined]
        b.errors.append((key, failure))
        return failure
    value["error"] = {"code": failure.code, "message": failure.message}
    if of:
        value["of"] = of
    ex.record(key, value)
    failure._cause = key
    await ex.flush()
    return failure


def recorded(b: Branch, key: str, of: str, tp: Any, point: str, saga: Any, undo: Any) -> Any:
    """Returns what the journal has of a step, or raises it."""
    value = b.ex.facts.entries[key]
    b.ask("step", key)
    if of and value.get("of") and value["of"] != of:
        raise b.held("%s: the journal has a step about another value than the one for which the agent asks now; "
                     "announce the change with ctx.version" % key)
    error = value.get("error")
    if error:
        if point:
            b.point = point + "!"
        failure = StepFailed("failed", error.get("message", ""), permanent=True)
        failure.code, failure._cause = error.get("code", "failed"), key
        raise failure
    if point:
        b.point = point
    try:
        shapes.check_marks(value.get("as") or [], tp)
    except shapes.Unfit as e:
        raise b.held("%s: %s" % (key, e)) from None
    if saga is not None:
        saga.outermost().done.append((key, undo, tp))
    return _typed(b, key, value["ok"], tp, bool(value.get("loose")))


def _typed(b: Branch, key: str, tree: Any, tp: Any, loose: bool = False) -> Any:
    try:
        return shapes.decode(tree, tp, strict=not loose)
    except shapes.Unfit as e:
        raise b.held("%s: the recorded value does not fit the type that the step asks for: %s; announce the change with "
                     "ctx.version, or keep a type that reads it" % (key, e)) from None
