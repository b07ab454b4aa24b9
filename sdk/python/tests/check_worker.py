"""A worker for check_test.go, in the release that RELEASE names."""

import os
import sys

import perdure

release = os.environ.get("RELEASE", "good")
if release == "no worker":
    sys.exit("no database")
worker = perdure.Worker(build=release, grace=1)


def effect():
    with open(os.environ["EFFECTS"], "a") as f:
        f.write("x")
    return 1


@worker.agent("approval")
async def approval(ctx, order: int):
    async def left(c):
        await c.step("left", effect)
        await c.signal("renamed" if release == "a renamed signal in a branch" else "left", 3600)

    await ctx.step("card" if release == "a renamed step" else "charge", effect)
    if release == "fails":
        raise perdure.Failure("bug", "this release has a bug")
    if release == "does not end":
        import time
        time.sleep(1000)
    if release == "a step more":
        await ctx.step("more", effect)
    if release == "ends":
        return "done"
    await ctx.all(left=left, right=lambda c: c.step("right", effect))


@worker.agent("paid")
async def paid(ctx):
    await ctx.signal("payment" if release == "a renamed signal" else "paid", 3600)
    await ctx.step("after", effect)


if release == "does not end":
    print("the check says", perdure.check(worker, timeout=0.5)["unknown"])
    sys.exit()
worker.run()
print("the worker has ended", perdure.checking())
