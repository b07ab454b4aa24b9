"""An execution of an agent: from a grant to an outcome."""

from __future__ import annotations

import asyncio
import re
import threading
from typing import Any, Callable

from .. import canonical, errors, shapes
from ..errors import Defect, Failure, Refused, Suspended, misuse
from .branch import Branch, current
from .facts import Facts, Item
from .outcome import clean, failed
from .pending import Segment

CLAIMS = ("signal", "message", "timer")
ADOPTED = ("child", "wait", "approval", "callback", "timeout")
WATCH = 1.0  # seconds between two looks into the inbox, for branches that wait while others work
_of_child = re.compile(r"children\[(\d+)\]")


class Parked:
    """A branch that waits, with the waits that it would open."""

    def __init__(self, b: Branch, specs: Callable[[], list[dict[str, Any]]], ready: Callable[[], bool]):
        self.b, self.specs, self.ready = b, specs, ready
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake(self) -> None:
        if not self.future.done():
            self.future.set_result(None)
            self.b.ex.running += 1


class Execution:
    """Executes an agent's function with the answers of its journal. session is the worker's side."""

    def __init__(self, session: Any, function: Callable[..., Any], make: Callable[[Branch], Any],
                 input_type: Any = Any, result_type: Any = Any, ignores: tuple[str, ...] = ()):
        self.session, self.function, self.make = session, function, make
        self.input_type, self.result_type, self.ignores = input_type, result_type, ignores
        g = session.grant
        self.epoch, self.first_epoch = g["epoch"], g.get("first_epoch") or 0
        self.journal = [{"key": e["key"], "value": e["value"]} for e in g.get("journal") or []]
        self.inbox: dict[int, dict[str, Any]] = {}
        self.acked: set[int] = set()
        self.cancelled = bool(g.get("cancel"))
        self.frames = self.saids = 0
        self.lock = asyncio.Lock()
        self.thread = threading.get_ident()
        self.checking = bool(getattr(session, "checking", False))

    async def run(self) -> None:
        """Executes the agent until the server has an outcome. Lost passes through."""
        self.thread = threading.get_ident()
        self.take_inbox(self.session.grant.get("inbox") or [])
        while await self._pass():
            pass

    def _reset(self) -> None:
        self.defect: Defect | None = None
        self.raised: Exception | None = None
        self.suspending = self.over = False
        self.continuing: dict[str, Any] = {}
        self.read_seq = 0
        self.running = 1
        self.parked: list[Parked] = []
        self.standing: dict[Branch, asyncio.Future[None]] = {}
        self.segments = [Segment()]
        self.made: list[tuple[str, Any, Any]] = []  # calls that may not be awaited yet
        self.asked: set[str] = set()  # waits of questions that this pass opens
        self.tokens: dict[str, str] = {}
        self.runs: dict[str, str] = {}
        self.timer: asyncio.TimerHandle | None = None
        self.watcher: asyncio.Task[None] | None = None
        self.background: BaseException | None = None
        self.ignored_due: list[str] | None = None
        self.facts = Facts([], 0)
        self.root = Branch(self)

    async def _pass(self) -> bool:
        """Calls the function once. Returns True if it has to be called again at once."""
        self._reset()
        try:
            self.facts = Facts(self.journal, self.first_epoch)
            if self.checking:
                for wait in self.session.asleep:
                    self.facts.expect_wait(wait)
            for raw in self.inbox.values():
                self.adopt(raw)
            value = self._input()
            outcome = await self._call(value)
        except Defect as e:
            outcome = self._held(e)
        except Unreadable as e:
            outcome = failed(e)
        finally:
            self.over = True
            if self.timer:
                self.timer.cancel()
            if self.watcher:
                self.watcher.cancel()
        return await self._end(outcome)

    async def _call(self, value: Any) -> dict[str, Any]:
        token = current.set(self.root)
        try:
            result = await self.function(self.make(self.root), value)
            await asyncio.sleep(0)  # tasks that the agent has begun and not awaited begin, and are found
            if not self.defect and not self.suspending:
                self.root.settled()
        except Suspended:
            if self.defect:
                return self._held(self.defect)
            if not self.suspending:
                return self._held(misuse("the agent has raised perdure.Suspended itself"))
            return {"type": "suspend"}
        except Defect as e:
            return self._held(self.defect or e)
        except (SystemExit, KeyboardInterrupt, asyncio.CancelledError) as e:
            if self.defect or self.suspending:
                return self._held(self.defect or misuse("the agent has caught perdure.Suspended, and raises %r" % (e,)))
            return failed(Failure("exit", "the agent ends by %r; return a result, or raise an error" % (e,)))
        except Exception as e:
            self.raised = e
            if self.defect or self.suspending:
                return self._held(self.defect or misuse(
                    "the agent has caught perdure.Suspended, and raises %r; let it pass" % (e,)))
            if self.cancelled:
                return {"type": "cancelled"}
            return failed(e)
        finally:
            current.reset(token)
        return self._completed(result)

    def _completed(self, result: Any) -> dict[str, Any]:
        if self.defect:
            return self._held(self.defect)
        if self.suspending:
            return self._held(misuse("the agent has caught perdure.Suspended, and goes on; let it pass"))
        if not self.cancelled:
            try:
                self.root.expect_none("the end of the agent", within=True)
            except Defect as e:
                return self._held(e)
        try:
            tree, _ = shapes.encode(result, self.result_type)
        except shapes.Unrecordable as e:
            return {"type": "fail", "retryable": False,
                    "error": {"code": "invalid_result", "message": "the result of the agent: %s" % e}}
        out: dict[str, Any] = {"type": "complete", "result": tree, **self.continuing}
        if self.read_seq:
            out["read_seq"] = self.read_seq
        return out

    def _held(self, e: Defect) -> dict[str, Any]:
        """Drops all that was not recorded, but for the ends of waits, and holds the run."""
        closed = [x for segment in self.segments for x in segment.limits]  # somebody has refused a call until then
        self.segments = [Segment()]
        self.segments[0].limits = closed
        for item in self.facts.items:
            if item.at is None and item.type in ADOPTED and item.seq:
                self.segments[0].item(_record(self.inbox[item.seq]))
                self.segments[0].ack.append(item.seq)
        self.ignored_due = None
        error = {"code": e.code, "message": clean(e.message)}
        if e.final:
            return {"type": "fail", "retryable": False, "error": error}
        if self.cancelled:
            return {"type": "fail", "retryable": True, "error": error}
        return {"type": "fail", "retryable": True, "defect": True, "error": error}

    # The input

    def _input(self) -> Any:
        raw = self.session.grant.get("input")
        tp, seen = self.input_type, self.facts.ignored
        try:
            value = shapes.decode(raw, tp, strict=False) if raw is not None or tp is not Any else None
        except shapes.Unfit as e:
            if not self.facts.begun:
                raise Unreadable("the input of the run: %s" % e) from None
            raise errors.nondeterminism(
                "input: an earlier release could read the run's input: %s; keep a type that reads it, or let the release "
                "before finish the run" % e) from None
        fields = shapes.ignored(tp, raw)
        if seen is not None:
            new = [f for f in fields if f not in seen and f != "*" and not self._ignores(f)]
            if new and "*" not in seen[-1:]:
                raise errors.nondeterminism(
                    "input: the run's input has the field %s, which an earlier release has read, and %s does not have it "
                    "now; if it is gone on purpose, name it in the option ignores of the agent"
                    % (new[0], shapes.name_of(tp)))
        elif not self.facts.begun and shapes.has_objects(raw):
            self.ignored_due = fields
        return value

    def _ignores(self, field: str) -> bool:
        return any(field == name or field.startswith(name + "/") for name in self.ignores)

    # The inbox

    def take_inbox(self, items: list[dict[str, Any]]) -> None:
        for raw in items:
            self.inbox.setdefault(raw["seq"], raw)

    def adopt(self, raw: dict[str, Any]) -> None:
        """Makes the end of a child or a wait a fact."""
        wait = raw.get("wait_id", "")
        if raw["seq"] in self.facts.taken:
            return
        if raw["type"] == "limit":  # the step asks again; the end of its wait is in no frame
            if raw["seq"] not in self.acked:
                self.acked.add(raw["seq"])
                self.segment().ack.append(raw["seq"])
        elif raw["type"] in ADOPTED:
            self.fact(raw, wait, expected=True)
        elif wait and wait not in self.facts.closed and raw["type"] in CLAIMS:
            self.facts.order += 1
            self.facts.expect_wait(wait)  # it is over, although only the call that takes it makes that a fact

    def fact(self, raw: dict[str, Any], wait: str, unfit: bool = False, expected: bool = False) -> Item:
        """Writes an inbox item into the frame, and acknowledges it."""
        record = _record(raw, wait)
        if unfit:
            record["unfit"] = True
        item = Item(record, 0, None)
        segment = self.segment()
        segment.item(record)
        segment.items.append(item)
        if item.seq:
            segment.ack.append(item.seq)
        self.facts.add(item, expected=expected)
        return item

    async def look(self) -> bool:
        """Looks into the inbox for more. Returns whether there was something."""
        more = [raw for raw in await self.session.more() if raw["seq"] not in self.inbox]
        self.take_inbox(more)
        for raw in more:
            self.adopt(raw)
        return bool(more)

    # Commits

    def segment(self) -> Segment:
        if self.segments[-1].full():
            self.segments.append(Segment())
        return self.segments[-1]

    def record(self, key: str, value: Any) -> None:
        """Adds an entry to the next commit."""
        segment = self.segment()
        segment.entries.append((key, value))
        segment.add(1, len(canonical.dumps(value)))
        self.facts.order += 1
        self.facts.entries[key] = value
        self.facts.places[key] = self.facts.order

    def event(self, type: str, data: Any) -> None:
        """Adds a line of the log to the next commit."""
        segment = self.segment()
        event = {"type": type} if data is None else {"type": type, "data": data}
        segment.events.append(event)
        segment.add(1, len(canonical.dumps(data)))
        self.soon()

    def close_limit(self, closure: dict[str, Any]) -> None:
        """Closes a limit with the next commit. The last closure of a limit and a key counts."""
        segment = self.segment()
        of = (closure["name"], closure.get("key"))
        segment.limits = [x for x in segment.limits if (x["name"], x.get("key")) != of] + [closure]
        segment.add(1, 100)
        self.soon()

    def soon(self) -> None:
        """Commits within 50 ms what was added."""
        if self.timer is None and self.session.prompt:
            self.timer = asyncio.get_running_loop().call_later(0.05, self._in_background)

    def _in_background(self) -> None:
        self.timer = None
        if not self.over and not self.suspending:
            task = asyncio.ensure_future(self.flush())
            task.add_done_callback(self._flushed)

    def _flushed(self, task: "asyncio.Future[None]") -> None:
        if not task.cancelled() and task.exception():
            self.background = self.background or task.exception()

    async def fresh(self) -> None:
        """Is called before something that is not recorded. Makes durable all that was added; a check ends here."""
        if self.checking:
            await self.stand()
        await self.flush()

    async def stand(self) -> None:
        """Ends a check in this branch, because the run has not come further. Other branches replay until they stand."""
        b = current.get()
        if b not in self.standing:
            self.standing[b] = asyncio.ensure_future(self.park(b, list, lambda: False))
        await asyncio.shield(self.standing[b])

    async def flush(self) -> None:
        """Makes durable all that was added."""
        if self.checking and not self.segments[0].empty():
            await self.stand()
        async with self.lock:
            if self.background:
                raise self.background
            while not self.segments[0].empty():
                segment = self.segments.pop(0)
                if not self.segments:
                    self.segments.append(Segment())
                await self._send(segment, None)

    async def _send(self, segment: Segment, outcome: dict[str, Any] | None, final: bool = False) -> dict[str, Any]:
        while True:
            self._put_ignored(segment, outcome)
            self.frames += bool(segment.frame)
            self.saids += bool(segment.said)
            commit = segment.commit(self.epoch, self.frames, self.saids, outcome)
            try:
                result = await self.session.commit(commit)
            except Refused as e:
                child = _of_child.search(e.field)
                if child and int(child.group(1)) < len(segment.children):
                    self._refuse(segment, list(segment.children)[int(child.group(1))], e)
                    if outcome and outcome["type"] == "suspend":
                        outcome = self._again(segment)
                    continue
                if e.code == "cancel_requested" and outcome is None and segment.children:
                    self.cancelled = True
                    segment.children.clear()
                    segment.frame.pop("spawned", None)
                    continue
                if outcome is not None:
                    raise
                self.defect = self.defect or Defect(e.code, e.detail, final=e.code != "nondeterminism")
                raise self.defect from e
            self._committed(segment, commit, result)
            return result

    def _put_ignored(self, segment: Segment, outcome: dict[str, Any] | None) -> None:
        """Records the fields of the input that the type does not have, in the first commit."""
        if self.ignored_due is None:
            return
        steps = [value for key, value in segment.entries if not key.startswith("_")]
        if not segment.frame and steps:
            steps[0]["ignored"] = self.ignored_due
        elif outcome is None or outcome["type"] == "suspend":
            segment.frame["ignored"] = self.ignored_due

    def _committed(self, segment: Segment, commit: dict[str, Any], result: dict[str, Any]) -> None:
        self.ignored_due = None
        self.journal += commit.get("journal", [])
        if segment.frame:
            key = "_frame:%d.%d" % (self.epoch, self.frames)
            for item in segment.items:
                item.at = key
            self.facts.places[key] = self.facts.order
            self.facts.opened.update(segment.frame.get("opened", []))
        for child in result.get("children") or []:
            self.runs[child["key"]] = child["run_id"]
        for callback in result.get("callbacks") or []:
            self.tokens[callback["wait_id"]] = callback["token"]
        if result.get("cancel"):
            self.cancelled = True

    def _refuse(self, segment: Segment, key: str, e: Refused) -> None:
        """Makes the refusal of a child its own end."""
        del segment.children[key]
        raw = {"seq": 0, "type": "child", "name": key, "outcome": "failed",
               "data": {"reason": e.code, "message": e.detail}}
        segment.item(raw)
        item = Item(raw, 0, None)
        segment.items.append(item)
        self.facts.add(item, expected=False)

    def _again(self, segment: Segment) -> dict[str, Any]:
        for wait in segment.frame.pop("opened", []) + [w for w in segment.waits if "join:" in w or "map:" in w]:
            segment.waits.pop(wait, None)
        again = "_again:%d" % self.epoch
        segment.waits[again] = {"id": again, "type": "callback", "timeout": "1ms"}
        return {"type": "suspend", "waits": [again]}

    async def _end(self, outcome: dict[str, Any]) -> bool:
        """Sends the outcome with all that is left. Returns True if the agent has to be called again."""
        async with self.lock:
            while len(self.segments) > 1:
                await self._send(self.segments.pop(0), None)
            segment = self.segments.pop(0)
            self.segments.append(Segment())
            if outcome["type"] == "suspend":
                return await self._suspend(segment)
            if outcome["type"] == "fail" and "cause" in outcome:
                self._name_cause(segment, outcome)
            try:
                await self._send(segment, outcome)
            except Refused as e:
                await self._refused(outcome, e)
            return False

    def _name_cause(self, segment: Segment, outcome: dict[str, Any]) -> None:
        cause = outcome.pop("cause")
        if isinstance(cause, Item):
            cause = cause.at or "_frame:%d.%d" % (self.epoch, self.frames + 1)
        if cause:
            outcome["error"]["cause_key"] = cause

    async def _refused(self, outcome: dict[str, Any], e: Refused) -> None:
        """Says why an outcome could not be taken."""
        code = "result_refused" if outcome["type"] == "complete" else e.code
        if e.code == "cancel_requested":
            instead: dict[str, Any] = {"type": "cancelled"}
        else:
            instead = {"type": "fail", "retryable": False,
                       "error": {"code": code, "message": ("%s: %s" % (e.code, e.detail))[:2000]}}
        await self.session.commit({"outcome": instead})

    async def _suspend(self, segment: Segment) -> bool:
        specs: dict[str, dict[str, Any]] = {}
        by_branch = {id(p.b): p for p in self.parked}
        for b in self.root.chain():
            p = by_branch.get(id(b))
            if p:
                specs.update({spec["id"]: spec for spec in p.specs()})
        for spec in specs.values():
            if spec["type"] in ("signal", "message", "timer"):
                segment.frame.setdefault("opened", []).append(spec["id"])
            if spec["id"] not in self.asked:
                segment.waits[spec["id"]] = spec
        try:
            await self._send(segment, {"type": "suspend", "waits": list(specs)})
            return False
        except Refused as e:
            if e.code != "cancel_requested":
                raise
        # The agent is called again, and its wait raises Cancelled. Earlier entries are kept.
        self.cancelled = True
        segment.frame.pop("opened", None)
        for wait in specs:
            if wait not in self.asked:
                segment.waits.pop(wait, None)
        if not segment.empty():
            await self._send(segment, None)
        return True

    # Waiting

    async def park(self, b: Branch, specs: Callable[[], list[dict[str, Any]]], ready: Callable[[], bool]) -> None:
        """Waits until a branch can look again, or raises Suspended."""
        p = Parked(b, specs, ready)
        self.parked.append(p)
        self.left()
        if self.running and self.watcher is None:
            self.watcher = asyncio.ensure_future(self._watch())
        await p.future
        self.parked.remove(p)

    def left(self) -> None:
        """One branch fewer works. If none does, the run is suspended."""
        self.running -= 1
        if self.running or self.suspending or self._wake():
            return
        self.suspending = True
        for p in self.parked:
            if not p.future.done():
                p.future.set_exception(Suspended())

    def _wake(self) -> bool:
        woken = [p for p in self.parked if p.ready()]
        for p in woken:
            p.wake()
        return bool(woken)

    async def _watch(self) -> None:
        """Looks into the inbox for branches that wait while others work."""
        while True:
            await asyncio.sleep(WATCH)
            if self.suspending or self.over:
                return
            if self.parked:
                await self.look()
                self._wake()


class Unreadable(Failure):
    """The input of a run is not what the agent reads."""

    def __init__(self, message: str):
        super().__init__("invalid_input", message, permanent=True)


def _record(raw: dict[str, Any], wait: str | None = None) -> dict[str, Any]:
    """Returns an inbox item as a frame has it."""
    out = {"seq": raw["seq"], "type": raw["type"], "wait": raw.get("wait_id", "") if wait is None else wait,
           "name": raw.get("name", ""), "run": raw.get("run_id", ""), "outcome": raw.get("outcome", "")}
    out = {k: v for k, v in out.items() if v != ""}
    if raw["type"] == "callback":
        data = raw.get("data") or {}
        if data.get("error"):
            out["failure"] = {"code": data["error"].get("code", ""), "message": data["error"].get("message", "")}
        else:
            out["data"] = data.get("result")
    elif "data" in raw:
        out["data"] = raw["data"]
    return out
