"""A worker for sdk_test.go. Each call of a step's function is a line of the file LOG."""

import os
import time

import perdure

worker = perdure.Worker(grace=float(os.environ.get("GRACE", "5")))


def note(text):
    with open(os.environ["LOG"], "a") as f:
        f.write(text + "\n")


@worker.task("look", timeout=60)
def look(place: str) -> str:
    return "found in " + place


@worker.task("count", retry={"max_attempts": 1})
def count(to: int, task: perdure.Task) -> int:
    for n in range(to):
        task.heartbeat("at %d" % n)
        if task.wait(0.05):
            raise RuntimeError("stopped at %d" % n)
    return to


@worker.agent("order")
async def order(ctx: perdure.Context, item: str) -> dict:
    def step(name):
        def f(s):
            note(name + " " + s.idempotency_key.partition("/")[2])
            until = os.environ.get("HOLD_" + name)
            while until and not os.path.exists(until):
                time.sleep(0.02)
            return name
        return f
    await ctx.step("price", step("price"))
    found = await ctx.spawn("look", item).join()
    await ctx.step("book", step("book"))
    paid = await ctx.signal("paid", 60)
    both = await ctx.all(a=lambda c: c.step("x", step("left")), b=lambda c: c.step("x", step("right")))
    many = await ctx.map("look", ["a", "b"])
    return {"found": found, "paid": paid, "both": both, "many": many.results}


@worker.agent("quota")
async def quota(ctx: perdure.Context) -> str:
    def first(s):
        note("first")
        s.close_limit("model", 3600, reason="429")

    await ctx.step("first", first, limit="model")
    await ctx.step("second", lambda: note("second"), limit=perdure.Limit("model", units=2))
    return "said"


worker.run()
