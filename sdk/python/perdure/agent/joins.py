"""Waiting for futures: for all, for the first, for the first of them that complete."""

from __future__ import annotations

import dataclasses
from typing import Any, Sequence

from .. import canonical, durations
from ..errors import AllTasksFailed, Cancelled, Failure, WaitTimeout
from .branch import Branch
from .futures import CLAIMS, Future

MAX_KEYS = 1000


@dataclasses.dataclass
class Settled:
    """How several tasks ended. results and errors have the order of the tasks."""

    results: list[Any]
    errors: list[Failure | None]
    completed: int = 0
    failed: int = 0
    timed_out: int = 0
    cancelled: int = 0

    def count(self, failure: Failure | None) -> None:
        outcome = getattr(failure, "outcome", "failed") if failure else "completed"
        if outcome == "completed":
            self.completed += 1
        elif outcome == "timeout" or isinstance(failure, WaitTimeout):
            self.timed_out += 1
        elif outcome == "cancelled":
            self.cancelled += 1
        else:
            self.failed += 1


@dataclasses.dataclass
class Selected:
    """The first of several: its index, its result, and those that go on."""

    index: int
    result: Any
    remaining: list[Future]


@dataclasses.dataclass
class FirstSelected:
    """The first that completed, in their order: their indexes and results, and those that go on."""

    indexes: list[int]
    results: list[Any]
    remaining: list[Future]


class Join:
    """A call that waits for futures. round counts those that have completed."""

    def __init__(self, b: Branch, mode: str, fs: Sequence[Future], what: str):
        self.b, self.mode, self.fs = b, mode, list(fs)
        for f in self.fs:
            if not isinstance(f, Future):
                b.wrong("%s of %r, which is no future" % (what, f))
        if len(set(map(id, self.fs))) < len(self.fs):
            b.wrong("%s has the same future twice" % what)
        digest = canonical.sha("".join(f._line() for f in self.fs).encode(), 6)
        name = "join:%s:%s" % (mode, digest)
        self.id = b.number("join", name)
        self.done: list[Future] = []
        self.seen: list[Future] = []
        self.timer: Future | None = None
        for f in self.fs:
            if not f.key and not f._error:
                b.ask("wait", f.id)

    def specs(self) -> list[dict[str, Any]]:
        """Returns the waits that are open while the call waits."""
        out = []
        open_ = [f for f in self.fs if f not in self.done]
        children = [f for f in open_ if f.key and not self._away(f)]
        wait = self.id + ("/%d" % len(self.done) if self.done else "")
        for group, on_stall in (([f for f in children if not f._on_stall], False),
                                ([f for f in children if f._on_stall], True)):
            for n in range(0, len(group), MAX_KEYS):
                part = group[n:n + MAX_KEYS]
                if all(f._end(self.id) for f in part):
                    continue
                spec = {"id": wait + (".stall" if on_stall else "") + (".%d" % (n // MAX_KEYS + 1) if n else ""),
                        "type": "children", "mode": self.mode, "keys": [f.key for f in part], "timeout": "never"}
                out.append({**spec, "on_stall": True} if on_stall else spec)
        out += [f._specs() for f in open_ if not f.key and not f._error and f._end() is None]
        if self.timer and self.timer._end() is None:
            out.append(self.timer._specs())
        return out

    def _away(self, f: Future) -> bool:
        """Tells whether a child is not one of this run: it was refused, or ended in the original of a retry."""
        end = self.b.ex.facts.ends.get(f.key)
        return bool(end and (not end.run or f.key not in self.b.ex.facts.alive))

    def ready(self) -> bool:
        fs = self.fs + ([self.timer] if self.timer else [])
        return any(f not in self.done and f not in self.seen and f._arrived(self.id) is not None for f in fs)

    async def wait(self) -> None:
        """Waits until one more has arrived."""
        self.seen = [f for f in self.fs if f._arrived(self.id) is not None]
        if self.b.ex.checking:
            for spec in self.specs():
                self.b.ask("wait", spec["id"])
        self.b.begin("the wait " + (self.fs[0]._label() if len(self.fs) == 1 and not self.fs[0].key else self.id))
        await self.b.ex.park(self.b, self.specs, self.ready)

    def passed(self, f: Future) -> None:
        """Sets the point of reports."""
        self.b.point = ("child " if f.key else "wait ") + f._label()


async def join_all(b: Branch, fs: Sequence[Future], what: str = "join_all") -> list[Any]:
    """Waits for all. The first that does not complete ends it, with its error."""
    with b.call(what):
        join = Join(b, "all_ok", fs, what)
        while True:
            _take(join)
            ended = sorted(((f._arrived(join.id), n) for n, f in enumerate(join.fs) if _over(f, join)))
            for _, n in ended:
                failure = join.fs[n]._failure(join.id)
                if failure:
                    join.passed(join.fs[n])
                    raise failure
            if len(ended) == len(join.fs):
                if ended:
                    join.passed(join.fs[ended[-1][1]])
                return [f._value() for f in join.fs]
            await join.wait()


async def join_all_settled(b: Branch, fs: Sequence[Future]) -> Settled:
    """Waits until all have ended."""
    with b.call("join_all_settled"):
        join = Join(b, "all", fs, "join_all_settled")
        while True:
            _take(join)
            ended = sorted(((f._arrived(join.id), n) for n, f in enumerate(join.fs) if _over(f, join)))
            if len(ended) == len(join.fs):
                break
            await join.wait()
        out = Settled([], [])
        for f in join.fs:
            failure = f._failure(join.id)
            out.errors.append(failure)
            out.results.append(None if failure else f._value())
            out.count(failure)
        if ended:
            join.passed(join.fs[ended[-1][1]])
        return out


def _over(f: Future, join: Join) -> bool:
    return bool(f._error) or f._end(join.id) is not None


def _take(join: Join) -> None:
    """Takes what has come for the signals, messages and timers of a join that waits for all."""
    for f in join.fs:
        if f._sort in CLAIMS and not f._error and f._end() is None:
            if join.b.ex.cancelled:
                join.b.begin("the wait " + f.id)
            f._take()


async def choose(b: Branch, what: str, mode: str, fs: Sequence[Future], k: int = 1,
                 limit: durations.Duration | None = None) -> tuple[list[Future], list[Future], bool]:
    """Returns the first k in their order, those that ended without a result before, and whether the limit was first."""
    ex = b.ex
    join = Join(b, mode, fs, what)
    if not join.fs:
        b.wrong("%s without a future" % what)
    race = b.prefix + "race:" + join.id[len(b.prefix):]
    known = ex.facts.winners.get(join.id)
    if known is not None:
        return _recorded(b, join, known, race, k, mode)
    for f in join.fs:
        f._item = None
    if limit is not None:
        b.ask("wait", race)
        join.timer = Future(b, "timer", base=race)
        join.timer._due = ex.facts.timers.get(race)
    while True:
        ok, over, late = _arrived(join, mode, k)
        if late or len(ok) >= k or len(join.fs) - len(over) < k:
            break
        if ex.cancelled:
            raise Cancelled()
        join.done = ok
        if join.timer and join.timer._due is None:
            assert limit is not None
            us = durations.microseconds(limit)
            if us <= 0:
                late = True
                break
            join.timer._due = ex.session.now() + us
            b.begin("the wait " + join.id)
            ex.segment().of_frame("timers", race)[race] = join.timer._due
            ex.facts.timers[race] = join.timer._due
        await join.wait()
    if ex.cancelled:
        raise Cancelled()
    b.begin("the choice " + join.id)
    first = [race] if late else []
    for f in ok:
        f._item = f._take()
        first.append(f._label())
    if late and join.timer and join.timer._due is not None:
        join.timer._take()
    gone = [f._label() for f in over]
    _close(b, join, ok, late)
    winner = {"first": first} if first else {}
    ex.segment().of_frame("winners", join.id)[join.id] = {**winner, "over": gone} if gone else winner
    ex.facts.winners[join.id] = {**winner, "over": gone}
    join.passed(ok[-1] if ok else over[-1] if over else join.fs[0])
    if late:
        b.point = "wait " + race
    return ok, over, late


def _arrived(join: Join, mode: str, k: int) -> tuple[list[Future], list[Future], bool]:
    fs = join.fs + ([join.timer] if join.timer else [])
    places = sorted((place, n) for n, place in ((n, f._arrived(join.id)) for n, f in enumerate(fs)) if place is not None)
    ok: list[Future] = []
    over: list[Future] = []
    for _, n in places:
        f = fs[n]
        if f is join.timer:
            return ok, over, True
        if mode == "any_ok" and (f._error or f._end(join.id) is not None and f._failure(join.id)):
            over.append(f)
        else:
            ok.append(f)
        if len(ok) >= k or mode == "any_ok" and len(join.fs) - len(over) < k:
            break
    return ok, over, False


def _close(b: Branch, join: Join, won: list[Future], late: bool) -> None:
    """Closes the waits that lost, if they were opened."""
    losers = [f for f in join.fs if f._sort in CLAIMS and f not in won and not f._error]
    if join.timer and not late:
        losers.append(join.timer)
    for f in losers:
        wait = f.id
        if wait in b.ex.facts.opened and f._end() is None:
            segment = b.ex.segment()
            segment.of_frame("closed").append(wait)
            segment.close.append(wait)
            b.ex.facts.closed.add(wait)


def _recorded(b: Branch, join: Join, known: dict[str, Any], race: str, k: int,
              mode: str) -> tuple[list[Future], list[Future], bool]:
    """Returns the choice of an earlier execution."""
    first, over = known.get("first", []), known.get("over", [])
    late = race in first
    if not late and len(first) != k and not (mode == "any_ok" and len(join.fs) - len(over) < k):
        raise b.held("%s: the journal has a choice of %d, and the agent asks for %d now" % (join.id, len(first), k))
    ok = []
    for name in first:
        if name != race:
            ok.append(_named(b, join, name))
    gone = [_named(b, join, name) for name in over]
    if late:
        b.ask("wait", race)
    for name in first:
        b.ask("wait", name)
    for f, name in zip(ok, [n for n in first if n != race]):
        if not f.key and not f._error:
            f._item = b.ex.facts.waits.get(name)
    last = ok[-1] if ok else gone[-1] if gone else None
    b.point = "wait " + race if late else b.point
    if last is not None and not late:
        b.point = ("child " if last.key else "wait ") + (first[-1] if ok else over[-1])
    return ok, gone, late


def _named(b: Branch, join: Join, name: str) -> Future:
    for f in join.fs:
        base = f._base
        if name == f._label() or base and (name == base or name.startswith(base + ".")):
            return f
    raise b.held("%s: the journal says that %s was first, and it is none of the futures for which the agent waits now"
                 % (join.id, name))


async def select(b: Branch, fs: Sequence[Future]) -> int:
    with b.call("select"):
        ok, _, _ = await choose(b, "select", "any", fs)
        return list(fs).index(ok[0])


async def race(b: Branch, limit: durations.Duration, fs: Sequence[Future]) -> Selected:
    with b.call("race"):
        ok, _, late = await choose(b, "race", "any", fs, limit=limit)
        if late:
            raise WaitTimeout("none of %d tasks has ended in time" % len(fs))
        return _selected(fs, ok[0], [])


async def select_ok(b: Branch, fs: Sequence[Future]) -> Selected:
    with b.call("select_ok"):
        ok, over, _ = await choose(b, "select_ok", "any_ok", fs)
        if not ok:
            raise _none(fs)
        return _selected(fs, ok[0], over)


async def first_ok(b: Branch, k: int, fs: Sequence[Future]) -> FirstSelected:
    with b.call("first_ok"):
        if not isinstance(k, int) or not 1 <= k <= len(fs):
            b.wrong("first_ok of %r of %d futures" % (k, len(fs)))
        ok, over, _ = await choose(b, "first_ok", "any_ok", fs, k=k)
        if len(ok) < k:
            raise _none(fs)
        rest = [f for f in fs if f not in ok and f not in over]
        return FirstSelected([list(fs).index(f) for f in ok], [f._value() for f in ok], rest)


def _selected(fs: Sequence[Future], f: Future, over: list[Future]) -> Selected:
    failure = f._failure()
    if failure:
        raise failure
    return Selected(list(fs).index(f), f._value(), [x for x in fs if x is not f and x not in over])


def _none(fs: Sequence[Future]) -> Failure:
    failures = [f._failure() for f in fs]
    out = AllTasksFailed(failures)
    ends = [f._cause for f in failures if f is not None and f._cause is not None]
    out._cause = ends[-1] if ends else None
    return out
