"""The agents of the stories in testdata/journal/stories, as their words describe them."""

import asyncio
import dataclasses
import datetime
from typing import Any

import perdure
from perdure.errors import Failure

FOREVER = float("inf")
HOUR = 3600
OUT_OF_STOCK = Failure("out_of_stock", "there are none left", permanent=True)
agents = {}


def story(name, *builds, **options):
    """Registers an agent; builds tell from which execution on it is the one, from 1."""
    def register(f):
        agents.setdefault(name, []).append((builds or (1,), f, options))
        return f
    return register


def gives(value):
    async def f():
        return value
    return f


def fails(error):
    async def f():
        raise error
    return f


async def turns(n):
    """Lets others go on n times, each time for so long that they come to rest."""
    for _ in range(100 * n):
        await asyncio.sleep(0)


def temporary(text):
    return RuntimeError(text)


@story("steps")
async def steps(ctx, _):
    await ctx.step("plan", gives({"days": 2, "city": "Bern"}))
    await ctx.step("search", gives("one"))
    two = await ctx.step("search", lambda: "two")
    await ctx.step("nothing", gives(None))
    return two


@story("errors-that-become-facts")
async def facts(ctx, _):
    for name, error in (("stock", OUT_OF_STOCK), ("page", temporary("the page is not there yet"))):
        try:
            await ctx.step(name, fails(error))
        except Failure:
            pass
    await ctx.step("mail", gives(True))
    return "done"


@story("error-that-is-no-fact")
async def no_fact(ctx, _):
    await ctx.step("plan", gives(1))
    first = ctx._b.ex.epoch < 20
    return await ctx.step("page", fails(temporary("the page is not there yet")) if first else gives("text"))


@story("result-that-cant-be-recorded")
async def cant(ctx, _):
    try:
        await ctx.step("read", gives("a\0b"))
    except Failure:
        pass
    return await ctx.step("other", gives(1))


@dataclasses.dataclass
class Bytes:
    raw: bytes
    text: str


@story("steps-about-values")
async def about(ctx, _):
    for n, value in enumerate(["a", {"b": 1.0, "a": "\u2028"}, 9007199254740993]):
        await ctx.step("look", gives(n + 1), about=value)
    await ctx.step("bytes", gives(Bytes(b"\1\2\3", "abcd")), type=Bytes)
    return "done"


@story("now-and-uuid")
async def now_and_uuid(ctx, _):
    ctx.now("began")
    first = ctx.uuid("order")
    ctx.uuid("order")
    ctx.now("began")
    return await ctx.step("pay", gives(first), type=Any)


@story("branches")
async def branches(ctx, _):
    async def branch(c, text):
        await turns(text == "r")  # "left" comes to each of its calls first
        await c.step("search", gives(text))
        await turns(text == "r")
        await c.step("search", gives(await c.signal("go", FOREVER)))
    await ctx.all(left=lambda c: branch(c, "l"), right=lambda c: branch(c, "r"))
    return await ctx.step("search", gives("both"))


# Waits


@story("signal-early")
@story("signal-late")
@story("signal-timeout")
async def signal(ctx, _):
    await ctx.step("plan", gives(1))
    return await ctx.signal("go", HOUR)


@story("cancel-at-a-wait")
async def cancel_at_a_wait(ctx, _):
    await ctx.step("plan", gives(1))
    ctx.now("asked")
    return await ctx.signal("go", HOUR)


@story("cancel-while-suspended")
async def cancel_while_suspended(ctx, _):
    await ctx.step("plan", gives(1))
    return await ctx.signal("go", HOUR)


@story("cancel-in-a-step")
async def cancel_in_a_step(ctx, _):
    child = ctx.spawn("search", 1)

    async def long():
        ctx._b.ex.session.cancel = True
        return 1
    await ctx.step("long", long)
    try:
        await ctx.step("next", gives(2))
    except Failure:
        return await child.join()
    raise AssertionError("the step was begun")


@story("timers")
async def timers(ctx, _):
    await ctx.sleep(90)
    await ctx.sleep_until(datetime.datetime(2000, 1, 1, 1, tzinfo=datetime.timezone.utc))
    timer = ctx.after(HOUR)
    await ctx.select(timer, ctx.on_signal("go"))
    return await ctx.select(timer, ctx.on_signal("go"))


@story("approval")
async def approval(ctx, _):
    verdict = await ctx.approve("push", {"branch": "main"}, title="Push?")
    if verdict.granted:
        await ctx.step("push", gives(True))
    return verdict.granted


@story("callback")
@story("callback-error")
async def callback(ctx, _):
    paid = ctx.callback("paid", HOUR)
    token = await paid.token()
    await ctx.step("order", gives(token))
    return await paid.join()


@story("withdraw")
async def withdraw(ctx, _):
    paid = ctx.callback("paid", HOUR)
    await ctx.select(paid, ctx.on_signal("stop"))
    return await paid.cancel()


@story("large-data")
async def large_data(ctx, _):
    for name in ("wide", "deep", "deeper"):
        await ctx.signal(name, FOREVER)
    return "done"


@story("anew")
async def anew(ctx, input):
    order = await ctx.signal("order", HOUR)
    shipped = await ctx.step("ship", gives(order))
    return ctx.anew("one of many", {"orders": 1}) if input["orders"] == 0 else shipped


# Children


def search(ctx, *inputs):
    return [ctx.spawn("search", i) for i in inputs]


@story("children")
async def children(ctx, _):
    a, b = search(ctx, {"q": "a"}, {"q": "b"})
    tick = ctx.spawn("tick", timeout=60)
    await ctx.step("plan", gives(1))
    return await ctx.join_all(a, b, tick)


@story("another-input-is-held")
async def input_a(ctx, _):
    return await ctx.spawn("search", {"q": "a"}).join()


@story("another-input-is-held", 2)
async def input_b(ctx, _):
    return await ctx.spawn("search", {"q": "b"}).join()


@story("child-late")
async def child_late(ctx, _):
    child = ctx.spawn("search", 1)
    try:
        await child.join()
    except Failure:
        await ctx.step("instead", gives(2))
    first = await child.late()
    await ctx.signal("go", FOREVER)
    return [first, await child.late()]


@story("child-refused")
async def child_refused(ctx, _):
    a = ctx.spawn("search", 1)
    b = ctx.spawn("talk", 1, thread_id="other")
    await ctx.step("plan", gives(1))
    settled = await ctx.join_all_settled(a, b)
    return [settled.completed, settled.failed]


@story("child-refused-at-the-wait")
async def child_refused_at_the_wait(ctx, _):
    try:
        return await ctx.spawn("talk", 1, thread_id="other").join()
    except Failure:
        return await ctx.step("instead", gives(2))


@story("child-stalls")
async def child_stalls(ctx, _):
    child = ctx.spawn("search", 1, on_stall=True)
    try:
        return await child.join()
    except Failure as e:
        assert e.code == "task_stalled"
        await child.cancel()
        return await ctx.step("instead", gives(2))


@story("continue")
async def continue_(ctx, _):
    return ctx.continue_on("I am at it", ctx.spawn("report", 1), ctx.spawn("report", 2))


@story("join-all-fails")
async def join_all_fails(ctx, _):
    return await ctx.join_all(*search(ctx, 1, 2, 3))


@story("join-all-settled")
async def join_all_settled(ctx, _):
    s = await ctx.join_all_settled(*search(ctx, 1, 2, 3))
    return [s.completed, s.failed, s.timed_out, s.cancelled]


@story("none-completes")
async def none_completes(ctx, _):
    return (await ctx.select_ok(*search(ctx, 1, 2))).index


@story("select-ok")
async def select_ok(ctx, _):
    first = await ctx.select_ok(*search(ctx, 1, 2, 3))
    for f in first.remaining:
        await f.cancel()
    return [first.index, first.result]


@story("first-two-of-four")
async def first_two(ctx, _):
    return (await ctx.first_ok(2, *search(ctx, 1, 2, 3, 4))).indexes


@story("race")
async def race(ctx, _):
    fs = search(ctx, 1, 2)
    try:
        return (await ctx.race(60, *fs)).index
    except Failure as e:
        assert e.code == "wait_timeout"
        return (await ctx.race(120, *fs)).index


@story("select")
async def select(ctx, _):
    child, go, timer = ctx.spawn("search", 1), ctx.on_signal("go"), ctx.after(HOUR)
    first = await ctx.select(child, go, timer)
    return [first, await ctx.select(child, timer)]


@story("select-gives-back")
async def gives_back(ctx, _):
    await ctx.select(ctx.spawn("search", 1), ctx.on_signal("go"))
    return await ctx.signal("go", FOREVER)


@story("map-of-50")
async def map_of_50(ctx, _):
    return (await ctx.map("square", range(1, 51), limit=20)).completed


@story("map-fails")
async def map_fails(ctx, _):
    return (await ctx.map("square", range(1, 6), limit=3)).completed


@story("parallel")
async def parallel(ctx, _):
    async def twice(item):
        await turns("abc".index(item))
        return item + item
    await ctx.parallel("fetch", ["c", "a", "b"], twice)
    return await ctx.step("sum", gives(3))


@story("parallel-settled")
async def parallel_settled(ctx, _):
    def fetch(n):
        if n == 2:
            raise OUT_OF_STOCK
        if n == 3:
            raise temporary("page 3 is not there yet")
        return n
    await ctx.parallel("fetch", [1, 2, 3], fetch, limit=1, settle=True)
    return await ctx.step("sum", gives(1))


@story("retry-from-the-journal")
async def retry(ctx, _):
    await ctx.step("plan", gives(1))
    one, two = search(ctx, 1, 2)
    paid = ctx.callback("paid", HOUR)
    token = await paid.token()
    await ctx.step("order", gives(token))
    await one.join()
    await ctx.step("buy", fails(OUT_OF_STOCK) if ctx._b.ex.epoch < 30 else gives(2))
    await two.join()
    return await paid.join()


# Sagas


async def trip(ctx, rest):
    async def body():
        await ctx.step("flight", gives("LX1"), undo=lambda r: None)
        await ctx.step("hotel", gives("H7"), undo=lambda r: None)
        await rest()
    await ctx.saga("trip", body)


@story("saga-kept")
async def saga_kept(ctx, _):
    await trip(ctx, gives(None))
    return await ctx.step("mail", gives(True))


@story("saga-undone")
async def saga_undone(ctx, _):
    await trip(ctx, lambda: ctx.step("pay", fails(OUT_OF_STOCK)))


@story("saga-cancelled")
async def saga_cancelled(ctx, _):
    await trip(ctx, lambda: ctx.signal("go", HOUR))


@story("integers")
async def integers(ctx, _):
    count = await ctx.step("count", gives(9007199254740993), type=int)
    after = await ctx.spawn("next", count, type=int).join()
    data = await ctx.on_signal("go", type=int).join()
    return [count, after, data, await ctx.step("low", gives(-9223372036854775808), type=int)]


# Limits of steps


async def call_under_limits(ctx, _):
    await ctx.step("plan", gives(1))
    return await ctx.step("call", gives("text"), limit=[perdure.Limit("openai", units=3), perdure.Limit("customer", "acme")])


@story("item-and-branch-wait-for-limits")
async def item_and_branch(ctx, _):
    async def left(c):
        async def same(x):
            return x
        await c.parallel("get", "ab", same, limit=1, step_limit="site")
    await ctx.all(left=left)
    return await ctx.step("sum", gives(2))


story("step-under-limits")(call_under_limits)
story("step-waits-for-limits")(call_under_limits)


# Edits


@story("removed")
async def with_look_up(ctx, _):
    await ctx.step("look up", gives(1))
    plan = await ctx.step("plan", gives(2))
    await ctx.signal("go", FOREVER)
    return plan


@story("removed", 2)
async def without_look_up(ctx, _):
    ctx.removed("look up")
    plan = await ctx.step("plan", gives(2))
    await ctx.signal("go", FOREVER)
    return plan


async def buys(ctx, name):
    await ctx.step("plan", gives(1))
    await ctx.step(name, gives(2))
    await ctx.signal("go", FOREVER)
    return await ctx.step("mail", gives(3))


story("renamed-step-is-held")(lambda ctx, _: buys(ctx, "buy"))
story("renamed-step-is-held", 2)(lambda ctx, _: buys(ctx, "order"))
story("renamed-step-is-held", 3)(lambda ctx, _: buys(ctx, "buy"))


@story("version")
async def version_old(ctx, _):
    await ctx.step("plan", gives(1))
    await ctx.signal("go", FOREVER)
    return await ctx.step("old", gives(2))


@story("version", 2)
async def version_new(ctx, _):
    if ctx.version("two prompts", 1) == 1:
        await ctx.step("before", gives(0))
    await ctx.step("plan", gives(1))
    await ctx.signal("go", FOREVER)
    if ctx.version("new prompt", 3) == 3:
        return await ctx.step("new", gives(3))
    return await ctx.step("old", gives(2))


# The input


@dataclasses.dataclass
class By:
    name: str = ""


@dataclasses.dataclass
class CityBy:
    city: str = ""
    by: By = dataclasses.field(default_factory=By)


@dataclasses.dataclass
class CityByDays(CityBy):
    days: int = 0


@dataclasses.dataclass
class DaysBy:
    days: int = 0
    by: By = dataclasses.field(default_factory=By)


async def reads_fields(ctx, input):
    await ctx.step("plan", gives(input.city))
    await ctx.signal("go", FOREVER)
    return await ctx.step("mail", gives(input.by.name))


story("input-fields", input_type=CityBy)(reads_fields)
story("input-fields", 2, input_type=CityByDays)(reads_fields)


async def plans(ctx, input):
    await ctx.signal("go", FOREVER)
    return await ctx.step("plan", gives(getattr(input, "city", "")))


story("input-field-lost-is-held", input_type=CityBy)(plans)
story("input-field-lost-is-held", 2, input_type=DaysBy)(plans)
story("input-field-lost-is-held", 3, input_type=DaysBy, ignores=("city",))(plans)


@dataclasses.dataclass
class City:
    city: str


@dataclasses.dataclass
class CityNumber:
    city: int


async def city(ctx, input):
    await ctx.step("plan", gives(input.city))
    await ctx.signal("go", FOREVER)
    return input.city


story("input-of-another-type-is-held", input_type=City)(city)
story("input-of-another-type-is-held", 2, input_type=CityNumber)(city)
story("input-of-another-type-is-held", 3, input_type=City)(city)


# Threads


@story("message")
async def message(ctx, _):
    ctx.message("assistant", "hello")
    return await ctx.on_message().join()


@story("history")
async def history(ctx, _):
    messages = await ctx.history()
    await ctx.step("answer", gives(len(messages)))
    ctx.message("assistant", "done")
    await ctx.signal("go", FOREVER)
    return (await ctx.newest_message())["content"]


@story("report-said-anew")
async def report_said_anew(ctx, _):
    ctx.message("assistant", "I begin")
    ctx.emit("x:begun", {"b": 1, "a": 2.0})
    try:
        answer = await ctx.step("answer", fails(temporary("the model is not there yet"))
                                if ctx._b.ex.epoch < 20 else gives("42"))
    except Failure:
        ctx.message("assistant", "busy, I will try again")
        raise
    ctx.message("assistant", answer)
    ctx.delta("bye")
    return answer
