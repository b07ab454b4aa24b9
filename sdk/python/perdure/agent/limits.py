"""Limits of steps: slots and units of rates that a step takes before its function is called.

The journal has nothing of that. A recorded step takes nothing, and the commit that records a step gives its slots
back. A step that waits for longer than PATIENCE suspends the run on a wait of the type limit.
"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any, Callable, Iterable, Union

from .. import durations, names
from ..errors import Cancelled, Failure, Refused, Suspended
from .branch import Branch

PATIENCE = 2.0  # seconds that a step waits in place
PAUSE = 0.1  # seconds between two questions, if the server can't say when there is room
LOOK = 1.0  # seconds between two questions of a step that can't suspend the run, because others work
MAX_LIMITS, MAX_UNITS, MAX_KEY, MAX_REASON = 4, 1_000_000, 200, 2000


@dataclasses.dataclass(frozen=True)
class Limit:
    """A limit of the tenant that a step is under: it takes a slot of the concurrency, and units of the rate.

    The key is that of a limit which has a count of its own for each key. Without units it is one.
    """

    name: str
    key: str = ""
    units: int = 0


Limits = Union[Limit, str, Iterable[Union[Limit, str]], None]


def fault(name: Any, key: Any) -> str:
    """Returns what is wrong with the name or the key of a limit, or nothing."""
    wrong = names.fault(name, 200)
    if wrong:
        return "its name %s" % wrong
    if name.startswith("kind:"):
        return "its name begins with kind:, which is for the concurrency of kinds"
    if not isinstance(key, str):
        return "its key is no text"
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        return "its key has half of a surrogate pair"
    if size > MAX_KEY:
        return "its key has %d bytes; at most %d are taken" % (size, MAX_KEY)
    if any(c < " " for c in key):
        return "its key has a control character"
    return ""


def takes(given: Limits) -> list[dict[str, Any]]:
    """Returns limits as the server has them. A ValueError says what is wrong."""
    if given is None:
        return []
    listed = [given] if isinstance(given, (Limit, str)) else given
    try:
        limits = [Limit(x) if isinstance(x, str) else x for x in listed]
    except TypeError:
        raise ValueError("%r is no limit: give a perdure.Limit, a name or a list of these" % (given,)) from None
    if len(limits) > MAX_LIMITS:
        raise ValueError("%d limits; a step takes at most %d" % (len(limits), MAX_LIMITS))
    out: list[dict[str, Any]] = []
    for x in limits:
        if not isinstance(x, Limit):
            raise ValueError("%r is no limit: give a perdure.Limit, a name or a list of these" % (x,))
        wrong = fault(x.name, x.key)
        if not isinstance(x.units, int) or isinstance(x.units, bool) or not 0 <= x.units <= MAX_UNITS:
            wrong = wrong or "its units lie between 1 and %d" % MAX_UNITS
        if any(x.name == t["name"] for t in out):
            wrong = wrong or "it is named twice"
        if wrong:
            raise ValueError("the limit %r: %s" % (x, wrong))
        out.append({k: v for k, v in dataclasses.asdict(x).items() if v})
    return out


def closure(name: str, closed_for: durations.Duration, key: str, reason: str) -> dict[str, Any]:
    """Returns the part of a commit that closes a limit. A ValueError says what is wrong."""
    wrong = fault(name, key)
    if wrong:
        raise ValueError("closing the limit %r: %s" % (name, wrong))
    us = durations.microseconds(closed_for)
    if us < 1000:
        raise ValueError("closing the limit %s for %s: a millisecond is the least" % (name, durations.text(us)))
    out = {"name": name, "key": key, "closed_for": durations.text(us), "reason": reason[:MAX_REASON]}
    return {k: v for k, v in out.items() if v}


class Crew:
    """The items of a parallel that wait for limits. When all that may work wait, the run is suspended."""

    def __init__(self, limit: int, items: int):
        self.limit, self.left = limit, items  # how many work at once, and how many have not ended
        self.stuck: dict[str, dict[str, Any]] = {}
        self.parked = False
        self.sleeping: set[asyncio.Future[None]] = set()

    def waits(self) -> list[dict[str, Any]]:
        """Returns the waits of all items that may work, or nothing if one of them works."""
        all_of_them = len(self.stuck) == min(self.limit, self.left)
        return [self.stuck[key] for key in sorted(self.stuck)] if all_of_them else []


async def admit(b: Branch, key: str, limits: list[dict[str, Any]], crew: Crew | None) -> None:
    """Takes what a step needs of its limits, and waits for it."""
    if not limits:
        return
    ex = b.ex
    wait = {"id": "%slimit:%s:%d" % (b.prefix, key[len(b.prefix):], ex.epoch), "type": "limit", "name": key,
            "limits": limits, "timeout": "never"}
    clock = asyncio.get_running_loop().time
    began, slept = clock(), 0.0
    try:
        while True:
            if ex.cancelled:
                raise Cancelled()
            answer = await _taken(b, key, limits, 0)
            if ex.suspending:
                raise Suspended()  # another item has suspended the run meanwhile, which gives back what was taken
            if answer.get("taken"):
                return
            pause = (answer.get("retry_ms") or 0) / 1000 or PAUSE
            if pause <= PATIENCE - max(slept, clock() - began):
                await ex.session.sleep(pause)
                slept += pause
            elif crew is None:
                await _park(b, lambda: [wait])
            else:
                await _stand(b, key, wait, crew)
    finally:
        if crew is not None:
            crew.stuck.pop(key, None)


async def _taken(b: Branch, key: str, limits: list[dict[str, Any]], number: int) -> dict[str, Any]:
    try:
        return dict(await b.ex.session.take_limits(key, limits, number))
    except Refused as e:
        raise Failure(e.code, "step %s: %s" % (key, e.detail)) from e


async def _park(b: Branch, waits: Callable[[], list[dict[str, Any]]]) -> None:
    """Suspends the run, unless other branches work: then it returns after a while, or when the waits have changed."""
    clock = asyncio.get_running_loop().time
    began, first = clock(), waits()
    await b.ex.park(b, lambda: first, lambda: clock() - began >= LOOK or waits() != first)


async def _stand(b: Branch, key: str, wait: dict[str, Any], crew: Crew) -> None:
    """Suspends the run if all items that may work wait, or returns after a while."""
    crew.stuck[key] = wait
    if crew.waits() and not crew.parked:
        crew.parked = True
        try:
            await _park(b, crew.waits)
        finally:
            crew.parked = False
            if b.ex.suspending:
                for other in crew.sleeping:
                    other.cancel()
        return
    sleep = asyncio.ensure_future(b.ex.session.sleep(LOOK))
    crew.sleeping.add(sleep)
    try:
        await asyncio.wait([sleep])
    finally:
        crew.sleeping.discard(sleep)
        sleep.cancel()
    if b.ex.suspending:
        raise Suspended()


async def admit_again(b: Branch, key: str, limits: list[dict[str, Any]], number: int) -> None:
    """Takes units of rates for a further try of a step that has its slots. It waits in place."""
    while limits and not b.ex.cancelled and not b.ex.session.stopped():
        try:
            answer = await _taken(b, key, limits, number)
        except Failure:
            return  # the function finds out what is wrong
        if answer.get("taken"):
            return
        await b.ex.session.sleep(min(max((answer.get("retry_ms") or 0) / 1000, PAUSE), LOOK))


__all__ = ["Crew", "Limit", "Limits", "admit", "admit_again", "closure", "takes"]
