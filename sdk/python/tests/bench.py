"""Measures how long a journal of 10 000 steps takes to replay: python3 -m tests.bench, in sdk/python."""

import asyncio
import time

from perdure.agent import Context, Execution
from tests.story_session import Session

STEPS = 10_000


async def noop():
    return 1


async def agent(ctx, _):
    for _ in range(STEPS):
        await ctx.step("work", noop)
    return await ctx.signal("go")


journal = [{"key": "work#%d" % (n + 1), "value": {"ok": {"n": n, "text": "result %d" % n}}} for n in range(STEPS)]
took = []
for _ in range(7):
    session = Session({"run_id": "run", "epoch": 2, "at": 0, "journal": journal, "inbox": []}, [], [], [0], None)
    began = time.process_time()
    asyncio.run(Execution(session, agent, Context).run())
    took.append(time.process_time() - began)
    assert session.commits[-1]["outcome"]["type"] == "suspend", session.commits[-1]
print("a journal of %d steps is replayed in %.0f ms of a processor (median of %d)" % (STEPS, sorted(took)[3] * 1000, len(took)))
