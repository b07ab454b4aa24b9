"""The test kit is tried with agents that survive crashes, and with some that don't. For kit_test.go."""

import collections
import datetime
import os
import random
import socket

import perdure
from perdure import testing

effects = collections.defaultdict(set)


def build():
    worker = perdure.Worker("http://127.0.0.1:1", "", grace=1, announce=False)

    @worker.task("double")
    def double(n: int) -> int:
        return 2 * n

    @worker.agent("good")
    async def good(ctx, n: int):
        async def side(c):
            return await c.step("side", lambda s: effects[ctx.run_id].add(s.idempotency_key.partition("/")[2]) or 1)
        ctx.message("assistant", "I begin with %d" % n)
        price = await ctx.step("price", lambda s: effects[ctx.run_id].add(s.idempotency_key.partition("/")[2]) or n)
        twice = await ctx.spawn("double", price).join()
        sides = await ctx.all(left=side, right=side)
        verdict = await ctx.approve("pay", {"price": twice}, timeout=600)
        paid = await ctx.signal("paid", 600)
        ctx.message("assistant", "done")
        return [twice, sides, verdict.granted, paid]

    @worker.agent("random")
    async def randomly(ctx):
        await ctx.step("a", lambda: 1)
        dice = random.random()
        await ctx.step("b", lambda: 1)
        return dice

    @worker.agent("effects")
    async def with_effects(ctx):
        await ctx.step("a", lambda: 1)
        counts[ctx.run_id] += 1
        await ctx.step("b", lambda: 1)

    @worker.agent("sleepy")
    async def sleepy(ctx):
        began = ctx.now("began")
        await ctx.step("a", lambda: 1)
        await ctx.sleep(24 * 3600)
        try:
            late = await ctx.signal("paid", 3600)
        except perdure.SignalTimeout as e:
            late = type(e).__name__
        await ctx.step("b", lambda: 1)
        return [late, (ctx.now("ended") - began) // datetime.timedelta(hours=1)]

    @worker.agent("machine")
    async def machine(ctx):
        names = [os.environ.get("PERDURE_NO_SUCH_THING"), os.environ.get("HOME"), socket.gethostname()]
        with open(os.devnull, "w") as f:
            f.write("paid")
        await ctx.step("a", lambda: open("/dev/zero", "w").close() or os.environ.get("PATH"))
        return len(names)

    @worker.agent("nothing")
    async def nothing(ctx):
        return 1
    return worker


counts = collections.Counter()


def during(trial):
    trial.signal("paid", 7)
    trial.decide("approve")


def skip(trial):
    trial.skip()
    trial.skip("signal")


with testing.Server(moves_clock=True) as server:
    report = testing.crash(build(), "sleepy", server=server, during=skip, timeout=30 * 24 * 3600)
    assert report.ok and report.crashes >= 6, report
    assert report.end["result"] == ["SignalTimeout", 25], report.end
with testing.Server() as server:
    try:
        server.advance(3600)
    except RuntimeError as e:
        assert "start it with moves_clock" in str(e), e
    else:
        raise AssertionError("a clock was moved that can't be")
    report = testing.crash(build(), "good", 21, server=server, during=during, on_thread=True,
                           observe=lambda run: sorted(effects[run]))
    assert report.ok and report.crashes >= 16, report
    assert report.end["result"] == [42, {"left": 1, "right": 1}, True, 7], report.end
    assert report.end["messages"] == [("assistant", "I begin with 21"), ("assistant", "done")], report.end
    assert report.end["observed"] == ["left#1//side#1", "price#1", "right#1//side#1"], report.end
    report = testing.crash(build(), "random", server=server)
    assert not report.ok and "after commit 1" in str(report), report
    report = testing.crash(build(), "effects", server=server, observe=lambda run: counts[run])
    assert not report.ok and "'observed': 2" in str(report), report
    report = testing.crash(build(), "machine", server=server, allow=("HOME",))
    assert not report.ok and not report.differences, report
    assert report.outside == ["reads the environment variable PERDURE_NO_SUCH_THING", "reads the name of the machine",
                              "writes the file " + os.devnull], report.outside
    report = testing.crash(build(), "nothing", server=server)
    assert report.ok and report.crashes == 2, report  # its end is a commit, too
print("every crash")
