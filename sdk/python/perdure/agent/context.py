"""The context of an agent: everything that it can do."""

from __future__ import annotations

import datetime
from typing import Any, AsyncIterator, Awaitable, Callable, Iterable, TypeVar

from .. import canonical, durations, names, shapes
from ..calls.caller import fields
from ..durations import Duration
from ..errors import Failure
from . import branch, joins, limits, many, said, sagas, steps, thread
from .branch import Branch, awaited
from .futures import Future, Verdict, spawn
from .joins import FirstSelected, Selected, Settled

T = TypeVar("T")
MAX_ACTION = 64 << 10
_missing: Any = object()
_epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)


class Context:
    """Is given to an agent, and to each of its branches. All its calls are answered from the journal first.

    A number is a duration in seconds; a timedelta is one, too.
    """

    def __init__(self, b: Branch):
        self._b = b

    # The run

    @property
    def run_id(self) -> str:
        return str(self._b.ex.session.grant.get("run_id", ""))

    @property
    def thread_id(self) -> str:
        return str(self._b.ex.session.grant.get("thread_id", ""))

    @property
    def attempt(self) -> int:
        return int(self._b.ex.session.grant.get("attempt", 1))

    @property
    def cancelled(self) -> bool:
        """Whether the run was asked to stop. Nothing new is begun then."""
        return bool(self._b.ex.cancelled)

    # Steps

    @awaited
    async def step(self, name: str, function: Callable[..., Any], *, about: Any = _missing, type: Any = None,
                   undo: Callable[..., Any] | None = None, retries: "steps.Retry | int | None" = None,
                   timeout: Duration | None = None, limit: limits.Limits = None) -> Any:
        """Executes a function and records its result. A plain function is called in a thread.

        about is the value that the step is about: a replay with another one is held. undo is called in a saga.
        retries is a Retry, or how often a failing function is called again. limit is a perdure.Limit, a name of one, or
        up to four of these: the step takes its slots before the function is called, and a run without room suspends.
        """
        b = self._b
        with b.call("the step " + str(name)):
            if not callable(function):
                b.wrong("the step %s: %r is no function" % (name, function))
            if undo is not None and not b.sagas:
                b.wrong("the step %s has an undo and is in no saga; nothing would call it" % name)
            retry = self._retry("the step " + str(name), retries)
            return await steps.step(b, name, function, about=about, has_about=about is not _missing, undo=undo, retry=retry,
                                    timeout=timeout, takes=self._takes("the step %s" % name, limit), tp=type)

    def _retry(self, what: str, retries: "steps.Retry | int | None") -> "steps.Retry | None":
        retry = steps.Retry(retries + 1) if isinstance(retries, int) else retries
        if retry is not None and not isinstance(retry, steps.Retry):
            self._b.wrong("%s: %r is no Retry and no number" % (what, retries))
        fault = retry.fault() if retry else ""
        if fault or isinstance(retries, int) and retries < 0:
            self._b.wrong("%s: %s" % (what, fault or "%d retries is a negative number" % retries))
        return retry

    def _takes(self, what: str, limit: limits.Limits) -> list[dict[str, Any]]:
        try:
            return limits.takes(limit)
        except ValueError as e:
            self._b.wrong("%s: %s" % (what, e))
            raise

    @awaited
    async def parallel(self, name: str, items: Iterable[Any], function: Callable[..., Any], *, limit: int = 20,
                       settle: bool = False, undo: Callable[..., Any] | None = None,
                       retries: "steps.Retry | int | None" = None, timeout: Duration | None = None,
                       step_limit: limits.Limits = None) -> Settled:
        """Calls a function for each item, at most limit at once. Each call is a step of its own, under step_limit."""
        self._b.guard("parallel " + str(name))
        if not callable(function):
            self._b.wrong("parallel %s: %r is no function" % (name, function))
        if not 1 <= limit <= 1000:
            self._b.wrong("parallel %s: a limit of %r; 1 to 1000 are possible" % (name, limit))
        if undo is not None and not self._b.sagas:
            self._b.wrong("parallel %s has an undo and is in no saga; nothing would call it" % name)
        retry = self._retry("parallel " + str(name), retries)
        return await many.parallel(self._b, name, list(items), function, limit, settle,
                                   {"undo": undo, "retry": retry, "timeout": timeout,
                                    "takes": self._takes("parallel %s" % name, step_limit)})

    @awaited
    async def saga(self, name: str, body: Callable[[], Awaitable[T]]) -> T:
        """Executes a body. If it fails, or the run is asked to stop, its steps with an undo are undone."""
        if not callable(body):
            self._b.wrong("saga %s: %r is no function" % (name, body))
        return await sagas.saga(self._b, name, body)  # type: ignore[no-any-return]

    @awaited
    async def all(self, **functions: Callable[["Context"], Awaitable[Any]]) -> dict[str, Any]:
        """Executes functions at the same time, each as a branch with a context of its own.

        Returns their results by name when all have ended. If some have failed, the first one's error is raised then.
        """
        results = await branch.run_all(self._b, functions, Context)
        return dict(zip(functions, results))

    @awaited
    async def branches(self, functions: dict[str, Callable[["Context"], Awaitable[Any]]]) -> dict[str, Any]:
        """Is all, for names that are no words of Python."""
        results = await branch.run_all(self._b, functions, Context)
        return dict(zip(functions, results))

    # Children

    def spawn(self, kind: str, input: Any = _missing, *, type: Any = Any, timeout: Duration | None = None,
              delay: Duration | None = None, queue: str | None = None, priority: int | None = None,
              max_attempts: int | None = None, run_class: str | None = None, thread_id: str | None = None,
              new_thread: bool = False, outlive: bool = False, on_stall: bool = False,
              unique: dict[str, Any] | None = None, metadata: dict[str, str] | None = None) -> Future:
        """Starts a run of another kind with the next commit, and returns its future at once.

        unique is {"key": …}, perhaps with while, for and on_conflict: the join of a refused child raises a Failure with not_unique.
        """
        self._b.guard("spawn " + str(kind))
        options = self._child(kind, timeout, delay, queue, priority, max_attempts, run_class, thread_id, new_thread,
                              outlive, metadata, unique)
        return spawn(self._b, kind, None if input is _missing else input, input is not _missing, type, options, on_stall)

    def _child(self, kind: str, timeout: Any, delay: Any, queue: Any, priority: Any, max_attempts: Any, run_class: Any,
               thread_id: Any, new_thread: bool, outlive: bool, metadata: Any, unique: Any = None) -> dict[str, Any]:
        try:
            out = {"class": run_class, "queue": queue, "thread_id": thread_id, "new_thread": new_thread or None,
                   "priority": priority, "timeout": None if timeout is None else durations.timeout(timeout),
                   "delay": None if delay is None else durations.timeout(delay), "max_attempts": max_attempts,
                   "on_parent_end": "continue" if outlive else None, "metadata": metadata,
                   "unique": unique and fields(unique=unique)["unique"]}
        except ValueError as e:
            self._b.wrong("spawn %s: %s" % (kind, e))
            raise
        return {k: v for k, v in out.items() if v is not None}

    @awaited
    async def map(self, kind: str, items: Iterable[Any], *, limit: int = 20, settle: bool = False, type: Any = Any,
                  timeout: Duration | None = None, queue: str | None = None, priority: int | None = None,
                  max_attempts: int | None = None, on_stall: bool = False,
                  unique: dict[str, Any] | None = None, metadata: dict[str, str] | None = None) -> Settled:
        """Spawns a child for each item, at most limit at the same time, and waits for all of them."""
        self._b.guard("map " + str(kind))
        if not 1 <= limit <= 1000:
            self._b.wrong("map %s: a limit of %r; 1 to 1000 are possible" % (kind, limit))
        options = self._child(kind, timeout, None, queue, priority, max_attempts, None, None, False, False, metadata, unique)
        return await many.map(self._b, kind, list(items), limit, settle, type, on_stall, options)

    # Joins

    @awaited
    async def join_all(self, *futures: Future) -> list[Any]:
        """Waits for all, or for the first that does not complete, whose error it raises."""
        return await joins.join_all(self._b, futures)

    @awaited
    async def join_all_settled(self, *futures: Future) -> Settled:
        """Waits until all have ended, however they do."""
        return await joins.join_all_settled(self._b, futures)

    @awaited
    async def select(self, *futures: Future) -> int:
        """Waits for the first that ends, and returns its index."""
        return await joins.select(self._b, futures)

    @awaited
    async def select_ok(self, *futures: Future) -> Selected:
        """Waits for the first that completes."""
        return await joins.select_ok(self._b, futures)

    @awaited
    async def first_ok(self, k: int, *futures: Future) -> FirstSelected:
        """Waits for the first k that complete."""
        return await joins.first_ok(self._b, k, futures)

    @awaited
    async def race(self, limit: Duration, *futures: Future) -> Selected:
        """Waits for the first that ends, for so long. Nothing is stopped."""
        try:
            durations.microseconds(limit)
        except ValueError as e:
            self._b.wrong("race: %s" % e)
        return await joins.race(self._b, limit, futures)

    # Waits

    def on_signal(self, name: str, *, type: Any = Any) -> Future:
        """Returns a future that takes a signal of a name."""
        return self._signal(name, type, "never")

    def _signal(self, name: str, type: Any, timeout: str | None) -> Future:
        self._b.guard("signal " + str(name))
        base = self._wait("signal", name)
        spec: dict[str, Any] = {"id": base, "type": "signal", "name": name}
        if timeout:
            spec["timeout"] = timeout
        return Future(self._b, "signal", base=base, name=name, tp=type, spec=spec)

    def _wait(self, sort: str, name: str) -> str:
        key = self._b.use(sort, name)
        prefix = self._b.prefix
        return "%s%s:%s" % (prefix, sort, key[len(prefix):])

    @awaited
    async def signal(self, name: str, timeout: Duration | None = None, *, type: Any = Any) -> Any:
        """Waits for a signal, also one that came earlier. Each is taken once. Without a timeout it has the server's."""
        f = self._signal(name, type, None if timeout is None else self._timeout("signal", timeout))
        return await self._join(f)

    def _timeout(self, what: str, timeout: Duration) -> str:
        if timeout == float("inf"):
            return "never"
        try:
            return durations.timeout(timeout)
        except ValueError as e:
            self._b.wrong("%s: %s" % (what, e))
            raise

    async def _join(self, f: Future) -> Any:
        return (await joins.join_all(self._b, [f], "the wait " + f._base))[0]

    def on_message(self, *, type: Any = Any) -> Future:
        """Returns a future that takes a message which a user appends to the thread."""
        self._b.guard("on_message")
        self._b.on_thread("on_message")
        base = self._wait("message", "message")
        return Future(self._b, "message", base=base, name="message", tp=type,
                      spec={"id": base, "type": "message", "timeout": "never"})

    def after(self, duration: Duration) -> Future:
        """Returns a timer, counted from now."""
        b = self._b
        b.guard("after")
        us = max(0, self._micro("after", duration))
        base = "%safter:%s" % (b.prefix, b.number("after", str(us))[len(b.prefix):])
        f = Future(b, "timer", base=base)
        known = b.ex.facts.timers.get(base)
        if known is None:
            b.begin("the timer " + base)
            known = b.ex.session.now() + us
            b.ex.segment().of_frame("timers", base)[base] = known
            b.ex.facts.timers[base] = known
        f._due = known
        return f

    def _micro(self, what: str, d: Duration) -> int:
        try:
            return durations.microseconds(d)
        except ValueError as e:
            self._b.wrong("%s: %s" % (what, e))
            raise

    @awaited
    async def sleep(self, duration: Duration) -> None:
        """Sleeps. The run holds no worker meanwhile."""
        self._b.guard("sleep")
        us = self._micro("sleep", duration)
        await self._until("sleep", us, self._b.ex.session.now() + us)

    @awaited
    async def sleep_until(self, at: datetime.datetime) -> None:
        """Sleeps until an instant, which has a time zone."""
        self._b.guard("sleep_until")
        if at.tzinfo is None:
            self._b.wrong("sleep_until %s: the time has no time zone" % at)
        us = (at - _epoch) // datetime.timedelta(microseconds=1)
        await self._until("until", us, us)

    async def _until(self, sort: str, us: int, due: int) -> None:
        b = self._b
        base = "%s%s:%s" % (b.prefix, sort, b.number(sort, str(us))[len(b.prefix):])
        f = Future(b, "timer", base=base)
        f._due = due
        if due <= b.ex.session.now() and f._end() is None and f._there() is None:
            b.ask("wait", base)
            if b.ex.cancelled:
                b.begin("the wait " + base)
            return
        await self._join(f)

    @awaited
    async def approve(self, name: str, action: Any, *, title: str = "", timeout: Duration | None = None,
                      **options: Any) -> Verdict:
        """Waits until a person has decided about exactly this action."""
        return await self._join(self.on_approval(name, action, title=title, timeout=timeout, **options))  # type: ignore

    def on_approval(self, name: str, action: Any, *, title: str = "", timeout: Duration | None = None,
                    **options: Any) -> Future:
        """Asks a person about an action, and returns the future of the decision. options are fields of an approval."""
        b = self._b
        b.guard("approval " + str(name))
        base = self._wait("approval", name)
        try:
            tree = shapes.encode(action)[0]
            rest = {k: shapes.encode(v)[0] for k, v in options.items()}
        except shapes.Unrecordable as e:
            b.wrong("the action of %s: %s" % (base, e))
            raise
        if rest.get("default", "approve") not in ("approve", "reject", ""):
            raise Failure("invalid", "%s: the default %r is neither approve nor reject" % (base, rest["default"]), permanent=True)
        size = len(canonical.dumps(tree).encode())
        if size > MAX_ACTION:
            raise Failure("too_large", "%s: the action has %d bytes; at most %d are taken: put larger things into an artifact"
                          % (base, size, MAX_ACTION), permanent=True)
        approval: dict[str, Any] = {"action": tree, **rest}
        if title:
            approval["title"] = title
        spec: dict[str, Any] = {"id": base, "type": "approval", "name": name, "approval": approval}
        if timeout is not None:
            spec["timeout"] = self._timeout(base, timeout)
        f = self._ask(Future(b, "approval", base=base, name=name, spec=spec))
        end = f._end()
        asked = end.data.get("action_hash") if end and isinstance(end.data, dict) else None
        if asked and asked != canonical.action_hash(tree):
            raise b.held("%s: a person has decided about another action than the one for which the agent asks now; "
                         "announce the change with ctx.version" % base)
        return f

    def callback(self, name: str, timeout: Duration | None = None, *, type: Any = Any) -> Future:
        """Returns a future that somebody answers with its token."""
        self._b.guard("callback " + str(name))
        base = self._wait("callback", name)
        spec: dict[str, Any] = {"id": base, "type": "callback"}
        if timeout is not None:
            spec["timeout"] = self._timeout(base, timeout)
        return self._ask(Future(self._b, "callback", base=base, name=name, tp=type, spec=spec))

    def _ask(self, f: Future) -> Future:
        """Opens the wait of a question with the next commit, unless it is over."""
        b, ex, wait = self._b, self._b.ex, f._base
        b.ask("wait", wait)
        withdrawn = ex.facts.entries.get("_withdraw:" + wait)
        left = ex.facts.left(b.prefix)
        if withdrawn:
            f._error = Failure("withdrawn", "%s was withdrawn" % wait, permanent=True)
        elif f._end() is None and (not left or ex.first_epoch):
            # Entries after the question say that its wait is open. A retry has waits of its own.
            if not left:
                b.begin("the question " + wait)
            segment = ex.segment()
            segment.waits[wait] = f._spec
            ex.asked.add(wait)
            segment.add(1, 200)
            ex.soon()
        return f

    # Facts

    def now(self, name: str) -> datetime.datetime:
        """Returns the time, which is the same in each execution."""
        b = self._b
        b.guard("now " + str(name))
        key = b.use("time", name)
        at = b.ex.facts.now.get(key)
        if at is None:
            b.begin("the time " + key)
            at = b.ex.facts.now[key] = b.ex.session.now()
            b.ex.segment().of_frame("now", key)[key] = at
        b.ask("now", key)
        return _epoch + datetime.timedelta(microseconds=at)

    def uuid(self, name: str) -> str:
        """Returns a random id, which is the same in each execution."""
        b = self._b
        b.guard("uuid " + str(name))
        key = b.use("uuid", name)
        text = b.ex.facts.uuid.get(key)
        if text is None:
            b.begin("the id " + key)
            text = b.ex.facts.uuid[key] = b.ex.session.uuid()
            b.ex.segment().of_frame("uuid", key)[key] = text
        b.ask("uuid", key)
        return text

    def version(self, name: str, version: int) -> int:
        """Returns version, or 0 in a run that was past this place before the call existed. The answer stays the same."""
        b, ex = self._b, self._b.ex
        b.guard("version " + str(name))
        fault = names.fault(name, names.MAX_VERSION_NAME, len(b.prefix.encode()), underscore=True)
        if fault or not isinstance(version, int) or version < 1:
            b.wrong("version %r, %r: %s" % (str(name)[:200], version, fault or "the number is 1 or more"))
        key = b.prefix + name
        if key not in ex.facts.versions:
            b.keep_errors()
            number = 0 if ex.facts.left(b.prefix) else version
            ex.facts.versions[key] = number
            ex.segment().of_frame("versions", key)[key] = number
        return ex.facts.versions[key]

    def removed(self, name: str) -> None:
        """Declares that what has this name is gone on purpose. Call it first."""
        self._b.guard("removed " + str(name))
        self._b.ex.facts.remove(name)

    # Reports

    def message(self, role: str, content: Any, *, metadata: dict[str, str] | None = None) -> None:
        """Appends to the run's thread, once."""
        self._b.guard("message")
        said.message(self._b, role, content, metadata)

    def delta(self, text: str) -> None:
        """Streams text, once. In a step, use the context of the step."""
        self._b.guard("delta")
        said.text(self._b, text)

    def emit(self, type: str, data: Any = None) -> None:
        """Writes a line of the type x:… into the log, once."""
        self._b.guard("emit")
        said.line(self._b, type, data)

    def progress(self, data: Any) -> None:
        """Tells how far the run is. A replay does not tell it again."""
        self._b.guard("progress")
        tree = said.written("progress", data)
        if not self._b.ex.facts.left(self._b.prefix):
            self._b.ex.event("run:progress", tree)

    def publish(self, name: str, value: Any) -> None:
        """Sets a named view of the run. Of several values in a row only the last one is sent."""
        self._b.guard("publish " + str(name))
        said.view(self._b, name, value)

    def heartbeat(self, activity: str) -> None:
        """Tells those who watch what the agent is doing."""
        self._b.ex.session.activity(activity)

    # The thread

    @awaited
    async def history(self, *, notices: bool = False) -> list[dict[str, Any]]:
        """Returns the messages of the thread."""
        return await thread.history(self._b, notices)

    def newest_messages(self, after: int = 0) -> AsyncIterator[dict[str, Any]]:
        """Gives the messages of the thread from its end, up to the one after a number.

        Use it with contextlib.aclosing if you leave the loop.
        """
        return thread.newest(self._b, after)

    @awaited
    async def newest_message(self) -> dict[str, Any] | None:
        """Returns the last message of the thread."""
        messages = thread.newest(self._b, 0)
        try:
            async for m in messages:
                return m
            return None
        finally:
            await messages.aclose()  # type: ignore[attr-defined]

    # The end

    def continue_on(self, result: T, *futures: Future) -> T:
        """Ends the run with a result; when the children have ended, one new run continues on the thread. Return it."""
        self._b.guard("continue_on")
        self._b.on_thread("continue_on")
        for f in futures:
            if not isinstance(f, Future) or not f.key and not f._error:
                self._b.wrong("continue_on waits for children, and %r is none" % (f,))
        if self._b.ex.continuing or self._b.key:
            self._b.wrong("continue_on: a run ends once, in the agent's own function")
        self._b.ex.continuing = {"continue_on": [f.key for f in futures if f.key]}
        return result

    def anew(self, result: T, input: Any) -> T:
        """Ends the run with a result; it goes on as a new run with this input and an empty journal. Return it."""
        b = self._b
        b.guard("anew")
        if b.ex.continuing or b.key:
            b.wrong("anew: a run ends once, in the agent's own function")
        b.begin("the run that goes on anew")
        try:
            tree = shapes.encode(input)[0]
            shapes.decode(tree, b.ex.input_type, strict=False)
        except ValueError as e:
            b.wrong("the input of anew: %s" % e)
            raise
        b.ex.continuing = {"continue_with": {"input": tree}}
        return result

