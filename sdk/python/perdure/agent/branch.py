"""Branches: the agent itself and what ctx.all begins. Each has names, an order and a point of its own."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import threading
from typing import TYPE_CHECKING, Any, Callable, Iterator, TypeVar

from .. import names
from ..errors import Cancelled, Defect, Failure, misuse, nondeterminism

if TYPE_CHECKING:
    from .execution import Execution

F = TypeVar("F", bound=Callable[..., Any])

# The branch and the step that the current task or thread executes.
current: contextvars.ContextVar[Any] = contextvars.ContextVar("perdure_branch", default=None)
inside: contextvars.ContextVar[str] = contextvars.ContextVar("perdure_inside", default="")


def awaited(f: F) -> F:
    """Keeps the calls of a method of a context or a future that nobody has awaited, of which Python says little."""
    @functools.wraps(f)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        made, kept = f(self, *args, **kwargs), self._b.ex.made
        if len(kept) > 100:
            kept[:] = [m for m in kept if inspect.getcoroutinestate(m[2]) == inspect.CORO_CREATED]
        kept.append((f.__name__, args[:1], made))
        return made
    return call  # type: ignore[return-value]


class Branch:
    def __init__(self, ex: "Execution", parent: "Branch | None" = None, key: str = ""):
        self.ex, self.parent, self.key = ex, parent, key
        self.prefix = key + "//" if key else ""
        self.point = "start " + self.prefix if key else "start"
        self.counts: dict[tuple[str, str], int] = {}
        self.busy = ""
        self.forked = ""  # the names of branches that run
        self.live = 0  # how many of them
        self.ended = False
        self.errors: list[tuple[str, Failure]] = []  # of steps; not recorded until the code goes on
        self.sagas: list[Any] = []
        self.asked_at = 0
        self.branches: list[Branch] = []

    def title(self) -> str:
        return "the branch %s" % self.key if self.key else "the agent"

    # Calls

    def guard(self, what: str) -> None:
        """Finds a call that must not be made here. It raises a Defect, and the run is held."""
        ex = self.ex
        if ex.defect:
            raise ex.defect
        if ex.suspending:
            self.wrong("%s after a wait that has suspended the run: the code has caught perdure.Suspended, or calls "
                       "the agent in a finally; let it pass" % what)
        step = inside.get()
        if not step and threading.get_ident() != ex.thread:
            self.wrong("%s with the context of %s in a thread: make the call in the agent's own function, and begin "
                       "branches with ctx.all to do things at once" % (what, self.title()))
        if step:
            self.wrong("%s inside of %s: a step that is recorded is not executed again, and neither is what is in it; "
                       "make the call between steps" % (what, step))
        if self.ended or ex.over:
            self.wrong("%s with the context of %s after its function has returned" % (what, self.title()))
        here = current.get()
        if self.forked:
            self.wrong("%s with the context of %s while its branches %s run: use the context that each branch is "
                       "given" % (what, self.title(), self.forked))
        if here is not self:
            self.wrong("%s with the context of %s in %s: use the context that the function is given"
                       % (what, self.title(), here.title() if here else "a task that is no branch"))
        if self.busy:
            self.wrong("%s while %s is under way in %s: begin branches with ctx.all to do things at once"
                       % (what, self.busy, self.title()))

    def wrong(self, message: str) -> None:
        self.ex.defect = self.ex.defect or misuse(message)
        raise self.ex.defect

    def on_thread(self, what: str) -> None:
        """Finds a call that needs a thread in a run without one."""
        if not self.ex.session.grant.get("thread_id"):
            self.wrong("%s: the run is on no thread; start it with a thread_id" % what)

    def settled(self) -> None:
        """Is called at the end of the agent: all that was begun has ended."""
        for b in self.chain():
            if b.busy:
                self.wrong("%s is under way in %s when the agent ends: await it" % (b.busy, b.title()))
        left = [m for m in self.ex.made if inspect.getcoroutinestate(m[2]) == inspect.CORO_CREATED]
        for _, _, made in left:
            made.close()
        for call, args, _ in left:
            what = " ".join([call, *(a for a in args if isinstance(a, str))])
            self.wrong("%s was called and not awaited, so it was never begun: write await before it" % what)

    @contextlib.contextmanager
    def call(self, what: str) -> Iterator[None]:
        """Guards a call that takes time. No other one may be made on this context meanwhile."""
        self.guard(what)
        self.busy = what
        try:
            yield
        except Defect as e:
            self.ex.defect = self.ex.defect or e
            raise
        finally:
            self.busy = ""

    # Names

    def use(self, sort: str, name: str, counted: str | None = None) -> str:
        """Returns the key of the next use of a name, after the branch. A bad name holds the run."""
        fault = names.fault(name, taken=len(self.prefix.encode()))
        if fault:
            self.wrong("the name %r of a %s %s" % (str(name)[:200], sort, fault))
        return self.number(sort, counted or name)

    def number(self, sort: str, name: str) -> str:
        n = self.counts[sort, name] = self.counts.get((sort, name), 0) + 1
        return names.use(self.prefix, name, n)

    # Replay

    def ask(self, sort: str, key: str) -> None:
        """Takes a recorded thing off the list of those that are expected."""
        self.asked_at = max(self.asked_at, self.ex.facts.ask(sort + " " + key, self.prefix))

    def begin(self, what: str) -> None:
        """Is called before something that is not in the journal. It is refused while recorded things are left."""
        ex = self.ex
        if ex.cancelled:
            self.keep_errors()
            raise Cancelled()
        for saga in self.sagas:
            if saga.failed:
                raise saga.failed
        self.expect_none(what)
        self.keep_errors()

    def expect_none(self, what: str, within: bool = False) -> None:
        left = self.ex.facts.left(self.prefix, within)
        if not left:
            return
        first = left[0] if len(left) == 1 else "%s and %d more" % (left[0], len(left) - 1)
        raise self.held("%s: the journal does not have it, but it has the %s, for which the agent has not asked yet; "
                        "announce what was added, renamed or removed with ctx.version or ctx.removed" % (what, first))

    def held(self, message: str) -> Defect:
        defect = nondeterminism(message)
        self.ex.defect = self.ex.defect or defect
        return defect

    def keep_errors(self) -> None:
        """Records the errors of steps after which the code goes on."""
        for key, failure in self.errors:
            if key in self.ex.facts.entries:
                continue
            value = {"error": {"code": failure.code, "message": failure.message}}
            of = getattr(failure, "_of", None)
            if of:
                value["of"] = of
            if getattr(failure, "_aside", False):
                value = {"aside": True, **value}
            self.ex.record(key, value)
            failure.permanent, failure._cause = True, key
        self.errors.clear()

    def chain(self) -> list["Branch"]:
        """Returns this branch and those in it, in the order in which they were begun."""
        out = [self]
        for b in self.branches:
            out += b.chain()
        return out


async def run_all(parent: Branch, functions: dict[str, Callable[..., Any]], make: Callable[[Branch], Any]) -> list[Any]:
    """Executes functions as branches. Returns their results when all have ended, or raises the first error."""
    ex = parent.ex
    parent.guard("ctx.all")
    for name, f in functions.items():
        if not callable(f):
            parent.wrong("ctx.all: the branch %s has %r, which is no function" % (name, f))
    if not functions:
        return []
    begun = []
    for name in functions:
        key = parent.use("branch", name)
        parent.ask("branch", key)
        if key not in ex.facts.branches:
            parent.begin("the branch " + key)
            ex.segment().of_frame("branches").append(key)
            ex.facts.branches.add(key)
        b = Branch(ex, parent, key)
        b.sagas = list(parent.sagas)
        parent.branches.append(b)
        begun.append(b)
    parent.forked = ", ".join(b.key for b in begun)
    parent.live = len(begun)
    ex.running += len(begun) - 1
    tasks = [asyncio.ensure_future(_run(b, f, make)) for b, f in zip(begun, functions.values())]
    try:
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    finally:
        parent.forked = ""
    for end in ends:
        if isinstance(end, BaseException) and not isinstance(end, Exception) or isinstance(end, Defect):
            raise end
    for b in begun:
        parent.branches.remove(b)
    for b, end in zip(begun, ends):
        failed = isinstance(end, Exception)
        if not failed and not ex.cancelled:
            b.expect_none("the end of " + b.key, within=True)
        parent.point = "branch " + b.key + ("!" if failed else "")
        if failed:
            parent.errors += b.errors
    for end in ends:
        if isinstance(end, Exception):
            raise end
    return list(ends)


async def _run(b: Branch, f: Callable[..., Any], make: Callable[[Branch], Any]) -> Any:
    current.set(b)
    try:
        return await f(make(b))
    except (SystemExit, KeyboardInterrupt, asyncio.CancelledError) as e:
        raise Failure("exit", "%s ends by %r" % (b.title(), e)) from e
    except Exception as e:
        if b.ex.suspending:
            b.ex.defect = b.ex.defect or misuse("%s has caught perdure.Suspended; let it pass" % b.title())
        raise e
    finally:
        b.ended = True
        assert b.parent is not None
        b.parent.live -= 1
        if b.parent.live:  # otherwise its parent goes on in its place
            b.ex.left()
