"""Futures: children, and waits for signals, messages, timers, callbacks and approvals."""

from __future__ import annotations

from typing import Any

from .. import canonical, durations, names, shapes
from ..errors import Failure, Refused, SignalTimeout, TaskFailed, TaskStalled, TaskTimedOut, WaitTimeout
from .branch import Branch, awaited
from .facts import Item

CLAIMS = ("signal", "message", "timer")


class Future:
    """Something that the agent can wait for. It is made by the calls of a context."""

    def __init__(self, b: Branch, sort: str, *, key: str = "", base: str = "", name: str = "", tp: Any = Any,
                 spec: dict[str, Any] | None = None, on_stall: bool = False, error: Failure | None = None):
        self._b, self._sort, self._base, self._name, self._type = b, sort, base, name, tp
        self._spec = spec or {}
        self._on_stall, self._error = on_stall, error
        self._item: Item | None = None
        self._due: int | None = None
        self._action: Any = None
        #: The key of a child.
        self.key = key

    # Names

    @property
    def id(self) -> str:
        """The id of the wait, which is another one after it has lost a choice."""
        n, out, facts = 1, self._base, self._b.ex.facts
        while out in facts.closed and out not in facts.waits:
            n += 1
            out = "%s.%d" % (self._base, n)
        return out

    @property
    def run_id(self) -> str:
        """The run of a child, once it is known."""
        end = self._b.ex.facts.ends.get(self.key)
        return end.run if end else self._b.ex.runs.get(self.key, "")

    def _label(self) -> str:
        """Returns its name in a choice."""
        if self._error:
            return "!" + self._name
        return self.key or self.id

    def _line(self) -> str:
        return "%s %s\n" % (self.key, self._base)

    def _is_child(self) -> bool:
        return bool(self.key)

    # How it ended

    def _end(self, join: str = "") -> Item | None:
        """Returns the fact that ends it. join is the wait in which a stall counts."""
        facts = self._b.ex.facts
        if self._item is not None:
            return self._item
        if self._error:
            return None
        if self.key:
            end = facts.ends.get(self.key)
            stall = self._stall(join) if self._on_stall and join else None
            return stall if stall and (end is None or stall.order < end.order) else end
        return facts.waits.get(self.id)

    def _stall(self, join: str) -> Item | None:
        for item in self._b.ex.facts.items:
            if item.outcome == "stalled" and item.name == self.key and item.wait.startswith(join + ".stall"):
                return item
        return None

    def _arrived(self, join: str = "") -> tuple[int, int] | None:
        """Returns its place among others, or None if it has not ended. It takes nothing."""
        if self._error:
            return (-1, 0)
        end = self._end(join)
        if end is not None:
            return self._place(end)
        if self._sort not in CLAIMS:
            return None
        raw = self._there()
        if raw is not None:
            return (1, raw["seq"])
        if self._due is not None and self._due <= self._b.ex.session.now():
            return (2, self._due)
        return None

    def _place(self, item: Item) -> tuple[int, int]:
        if item.at is None and item.seq:
            return (1, item.seq)
        return (0, item.order)

    def _there(self) -> dict[str, Any] | None:
        """Returns the inbox item that it would take: the one given to it, or else the oldest that is free."""
        ex, wait = self._b.ex, self.id
        free = None
        for raw in ex.inbox.values():
            if raw["type"] != self._sort or raw["seq"] in ex.facts.taken:
                continue
            given = raw.get("wait_id", "")
            if given == wait:
                return raw
            if self._sort == "timer" or raw.get("name", "") != (self._name if self._sort == "signal" else ""):
                continue
            if free is None and (not given or given in ex.facts.closed):
                free = raw
        return free

    def _take(self) -> Item | None:
        """Makes its end a fact, if it has come."""
        ex, end = self._b.ex, self._end()
        if end is not None or self._sort not in CLAIMS:
            return end
        raw = self._there()
        if raw is not None:
            if self.id in ex.facts.opened:
                self._b.keep_errors()
            else:
                self._b.begin("the wait " + self.id)
            return ex.fact(raw, self.id, unfit=not self._fits(raw.get("data")))
        if self._due is None or self._due > ex.session.now():
            return None
        self._b.begin("the wait " + self.id)
        return self._passed()

    def _passed(self) -> Item:
        """Ends a timer whose time has passed without the server."""
        ex, wait = self._b.ex, self.id
        raw = {"seq": 0, "type": "timer", "wait_id": wait, "outcome": "satisfied"}
        item = ex.fact(raw, wait)
        if wait in ex.facts.opened:
            segment = ex.segment()
            segment.of_frame("closed").append(wait)
            segment.close.append(wait)
        return item

    def _fits(self, data: Any) -> bool:
        try:
            shapes.decode(data, self._type, strict=False)
            return True
        except shapes.Unfit:
            return False

    def _specs(self) -> dict[str, Any]:
        """Returns the wait that it opens now."""
        if self._due is not None:
            left = max(1, self._due - self._b.ex.session.now())  # it may have ended just now
            return {"id": self.id, "type": "timer", "timeout": durations.text(left)}
        return {**self._spec, "id": self.id}

    # Results

    def _failure(self, join: str = "") -> Failure | None:
        """Returns the error with which it ended, if it has ended in one."""
        if self._error:
            return self._error
        end = self._end(join)
        if end is None:
            return None
        failure = self._failure_of(end)
        if failure is None:
            failure = self._unfit(end)
        if failure is not None and failure._cause is None:
            failure._cause = end
        return failure

    def _failure_of(self, end: Item) -> Failure | None:
        if end.outcome == "stalled":
            return TaskStalled(end.run, self._kind())
        if end.type == "child":
            if end.outcome == "completed":
                return None
            make = TaskTimedOut if end.outcome == "timeout" else TaskFailed
            return make(end.run, self._kind(), end.outcome, end.data)
        if end.failure is not None:
            failure = Failure("failed", end.failure.get("message", ""), permanent=True)
            failure.code = end.failure.get("code") or "failed"
            return failure
        if end.type == "timeout" and self._sort != "approval":
            return SignalTimeout() if self._sort == "signal" else WaitTimeout()
        return None

    def _unfit(self, end: Item) -> Failure | None:
        """Returns the error of a result that the type can't read. It is a fact."""
        if self._sort in ("timer", "approval"):
            return None
        ex, name = self._b.ex, self.key or end.wait
        problem = ""
        try:
            shapes.decode(end.data, self._type, strict=False)
        except shapes.Unfit as e:
            problem = str(e)
        known = end.unfit or name in ex.facts.unfit
        if not problem and not known:
            return None
        if not known and self._sort not in CLAIMS and (end.at is None or not ex.facts.left(self._b.prefix)):
            ex.segment().of_frame("unfit").append(name)
            ex.facts.unfit.add(name)
            known = True
        if not known:
            raise self._b.held("%s: an earlier execution could read what came, and this one can't: %s" % (name, problem))
        return Failure("invalid", "%s: what came does not fit: %s" % (name, problem or "the type of an earlier release"),
                       permanent=True)

    def _kind(self) -> str:
        return self._name

    def _value(self) -> Any:
        end = self._end()
        if end is None:
            return None
        if self._sort == "approval":
            return Verdict(end)
        if self._sort == "timer":
            return None
        return shapes.decode(end.data, self._type, strict=False)

    # For users

    @property
    def done(self) -> bool:
        """Whether it has ended, and a call has waited for it."""
        return bool(self._error) or self._end() is not None

    def result(self) -> Any:
        """Returns the result of one that has ended, or raises its error. It never waits."""
        self._b.guard("the result of " + self._label())
        failure = self._failure()
        if failure:
            raise failure
        if self._end() is None:
            self._b.wrong("the result of %s, which has not ended: select or join it first" % self._label())
        return self._value()

    @awaited
    async def join(self) -> Any:
        """Waits for it, and returns its result or raises its error."""
        from . import joins  # which needs this module
        return (await joins.join_all(self._b, [self], "join of " + self._label()))[0]

    @awaited
    async def token(self) -> str:
        """Returns the token of a callback: its key for POST /api/v1/callbacks/{token}."""
        b, ex = self._b, self._b.ex
        with b.call("token of " + self._base):
            if self._sort != "callback":
                b.wrong("token of %s: only a callback has one" % self._label())
            key = "_token:%s%s" % ("%d:" % ex.first_epoch if ex.first_epoch else "", self._base)
            if key in ex.facts.entries:
                return str(ex.facts.entries[key])
            if not ex.first_epoch:  # a retry has tokens of its own, also for callbacks of its original
                b.begin("the token of " + self._base)
            await ex.fresh()
            token = ex.tokens.get(self._base)
            if token is None:
                raise Failure("wait_closed", "the callback %s is over, and has no token any more" % self._base)
            ex.record(key, token)
            return token

    @awaited
    async def cancel(self) -> bool:
        """Asks a child to stop, or withdraws a question. Returns False if it had ended before."""
        b, ex = self._b, self._b.ex
        with b.call("cancel of " + self._label()):
            if self._sort in ("callback", "approval"):
                return await self._withdraw()
            if self._error or self._sort in CLAIMS:
                return False
            if self.key in ex.facts.ends:
                return False
            if self.key not in ex.facts.cancelled:
                b.begin("the cancel of " + self.key)
                segment = ex.segment()
                segment.of_frame("cancelled").append(self.key)
                segment.cancel.append(self.key)
                ex.facts.cancelled.add(self.key)
                ex.soon()
            return True

    async def _withdraw(self) -> bool:
        b, ex, wait = self._b, self._b.ex, self._base
        entry = "_withdraw:" + wait
        if entry in ex.facts.entries:
            if ex.facts.entries[entry]:
                self._error = Failure("withdrawn", "%s was withdrawn" % wait, permanent=True)
            return bool(ex.facts.entries[entry])
        if wait in ex.facts.waits:
            return False
        b.begin("the withdrawal of " + wait)
        for segment in ex.segments:
            segment.waits.pop(wait, None)
        await ex.fresh()
        ex.segment().close.append(wait)
        await ex.flush()
        await ex.look()
        withdrawn = wait not in ex.facts.waits
        ex.record(entry, withdrawn)
        if withdrawn:
            self._error = Failure("withdrawn", "%s was withdrawn" % wait, permanent=True)
        return withdrawn

    @awaited
    async def late(self) -> Any:
        """Returns the adopted late result of a child that has timed out, or None. The answer is recorded."""
        b, ex = self._b, self._b.ex
        with b.call("late of " + self._label()):
            inner = b.prefix
            key = "_late:%s%s" % (self.key, "//" + inner if inner else "")
            n = b.counts["late", key] = b.counts.get(("late", key), 0) + 1
            key = "%s#%d" % (key, n)
            if key not in ex.facts.entries:
                b.begin("the late result of " + self.key)
                if ex.checking:
                    await ex.stand()
                await ex.look()
                value: dict[str, Any] = {}
                for raw in ex.inbox.values():
                    if raw["type"] == "late_result" and raw.get("name") == self.key:
                        value = {"seq": raw["seq"], "data": raw.get("data")}
                ex.record(key, value)
                if value:
                    ex.segment().ack.append(value["seq"])
            found = ex.facts.entries[key].get("data")
            return None if found is None else shapes.decode(found, self._type, strict=False)

    @awaited
    async def peek(self) -> dict[str, Any]:
        """Returns what a child is doing now. Call it in a step if the agent decides by it."""
        if not self.key:
            self._b.wrong("peek at %s, which is no child" % self._label())
        if self._b.ex.checking:
            self._b.ex.session.looked = True
            await self._b.ex.stand()
        try:
            return dict(await self._b.ex.session.peek(self.run_id or self.key))
        except Refused as e:
            raise Failure(e.code, e.detail) from e


class Verdict:
    """What a person has decided about an action."""

    def __init__(self, end: Item):
        data = end.data if isinstance(end.data, dict) else {}
        self.timed_out = end.type == "timeout"
        self.decision: str = data.get("decision", "")
        self.granted = self.decision == "approve"
        self.comment: str = data.get("comment", "")
        self.answer: Any = data.get("answer")
        self.by: Any = data.get("by")
        self.at: str = data.get("at", "")
        self.approval_id: str = data.get("approval_id", "")


def spawn(b: Branch, kind: str, input: Any, has_input: bool, tp: Any, options: dict[str, Any], on_stall: bool) -> Future:
    """Starts a child with the next commit. A kind or an input that can't be is the child's own error."""
    ex = b.ex
    fault = names.fault(kind, taken=len(b.prefix.encode()))
    if fault:
        error = Failure("invalid", "the kind %r %s" % (str(kind)[:200], fault), permanent=True)
        return Future(b, "child", name=str(kind)[:170], error=error)
    try:
        tree = shapes.encode(input)[0] if has_input else None
        text = canonical.canonical(tree) if has_input else ""
    except (shapes.Unrecordable, ValueError) as e:
        code = "too_large" if getattr(e, "code", "") == "too_large" else "invalid"
        error = Failure(code, "the input of a child %s: %s" % (kind, e), permanent=True)
        return Future(b, "child", name=kind, error=error)
    key = b.number("child", kind)
    digest = canonical.sha(("%s\0%s" % (kind, text)).encode())
    f = Future(b, "child", key=key, name=kind, tp=tp, on_stall=on_stall)
    recorded = ex.facts.spawned.get(key)
    if recorded is None:
        b.begin("the child " + key)
    else:
        b.ask("child", key)
        if recorded != digest:
            raise b.held("%s: the journal has a child with another input than the one for which the agent asks now; make "
                         "the input of the agent's own and of results, or announce the change with ctx.version" % key)
    if key not in ex.facts.alive and key not in ex.facts.ends:
        spec = {"key": key, "kind": kind, **options}
        if has_input:
            spec["input"] = tree
        segment = ex.segment()
        segment.children[key] = spec
        segment.add(1, len(text))
        segment.of_frame("spawned", key)[key] = digest
        ex.facts.spawned[key] = digest
        ex.facts.alive.add(key)
        ex.soon()
    return f
