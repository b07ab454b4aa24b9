"""Many items: a function over them (parallel), and a kind over them (map)."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
from typing import Any, Callable, Sequence

from .. import canonical, shapes
from ..errors import Cancelled, Defect, Failure, TaskStalled
from . import limits, steps
from .branch import Branch
from .futures import Future
from .joins import Settled
from .pending import Segment

QUIET = 500_000  # microseconds without an end, after which a map is suspended
LOOK = 0.05


async def parallel(b: Branch, name: str, items: Sequence[Any], f: Callable[..., Any], limit: int, settle: bool,
                   options: dict[str, Any]) -> Settled:
    """Calls a function for each item. Each call is a step of its own."""
    with b.call("parallel " + str(name)):
        key = b.use("parallel", name)
        tp = shapes.of_function(f, "return")
        out = Settled([None] * len(items), [None] * len(items))
        for n in range(len(items)):
            b.ask("step", "%s/%d" % (key, n))
        slots, stop, crew = asyncio.Semaphore(limit), False, limits.Crew(limit, len(items))

        async def one(n: int, item: Any) -> None:
            try:
                await begun(n, item)
            finally:
                crew.left -= 1

        async def begun(n: int, item: Any) -> None:
            nonlocal stop
            async with slots:
                if stop:
                    out.errors[n] = Cancelled("an item before it has failed")
                    return
                whole = _bound(f, item)
                try:
                    out.results[n] = await steps.step(b, "%s/%d" % (key, n), whole, about=item, has_about=True, tp=tp,
                                                      key="%s/%d" % (key, n), aside=True, crew=crew, **options)
                except Defect:
                    raise
                except Failure as e:
                    out.errors[n] = e
                    stop = stop or not settle

        await _gather([one(n, item) for n, item in enumerate(items)])
        b.errors.sort(key=lambda e: [int(x) if x.isdigit() else -1 for x in e[0].rsplit("/", 1)[-1:]])
        for failure in out.errors:
            out.count(failure)
        failed = [e for e in out.errors if e is not None]
        real = [e for e in failed if not isinstance(e, Cancelled)] or failed
        b.point = "parallel " + key + ("!" if failed else "")
        if real and (not settle or b.ex.cancelled and isinstance(real[0], Cancelled)):
            raise real[0]
        return out


async def _gather(calls: list[Any]) -> None:
    """Waits for all, and then raises the first error."""
    ends = await asyncio.gather(*calls, return_exceptions=True)
    for end in ends:
        if isinstance(end, BaseException):
            raise end


def _required(f: Callable[..., Any]) -> list[Any]:
    try:
        parameters = inspect.signature(f).parameters.values()
    except (TypeError, ValueError):
        return [None]
    return [p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def _bound(f: Callable[..., Any], item: Any) -> Callable[..., Any]:
    """Returns the function of one item: with a parameter for the context of the step, if f has one."""
    with_context = len(_required(f)) > 1
    if inspect.iscoroutinefunction(f):
        async def one() -> Any:
            return await f(item)

        async def two(s: Any) -> Any:
            return await f(item, s)
        return two if with_context else one

    def plain() -> Any:
        return f(item)

    def plain_two(s: Any) -> Any:
        return f(item, s)
    return plain_two if with_context else plain


@dataclasses.dataclass
class _Map:
    b: Branch
    key: str
    kind: str
    inputs: list[Any]
    texts: list[str]
    limit: int
    settle: bool
    tp: Any
    on_stall: bool
    options: dict[str, Any]
    spawned: int = 0
    stopped: bool = False

    def child(self, n: int) -> str:
        return "%s/%d" % (self.key, n)

    def sum(self, n: int) -> str:
        return canonical.sha("".join("%d\0%s" % (len(t.encode()), t) for t in self.texts[:n]).encode())

    def future(self, n: int) -> Future:
        return Future(self.b, "child", key=self.child(n), name=self.kind, tp=self.tp, on_stall=self.on_stall)

    def live(self) -> list[int]:
        return [n for n in range(self.spawned) if self.child(n) not in self.b.ex.facts.ends]

    def note(self) -> dict[str, Any]:
        m: dict[str, Any] = {"n": self.spawned, "sum": self.sum(self.spawned)}
        return {**m, "stopped": True} if self.stopped else m

    def write(self) -> None:
        self.write_to(self.b.ex.segments[-1])

    def write_to(self, segment: Segment) -> None:
        segment.of_frame("mapped", self.key)[self.key] = self.note()


async def map(b: Branch, kind: str, items: Sequence[Any], limit: int, settle: bool, tp: Any, on_stall: bool,
              options: dict[str, Any]) -> Settled:
    """Spawns a child for each item, at most limit at the same time."""
    with b.call("map " + str(kind)):
        m = _Map(b, b.use("map", kind), kind, [], [], limit, settle, tp, on_stall, options)
        for item in items:
            try:
                m.inputs.append(shapes.encode(item)[0])
            except (shapes.Unrecordable, ValueError) as e:
                b.wrong("an item of map %s: %s" % (m.key, e))
            m.texts.append(canonical.canonical(m.inputs[-1]))
        _known(m)
        out = await _work(m)
        b.point = "map " + m.key
        return out


def _known(m: _Map) -> None:
    known = m.b.ex.facts.mapped.get(m.key)
    if known is None:
        return
    m.b.ask("map", m.key)
    m.spawned, m.stopped = known["n"], bool(known.get("stopped"))
    if m.spawned > len(m.inputs) or m.sum(m.spawned) != known["sum"]:
        raise m.b.held("%s: the journal has a map over other items than those for which the agent asks now; announce the "
                       "change with ctx.version, or use another name" % m.key)
    for n in range(m.spawned):
        child = m.child(n)
        if child in m.b.ex.facts.ends:
            m.b.ex.facts.alive.discard(child)
        elif m.b.ex.first_epoch:
            _respawn(m, n)


def _respawn(m: _Map, n: int) -> None:
    """Begins a child of the original of a retry anew, unless this run has done so already."""
    facts = m.b.ex.facts
    if any(e["key"].startswith("_frame:") and int(e["key"][7:].split(".")[0]) >= m.b.ex.first_epoch
           and m.key in e["value"].get("mapped", {}) for e in m.b.ex.journal):
        return
    if m.child(n) not in facts.alive:
        m.b.begin("the map " + m.key)
        _child(m, n)
        m.write()


def _child(m: _Map, n: int) -> None:
    segment = m.b.ex.segment()
    segment.children[m.child(n)] = {"key": m.child(n), "kind": m.kind, "input": m.inputs[n], **m.options}
    segment.add(1, len(m.texts[n]))


def _spawn(m: _Map) -> bool:
    """Spawns as many as may work at the same time. Returns whether there were any."""
    free = m.limit - len(m.live())
    if m.stopped or free <= 0 or m.spawned == len(m.inputs):
        return False
    m.b.begin("the map " + m.key)
    for _ in range(min(free, len(m.inputs) - m.spawned)):
        segment = m.b.ex.segment()
        _child(m, m.spawned)
        m.spawned += 1
        if segment.full():
            m.write_to(segment)
    m.write()
    return True


def _failure(m: _Map) -> Failure | None:
    """Returns the first error, if it ends the map."""
    if m.settle:
        return None
    ends = sorted((end.order, n) for n in range(m.spawned) for end in [m.b.ex.facts.ends.get(m.child(n))] if end)
    for _, n in ends:
        failure = m.future(n)._failure()
        if failure:
            return failure
    return None


async def _work(m: _Map) -> Settled:
    ex = m.b.ex
    quiet = ex.session.now()
    while True:
        if ex.cancelled and not (m.spawned == len(m.inputs) and not m.live()):
            raise Cancelled()
        failure = _failure(m)
        if failure:
            _stop(m)
            raise failure
        if m.spawned == len(m.inputs) and not m.live():
            return _result(m)
        if m.on_stall:
            _stalled(m)
        if _spawn(m) or not ex.segments[0].empty() and not m.live():
            await ex.flush()
        if await ex.look():
            quiet = ex.session.now()
            continue
        if ex.session.now() - quiet < QUIET:
            await ex.session.sleep(LOOK)
            continue
        await _suspend(m)
        quiet = ex.session.now()


async def _suspend(m: _Map) -> None:
    ex = m.b.ex
    live = m.live()
    done = m.spawned - len(live)
    wait = "%smap:%s.%d" % (m.b.prefix, m.key[len(m.b.prefix):], done)

    def specs() -> list[dict[str, Any]]:
        spec = {"id": wait, "type": "children", "mode": "any", "keys": [m.child(n) for n in live], "timeout": "never"}
        return [{**spec, "on_stall": True} if m.on_stall else spec]

    if ex.checking:
        m.b.ask("wait", wait)
    m.b.begin("the map " + m.key)
    ex.event("run:progress", {"map": m.key, "done": done, "total": len(m.inputs)})
    await ex.park(m.b, specs, lambda: any(m.child(n) in ex.facts.ends for n in live))


def _stalled(m: _Map) -> None:
    for item in m.b.ex.facts.items:
        if item.outcome == "stalled" and item.name.startswith(m.key + "/") and item.name not in m.b.ex.facts.ends \
                and item.name not in m.b.ex.facts.cancelled:
            segment = m.b.ex.segment()
            segment.of_frame("cancelled").append(item.name)
            segment.cancel.append(item.name)
            m.b.ex.facts.cancelled.add(item.name)


def _stop(m: _Map) -> None:
    if m.stopped:
        return
    m.b.begin("the end of the map " + m.key)
    m.stopped = True
    m.write()
    m.b.ex.segment().cancel.extend(m.child(n) for n in m.live())


def _result(m: _Map) -> Settled:
    out = Settled([], [])
    for n in range(m.spawned):
        f = m.future(n)
        failure = f._failure()
        stalled = any(i.outcome == "stalled" and i.name == f.key for i in m.b.ex.facts.items)
        if failure and m.on_stall and stalled:
            failure = TaskStalled(f.run_id, m.kind)
        out.errors.append(failure)
        out.results.append(None if failure else f._value())
        out.count(failure)
    return out
