"""Waits that are over in the inbox: the agent has to ask for them, as for what is recorded."""

import unittest

from tests.runs import Run


async def noop():
    return 1


class WaitsTest(unittest.TestCase):
    def asleep(self, agent):
        run = Run()
        self.assertEqual(run.execute(agent)["type"], "suspend")
        return run

    def woken(self):
        async def before(ctx, _):
            return await ctx.signal("go")
        run = self.asleep(before)
        run.send("signal", name="go", wait_id="signal:go#1", data=5)
        return run

    def test_a_step_before_the_wait_is_held(self):
        async def after(ctx, _):
            await ctx.step("new", noop)
            return await ctx.signal("go")
        run = self.woken()
        outcome = run.execute(after)
        self.assertEqual(outcome.get("error", {}).get("code"), "nondeterminism", outcome)
        self.assertIn("the wait signal:go#1", outcome["error"]["message"])
        self.assertNotIn("new#1", run.keys())

    def test_a_wait_that_is_gone_is_held_at_the_end(self):
        async def after(ctx, _):
            return 1
        outcome = self.woken().execute(after)
        self.assertIn("the wait signal:go#1", outcome["error"]["message"])

    def test_a_wait_that_is_declared_removed(self):
        for name in ("go", "signal:go"):
            async def after(ctx, _):
                ctx.removed(name)
                return 1
            self.assertEqual(self.woken().execute(after).get("result"), 1, name)

    def test_an_answer_for_which_nobody_asks_again(self):
        async def agent(ctx, _):
            ctx.callback("paid")
            return await ctx.signal("go")
        run = self.asleep(agent)
        run.send("callback", wait_id="callback:paid#1", data={"result": 7})
        run.send("signal", name="go", wait_id="signal:go#1", data=5)
        self.assertEqual(run.execute(agent).get("result"), 5)

    def test_a_select_whose_loser_came_too(self):
        async def agent(ctx, _):
            first = await ctx.select(ctx.on_signal("a"), ctx.on_signal("b"))
            await ctx.step("next", noop)
            return [first, await ctx.signal("b")]
        run = self.asleep(agent)
        run.send("signal", name="a", wait_id="signal:a#1", data=1)
        run.send("signal", name="b", wait_id="signal:b#1", data=2)
        self.assertEqual(run.execute(agent).get("result"), [0, 2])

    def test_a_race_that_is_late(self):
        async def agent(ctx, _):
            first = await ctx.race(60, ctx.on_signal("a"))
            await ctx.step("next", noop)
            return first.index
        run = self.asleep(agent)
        run.send("signal", name="a", wait_id="signal:a#1", data=1)
        run.send("timer", wait_id=next(w for w in run.session.commits[-1]["outcome"]["waits"] if "race" in w))
        self.assertEqual(run.execute(agent).get("result"), 0)


if __name__ == "__main__":
    unittest.main()
