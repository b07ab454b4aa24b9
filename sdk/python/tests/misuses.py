"""Misuses of docs/misuses.md in Python: a worker with an agent for each row. See misuses_test.go.

A row says what becomes of it where that is not what the page says of Go, and why. One that Python can't have
has no agent.
"""

import asyncio
import concurrent.futures
import dataclasses
import datetime
import json
import os
import random
import sys
import threading
import time
from typing import Any, NamedTuple

import perdure
from perdure import testing
from perdure.errors import Failure

HOUR = 3600
BIG = "x" * (1 << 20)


class Row(NamedTuple):
    agent: Any
    becomes: str  # as in Go if it is empty
    why: str


rows: dict[str, Row] = {}


def row(name, becomes="", why=""):
    def register(f):
        rows[name] = Row(f, becomes, why)
        return f
    return register


def none(why, *names):
    for name in names:
        rows[name] = Row(None, "none", why)


async def one():
    return 1


async def finished(made):
    return await made if asyncio.iscoroutine(made) else made


def only(make):
    async def agent(ctx, _):
        await finished(make(ctx))
        return "done"
    return agent


def in_step(make):
    async def agent(ctx, _):
        async def inside():
            await finished(make(ctx))
            return 1
        await ctx.step("outer", inside)
        return "done"
    return agent


def in_thread(make):
    """Makes a call in a bare thread, with an event loop of its own."""
    async def agent(ctx, _):
        errors = []

        def call():
            try:
                asyncio.run(finished(make(ctx)))
            except Exception as e:
                errors.append(e)
        thread = threading.Thread(target=call)
        thread.start()
        while thread.is_alive():
            await asyncio.sleep(0.01)
        if errors:
            raise errors[0]
        return "done"
    return agent


async def newest(ctx):
    async for _ in ctx.newest_messages():
        pass


CALLS = {
    "a step": lambda c: c.step("b", one), "`Sleep`": lambda c: c.sleep(1),
    "`SleepUntil`": lambda c: c.sleep_until(datetime.datetime(2100, 1, 1, tzinfo=datetime.timezone.utc)),
    "`Signal`": lambda c: c.signal("n", 1), "`OnSignal`": lambda c: c.on_signal("n").join(),
    "`OnMessage`": lambda c: c.on_message().join(), "`After`": lambda c: c.after(1).join(),
    "`Approve`": lambda c: c.approve("a", 1, title="?"), "`OnApproval`": lambda c: c.on_approval("a", 1, title="?").join(),
    "`Callback`": lambda c: c.callback("door", 1).join(), "`Spawn`": lambda c: c.spawn("one", 1).join(),
    "`Map`": lambda c: c.map("one", [1]), "`Parallel`": lambda c: c.parallel("p", [1], lambda x: x),
    "`Saga`": lambda c: c.saga("s", one), "`Go`": lambda c: c.all(b=lambda c: one()),
    "`Version`": lambda c: c.version("v", 1), "`Removed`": lambda c: c.removed("old"), "`Now`": lambda c: c.now("n"),
    "`UUID`": lambda c: c.uuid("u"), "`Message`": lambda c: c.message("user", 1), "`History`": lambda c: c.history(),
    "`NewestMessages`": newest, "`Continue`": lambda c: c.continue_on(1),
}
for _name, _make in CALLS.items():
    row(_name + " inside of a step")(in_step(_make))
    row(_name + " in a bare goroutine", why="in a thread")(in_thread(_make))


def effects(run):
    try:
        with open(os.environ["LOG"]) as f:
            return [line.split(" ", 1)[1].strip() for line in f if line.startswith(run + " ")]
    except FileNotFoundError:
        return []


def did(run, what):
    with open(os.environ["LOG"], "a") as f:
        f.write(run + " " + what + "\n")


def executions(ctx):
    did(ctx.run_id, "execution")
    return effects(ctx.run_id).count("execution")


async def do(ctx, name):
    return await ctx.step(name, lambda: did(ctx.run_id, name))


async def go_on(ctx):
    return await ctx.signal("go on", HOUR)


# Calls inside of a step

row("`IdempotencyKey` with the agent's context, in a step", "fails, `failed`",
    "the agent's context has none, and an `AttributeError` in a step is an error of the step")(
        in_step(lambda c: c.idempotency_key))
row("`IdempotencyKey` outside of a step", "held, `panic`", "the agent's context has none")(only(lambda c: c.idempotency_key))
none("`ctx.all` begins its branches and joins them in one call", "`Join` of a branch inside of a step",
     "a branch that is not joined", "a branch that joins itself", "a branch that is joined in another one",
     "a branch that is joined twice", "a branch that no call returned")


@row("`Cancel` of a future inside of a step")
async def cancel_inside(ctx, _):
    f = ctx.spawn("never", 1)

    async def inside():
        await f.cancel()
    await ctx.step("outer", inside)


@row("a step inside of a `Parallel`'s function")
async def step_in_item(ctx, _):
    async def item(_):
        await ctx.step("inner", one)
    await ctx.parallel("p", [1, 2], item)


@row("a wait inside of an `Undo`")
async def wait_in_undo(ctx, _):
    async def body():
        async def undo(_):
            await ctx.sleep(1)
        await ctx.step("a", one, undo=undo)
        raise Failure("failed", "oops", permanent=True)
    await ctx.saga("s", body)


async def helper(ctx):
    return await ctx.step("deep", one)


row("a step inside of a step, in a helper")(in_step(helper))
row("`Delta` and `Emit` with the agent's context inside of a step", "held, `agent_misuse`",
    "the agent's context is for calls between steps; the step's has `delta` and `emit`")(in_step(lambda c: c.delta("x")))

# Goroutines

row("a step in a goroutine of a `sync.WaitGroup`", why="in a thread")(in_thread(helper))


@row("a branch whose name is in use", "right", "the names of `ctx.all` are told apart by Python, and counted in further calls")
async def branch_again(ctx, _):
    await ctx.all(side=lambda c: one())
    await ctx.all(side=lambda c: one())
    return "done"


@row("a branch that uses the context of the agent", "held, `agent_misuse`",
     "a branch is its context, because tasks of one thread can't be told apart for sure")
async def parents_context(ctx, _):
    await ctx.all(side=lambda c: helper(ctx))


@row("a goroutine that computes something, and calls nothing of the package")
async def computes(ctx, _):
    await asyncio.gather(asyncio.sleep(0), asyncio.to_thread(lambda: 1 + 1))
    await helper(ctx)
    return "done"


@row("a step in a deferred function, after a wait", "held, `agent_misuse`",
     "`finally` runs whenever the run waits; undo things with a saga")
async def deferred(ctx, _):
    try:
        await go_on(ctx)
    finally:
        await helper(ctx)


@row("a `recover` around a wait", why="`except Exception` lets a wait pass")
async def recovers(ctx, _):
    try:
        await go_on(ctx)
    except Exception:
        return "caught"
    return "done"


# Clocks, dice, the environment and variables

VET = "Python has no vet: nothing looks at the code before it runs"


@row("a step's function adds to a variable of the agent", "found by the test kit", VET)
async def adds(ctx, _):
    total = []
    await ctx.step("pay", lambda: total.append(10))
    await do(ctx, "a")
    return str(sum(total))


@row("a step's function appends to a slice of the agent", "found by the test kit", VET)
async def appends(ctx, _):
    found = []
    await ctx.step("find", lambda: found.append("x"))
    await do(ctx, "a")
    return str(found)


@row("a step's function decodes into a variable of the agent", "found by the test kit", VET)
async def decodes(ctx, _):
    order = {}
    await ctx.step("read", lambda: order.update(json.loads('{"Amount": 7}')))
    await do(ctx, "a")
    return str(order)


@row("`time.Now` as a start, and `time.Since` behind a wait", "found by the test kit", VET)
async def since(ctx, _):
    began = time.time()
    await ctx.sleep(0.01)
    return str(time.time() - began)


@row("the time in the name of a step", why=VET)
async def time_in_name(ctx, _):
    await do(ctx, "at %d" % time.time_ns())
    await go_on(ctx)


@row("dice in the name of a step", why=VET)
async def dice_in_name(ctx, _):
    await do(ctx, "at %d" % random.getrandbits(62))
    await go_on(ctx)


@row("dice in the result", "found by the test kit", VET)
async def dice_in_result(ctx, _):
    await do(ctx, "a")
    return "ticket %d" % random.getrandbits(62)


@row("dice in the input of a child", why=VET)
async def dice_in_child(ctx, _):
    ctx.spawn("never", random.getrandbits(62))
    await go_on(ctx)


@row("an environment variable decides", "found by the test kit", VET)
async def environment(ctx, _):
    return await do(ctx, "b" if os.environ.get("PERDURE_NO_SUCH_THING") else "a")


@row("the name of the machine decides", "found by the test kit", VET)
async def machine(ctx, _):
    return await do(ctx, "b" if os.uname().nodename == "no such host" else "a")


@row("`range` over a map around steps", "right", "a dict keeps the order in which it was made")
async def over_dict(ctx, _):
    for name in {"a": 1, "b": 2}:
        await do(ctx, name)


@row("the items of a `Parallel` come from the order of a map", "right", "a dict keeps the order in which it was made")
async def items_of_dict(ctx, _):
    await ctx.parallel("p", {"a": 1, "b": 2}, lambda x: x)


@row("items in another order in each execution")
async def other_order(ctx, _):
    await ctx.parallel("p", "ba" if executions(ctx) > 1 else "ab", lambda x: x)
    await go_on(ctx)


@row("a global counter decides which step comes")
async def counter(ctx, _):
    await do(ctx, "b" if executions(ctx) > 1 else "a")
    await go_on(ctx)


@row("a global counter is in the result")
async def counter_in_result(ctx, _):
    n = executions(ctx)
    await ctx.sleep(0.01)
    return str(n)


@row("a global cache leaves a step out")
@row("a `sync.Once` around a step", why="a global cache")
async def cache(ctx, _):
    if executions(ctx) == 1:
        await do(ctx, "a")
    await go_on(ctx)


@row("a wait that is there in some executions alone")
async def some_waits(ctx, _):
    if executions(ctx) == 1:
        await go_on(ctx)
    await do(ctx, "a")


kept = []


@row("the agent's context in a global variable", "right", "it is held when it is used after the agent's end")
async def keeps(ctx, _):
    kept[:] = [ctx]


@row("the error of a step is dropped", "right", "a step raises, and code that drops its error says so")
async def drops(ctx, _):
    try:
        await ctx.step("a", one)
    except Failure:
        pass


@row("a file is written outside of a step", "found by the test kit", VET)
async def writes(ctx, _):
    with open(os.devnull, "w") as f:
        f.write("paid")
    await do(ctx, "a")


@row("`time.Sleep` instead of `agent.Sleep`", why="and holds up the other agents of the worker")
async def sleeps(ctx, _):
    time.sleep(0.001)
    await do(ctx, "a")


# Panics: errors that say that the code is broken


def raises(error):
    def f(*_):
        raise error
    return f


@row("a panic in the agent's code")
@row("a panic with an error", why="a `TypeError`")
async def type_error(ctx, _):
    raise TypeError("boom")


@row("`panic(nil)`", why="`raise None` is a `TypeError`")
async def raise_none(ctx, _):
    raise None


@row("a write into a nil map", why="a `TypeError`")
async def write_none(ctx, _):
    none = None
    none["a"] = 1


@row("an index out of range", "fails, `failed`", "an `IndexError` may come from data, so it fails the attempt")
async def index(ctx, _):
    return [][0]


@row("a panic behind a wait")
async def behind(ctx, _):
    await go_on(ctx)
    raise AttributeError("boom")


async def broken():
    raise AttributeError("boom")


row("a panic in the body of a saga")(only(lambda c: c.saga("s", broken)))
row("a panic in a branch")(only(lambda c: c.all(side=lambda c: broken())))
STEPS_ERROR = "fails, `failed`", "in a step it is an error of the step as others are"
row("a panic in a step", *STEPS_ERROR)(only(lambda c: c.step("a", raises(TypeError("boom")))))
row("a panic in an item of a `Parallel`", *STEPS_ERROR)(only(lambda c: c.parallel("p", [1], raises(TypeError("boom")))))


class PanicsOnError(Exception):
    def __str__(self):
        raise TypeError("boom")


row("a panic in the `Error` of an error that a step returns")(only(lambda c: c.step("a", raises(PanicsOnError()))))
none("an error that is raised is one", "a nil error of its own type from a step")
EXIT = "fails, `exit`", "`sys.exit` ends the attempt and not the worker"
row("`runtime.Goexit` in the agent's code", *EXIT)(only(lambda c: sys.exit(1)))
row("`runtime.Goexit` in a step", *EXIT)(only(lambda c: c.step("a", lambda: sys.exit(1))))


async def exits():
    sys.exit(1)


row("`runtime.Goexit` in a branch", *EXIT)(only(lambda c: c.all(side=lambda c: exits())))

# Huge, deep and odd values


def deep(n):
    out = []
    for _ in range(n):
        out = [out]
    return out


def gives(value, tp=None):
    return only(lambda c: c.step("s", lambda: value, type=tp))


itself = []
itself.append(itself)


@dataclasses.dataclass
class Hidden:
    Seen: str


row("a result of a step of 1 MiB and more")(gives(BIG))
row("a result of 4 MiB")(gives(BIG * 4))
row("a result that is nested 60 deep")(gives(deep(60)))
row("a result with a NUL in a text")(gives("a\0b"))
row("a channel as a result", why="an object of a class")(gives(threading.Lock()))
row("a function as a result")(gives(one))
row("NaN as a result")(gives(float("nan")))
row("infinity as a result")(gives(float("inf")))
row("a complex number as a result")(gives(1 + 2j))
row("a value that has itself in it")(gives(itself))
none("values are data, which `json` writes, and not text", "half a JSON")
row("half of a surrogate pair", "an error that it may handle, `invalid`",
    "a text with one can't be written as UTF-8")(gives("\ud800"))
none("a class has no way to write or read itself as JSON", "a `MarshalJSON` that fails", "an `UnmarshalJSON` that fails",
     "a panic in the `MarshalJSON` of a result")
row("a map with keys that JSON can't write")(gives({Hidden: 1}))
row("nil as a result")(gives(None))


@row("a result with unexported fields", why="attributes that are no fields of the dataclass")
async def hidden(ctx, _):
    def look():
        out = Hidden("x")
        out.hidden = "y"
        return out
    v = await ctx.step("s", look, type=Hidden)
    return "{%s %s}" % (v.Seen, getattr(v, "hidden", ""))


row("arbitrary bytes as `[]byte`")(gives(b"\0\xff\x80", bytes))
row("an error of a step with a text of 2 MiB")(only(lambda c: c.step("s", raises(Failure("failed", BIG * 2, True)))))
row("an error of a step with a NUL in its text")(only(lambda c: c.step("s", raises(Failure("failed", "a\0b", True)))))
OWN = "fails, `invalid_result`", "it is found before it is sent"


@row("a result of the agent of 2 MiB", *OWN)
async def large(ctx, _):
    return BIG * 2


@row("a result of the agent with a NUL", *OWN)
async def with_nul(ctx, _):
    return "a\0b"


def child(kind, *input, **options):
    return only(lambda c: c.spawn(kind, *input, **options).join())


row("an input of a child of 1 MiB and more")(child("one", BIG))
row("an input of a child that is nested 2000 deep")(child("one", deep(2000)))
row("an input of a child with a NUL")(child("one", "a\0b"))
row("a channel as the input of a child")(child("one", threading.Lock()))
row("an item of a `Parallel` that is no JSON")(only(lambda c: c.parallel("p", [one], lambda x: 1)))
row("an item of a `Map` that is no JSON")(only(lambda c: c.map("one", [one])))
row("a message with a NUL")(only(lambda c: c.message("assistant", "a\0b")))
row("a message of 1 MiB and more")(only(lambda c: c.message("assistant", BIG)))
row("a `Delta` with a NUL")(only(lambda c: c.delta("a\0b")))
row("an `Emit` of a channel")(only(lambda c: c.emit("x:line", threading.Lock())))
row("a `Progress` with a NUL")(only(lambda c: c.progress("a\0b")))
row("a `Publish` of 100 KiB")(only(lambda c: c.publish("plan", BIG[:100 << 10])))
row("an action to approve of 100 KiB")(only(lambda c: c.approve("a", BIG[:100 << 10], title="?")))

# Nil

row("a step without a function")(only(lambda c: c.step("a", None)))
row("a `Parallel` without a function")(only(lambda c: c.parallel("p", [1], None)))
row("a saga without a function")(only(lambda c: c.saga("s", None)))
row("a branch without a function")(only(lambda c: c.all(b=None)))
none("`undo=None` is no undo", "an `Undo` without a function")
row("a join of a nil future")(only(lambda c: c.join_all(None)))
row("a `Select` of nil")(only(lambda c: c.select(None)))
row("a nil option")(only(lambda c: c.step("a", one, retries=None, timeout=None, limit=None)))
NO = None
METHOD = "held, `panic`", "calls are methods, and `None` has none"
row("a step with a nil context", *METHOD)(only(lambda c: NO.step("a", one)))
row("a wait with a nil context", *METHOD)(only(lambda c: NO.sleep(1)))
row("a child with a nil context", *METHOD)(only(lambda c: NO.spawn("one", 1)))
row("a wait with a nil context inside of a step", "fails, `failed`",
    "calls are methods, and `None` has none; in a step that is an error of the step")(in_step(lambda c: NO.sleep(1)))
row("a wait with a nil context in a branch", *METHOD)(only(lambda c: c.all(b=lambda c: NO.sleep(1))))
row("an `Emit` with a nil context", *METHOD)(only(lambda c: NO.emit("x:y", 1)))
row("a `Progress` with a context that is no agent's", *METHOD)(only(lambda c: NO.progress(1)))
row("the `Cancel` of a nil future", *METHOD)(only(lambda c: NO.cancel()))
MADE = "held, `panic`", "only the library can make one: a `TypeError`"
row("a context that the agent has made", *MADE)(only(lambda c: perdure.Context().sleep(1)))
row("a join of a future that no call returned", *MADE)(only(lambda c: perdure.Future().join()))
row("the `Result` of a future that no call returned", *MADE)(only(lambda c: perdure.Future().result()))

# Names and arguments


def step(name, **options):
    return only(lambda c: c.step(name, one, **options))


row("a step without a name")(step(""))
row("a name that begins with _")(step("_own"))
row("a name of 171 bytes")(step("x" * 171))
row("a name with a line break")(step("a\nb"))
row("a name that begins with a space")(step(" a"))
row("a name with the key of a branch in it")(step("left#1//a"))
row("a name with umlauts and a number")(step("mit Umlauten: äöü #1"))
row("a saga without a name")(only(lambda c: c.saga("", one)))
row("a branch without a name")(only(lambda c: c.branches({"": lambda c: one()})))
row("a `UUID` without a name")(only(lambda c: c.uuid("")))
row("a `Now` without a name")(only(lambda c: c.now("")))
row("a `Version` without a name")(only(lambda c: c.version("", 1)))
row("a signal without a name")(only(lambda c: c.signal("", 1)))
row("a child without a kind")(child("", 1))
row("a kind with a quote")(child('wea"ther', 1))
row("a kind that begins with _")(child("_frame", 1))
row("a kind of 500 bytes")(child("x" * 500, 1))
row("a child with a priority of 1000", "an error that it may handle, `task_failed`",
    "the server refuses it, and the child's error has the reason")(child("one", 1, priority=1000))
row("a child whose time has passed", "an error that it may handle, `task_failed`",
    "the server refuses a time of nothing, and the child's error has the reason")(child("never", 1, timeout=-1))
row("`FirstOK` of the first 3 of 2")(only(lambda c: c.first_ok(3, c.on_signal("a"), c.on_signal("b"))))
row("`FirstOK` of the first 0")(only(lambda c: c.first_ok(0, c.on_signal("a"))))
row("a `Select` of nothing")(only(lambda c: c.select()))
row("a `Race` of nothing")(only(lambda c: c.race(1)))
row("a `JoinAll` of nothing")(only(lambda c: c.join_all()))


@row("one signal twice in a `Select`")
async def twice(ctx, _):
    f = ctx.on_signal("a")
    await ctx.select(f, f)


row("the `Result` of a future that has not ended")(only(lambda c: c.on_signal("a").result()))
row("a `Peek` at a signal")(only(lambda c: c.on_signal("a").peek()))
LIMIT = "held, `agent_misuse`", "an option of the code"
row("a `Limit` of -1", *LIMIT)(only(lambda c: c.parallel("p", [1], lambda x: x, limit=-1)))
row("a `Limit` of 1001", *LIMIT)(only(lambda c: c.parallel("p", [1], lambda x: x, limit=1001)))
row("a `Retry` of -1 attempts")(step("a", retries=perdure.Retry(-1)))
row("a `Retry` with a negative pause")(step("a", retries=perdure.Retry(2, first=-1)))
row("`For` with a value that is no JSON")(step("a", about=one))
row("`For` on a `Parallel`", "held, `panic`", "it has no such parameter: a `TypeError`")(
    only(lambda c: c.parallel("p", [1], lambda x: x, about=1)))
row("an `Undo` outside of a saga")(step("a", undo=lambda _: None))
none("an undo is given the result as it is", "an `Undo` of another type")
row("a `Sleep` of a time that has passed")(only(lambda c: c.sleep(-HOUR)))
row("a `Sleep` of 400 days", *LIMIT)(only(lambda c: c.sleep(400 * 24 * HOUR)))
row("a `Message` of a run without a thread")(only(lambda c: c.message("user", 1)))
row("a `History` of a run without a thread")(only(lambda c: c.history()))
row("an `OnMessage` of a run without a thread")(only(lambda c: c.on_message().join()))
row("a `Continue` of a run without a thread")(only(lambda c: c.continue_on(1)))
row("a `Continue` that waits for a signal")(only(lambda c: c.continue_on(1, c.on_signal("a"))))
row("an `Emit` of a type that is the server's")(only(lambda c: c.emit("run:completed", 1)))
row("a `Publish` under a name that is none")(only(lambda c: c.publish("a/b c", 1)))
row("an `Approve` with a default that is none")(only(lambda c: c.approve("a", 1, title="?", default="maybe")))


@row("an agent that returns `ErrCancelled` and was not asked to stop")
async def returns_cancelled(ctx, _):
    raise perdure.Cancelled()


@row("an agent that returns `context.Canceled`", "fails, `exit`", "`asyncio.CancelledError` ends the attempt")
async def cancelled_error(ctx, _):
    raise asyncio.CancelledError()


def ignoring(agent):
    """Returns an agent that ignores the error of another one if its input says so, and goes on with a step."""
    async def both(ctx, ignores: bool):
        if not ignores:
            return await agent(ctx, ignores)
        code = ""
        try:
            await agent(ctx, ignores)
        except Exception as e:
            code = getattr(e, "code", "failed")
        await ctx.step("next", lambda: did(ctx.run_id, "next"))
        return code
    return both


def main():
    listed = json.loads(os.environ["ROWS"])
    worker = perdure.Worker(slots=20, agent_slots=40, announce=False)
    worker.task("one", lambda input: 1)
    for n, name in enumerate(listed):
        if name in rows and rows[name].agent:
            worker.agent("misuse-%03d" % n, ignoring(rows[name].agent))
    worker.run()


class Here:
    """The server of the environment."""

    moves_clock, ahead = False, 0

    def client(self):
        return perdure.Client()


def found(name):
    """Tells whether the test kit finds a row."""
    worker = perdure.Worker(announce=False, grace=1)
    kind = "kit-%03d" % list(rows).index(name)
    worker.agent(kind, rows[name].agent)
    return not testing.crash(worker, kind, server=Here()).ok


def kit():
    """Executes the rows that execution finds by the test kit alone."""
    names = json.loads(os.environ["KIT"])
    with concurrent.futures.ThreadPoolExecutor(len(names)) as pool:
        json.dump(dict(zip(names, pool.map(found, names))), sys.stdout)


if __name__ == "__main__":
    if "ROWS" in os.environ:
        main()
    elif "KIT" in os.environ:
        kit()
    else:
        json.dump({name: [bool(r.agent), r.becomes, r.why] for name, r in rows.items()}, sys.stdout)
