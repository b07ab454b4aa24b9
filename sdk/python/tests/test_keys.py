"""The keys of testdata/journal/keys.json."""

import unittest

from perdure.errors import Defect, Failure
from tests import vectors
from tests.runs import Run, Squares


async def call(ctx, sort, name):
    """Makes a call, and returns its key."""
    entries = ctx._b.ex.facts.entries
    before = set(entries)
    if sort == "step":
        await ctx.step(name, lambda: 1)
    elif sort == "child":
        f = ctx.spawn(name)
        if not f.key:
            raise f._error
        return f.key
    elif sort == "map":
        known = set(ctx._b.ex.facts.ends)
        await ctx.map(name, [1])
        new = set(ctx._b.ex.facts.ends) - known
        return next(k[:-2] for k in new if k.endswith("/0"))
    elif sort == "parallel":
        await ctx.parallel(name, [1], lambda x: x)
    elif sort == "saga":
        async def body():
            pass
        await ctx.saga(name, body)
    elif sort == "signal":
        return ctx.on_signal(name).id
    elif sort == "approval":
        return ctx.on_approval(name, 1).id
    elif sort == "callback":
        return ctx.callback(name).id
    elif sort in ("time", "uuid"):
        facts = ctx._b.ex.facts.now if sort == "time" else ctx._b.ex.facts.uuid
        known = set(facts)
        (ctx.now if sort == "time" else ctx.uuid)(name)
        return (set(facts) - known).pop()
    return (set(entries) - before).pop()


class KeysTest(unittest.TestCase):
    def test_vectors(self):
        rows = vectors.load("keys.json")
        self.assertGreater(len(rows), 30)
        for n, row in enumerate(rows):
            with self.subTest(row=n, calls=str(row["calls"])[:200]):
                self.row(row)

    def row(self, row):
        got, refused = [], []

        async def calls(ctx):
            for sort, name, *_ in row["calls"]:
                try:
                    got.append([sort, name, await call(ctx, sort, name)])
                except Defect as e:
                    refused.append(e.code)
                    raise
                except Failure:
                    refused.append("error")

        async def within(ctx, branches):
            if not branches:
                return await calls(ctx)
            await ctx.branches({branches[0]: lambda c: within(c, branches[1:])})
        Run().execute(lambda ctx, _: within(ctx, row.get("branches", [])), Squares(1000, 0, []))
        want = [c for c in row["calls"] if len(c) == 3]
        self.assertEqual(got, want)
        self.assertEqual(refused, [row["refused"]] if "refused" in row else [])
