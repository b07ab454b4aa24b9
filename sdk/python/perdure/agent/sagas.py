"""Sagas: steps that are undone, the last first, if a later one fails."""

from __future__ import annotations

import inspect
from typing import Any, Callable

from .. import shapes
from ..errors import DEFECTS, Cancelled, Defect, Failure
from . import outcome, steps
from .branch import Branch


class Saga:
    def __init__(self, key: str, outer: "Saga | None"):
        self.key, self.outer = key, outer
        self.done: list[tuple[str, Any, Any]] = []  # steps that can be undone: key, undo, type
        self.failed: Failure | None = None

    def outermost(self) -> "Saga":
        return self.outer.outermost() if self.outer else self


async def saga(b: Branch, name: str, body: Callable[[], Any]) -> Any:
    """Executes a body. If it fails, its steps are undone, and its error is raised as a permanent one."""
    ex = b.ex
    b.guard("ctx.saga")
    key = b.use("saga", name)
    entry = "_saga:" + key
    s = Saga(key, b.sagas[-1] if b.sagas else None)
    known = ex.facts.entries.get(entry)
    if known and "error" in known:
        s.failed = Failure("failed", known["error"].get("message", ""), permanent=True)
        s.failed.code, s.failed._cause = known["error"].get("code", "failed"), entry
    b.sagas.append(s)
    try:
        result = await body()
    except Defect:
        raise
    except Exception as e:
        if isinstance(e, DEFECTS):
            raise
        if known and "ok" in known:
            raise b.held("%s: the saga has succeeded in an earlier execution, and its steps are kept; now its body fails: "
                         "%s" % (entry, e)) from None
        b.sagas.remove(s)
        await _fail(b, s, entry, e)
        raise AssertionError("not reached") from e
    b.sagas.remove(s)
    if s.failed:
        await _fail(b, s, entry, s.failed)
    if known:
        late = [k for k, _, _ in s.done if "_undone:" + k not in ex.facts.entries]
        if late and not s.outer:
            raise b.held("%s: the saga has succeeded in an earlier execution, and its body has the step %s now" %
                         (entry, late[0]))
        b.ask("saga", key)
    else:
        await _succeed(b, s, entry, key)
    b.point = "saga " + key
    return result


async def _succeed(b: Branch, s: Saga, entry: str, key: str) -> None:
    b.begin("the end of the saga " + key)
    if s.outer is None:
        for step, _, _ in s.done:
            if "_undone:" + step not in b.ex.facts.entries:
                b.ex.record("_undone:" + step, {"kept": True})
    b.ex.record(entry, {"ok": True})
    await b.ex.flush()


async def _fail(b: Branch, s: Saga, entry: str, e: Exception) -> None:
    """Records the failure, undoes what was done, and raises the error."""
    ex = b.ex
    failure = s.failed
    if failure is None:
        if not ex.cancelled:
            b.expect_none("the failure of the saga " + s.key)
        cause = outcome.failure_of(e)
        failure = Failure("failed", outcome.message_of(e), permanent=True)
        failure.code = outcome.code_of(e)
        failure._cause = cause._cause if cause else None
        b.errors.clear()
        ex.record(entry, {"error": {"code": failure.code, "message": failure.message}})
        await ex.flush()
    b.point = "saga " + s.key + "!"
    if s.outer is None:
        for step, undo, tp in reversed(s.done):
            if "_undone:" + step not in ex.facts.entries:
                await _undo(b, step, undo, tp)
    failure._cause = _cause(b, s, entry, failure)
    if ex.cancelled and failure.code == "cancelled":
        raise Cancelled(failure.message) from e
    raise failure from e


def _cause(b: Branch, s: Saga, entry: str, failure: Failure) -> Any:
    """Returns the first entry that a retry leaves out: of the steps that were undone, the failure and its cause."""
    places = b.ex.facts.places
    keys = [step for step, _, _ in s.outermost().done] + [entry]
    if isinstance(failure._cause, str):
        keys.append(failure._cause)
    return min((k for k in keys if k in places), key=lambda k: places[k], default=None)


async def _undo(b: Branch, key: str, undo: Any, tp: Any) -> None:
    entry = "_undone:" + key
    value = shapes.decode(b.ex.facts.entries[key]["ok"], tp, strict=False)
    retry = steps.Retry(steps.UNDO_TRIES, 0.1, 2)
    if b.ex.checking:
        await b.ex.stand()

    async def call(s: steps.StepContext) -> None:
        args = (value, s) if len(_positional(undo)) > 1 else (value,)
        await steps.call(b, "the undo of " + key, undo, *args)

    try:
        await steps.tried(b, entry, key, call, retry, None, [], through=True)
    except Defect:
        raise
    except Exception as e:
        raise Failure("not_undone", "%s: %s" % (entry, outcome.message_of(e))) from e
    b.ex.record(entry, {"ok": True})
    await b.ex.flush()


def _positional(f: Callable[..., Any]) -> list[Any]:
    try:
        parameters = inspect.signature(f).parameters.values()
    except (TypeError, ValueError):
        return [None]
    return [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
