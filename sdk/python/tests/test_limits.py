"""Limits of steps: questions before a function is called, waits in place and with a suspend, closures."""

import asyncio
import unittest
from unittest import mock

import perdure
from perdure.agent import execution, limits
from perdure.errors import Failure, Refused
from tests.runs import Run

OPEN, FULL = {"taken": True}, {"taken": False}
LATER = {"taken": False, "retry_ms": 2500}


def asked(run):
    return [(t["step"], t["taken"]) for t in run.session.takes]


class LimitsTest(unittest.TestCase):
    def run_once(self, agent, room=(), run=None):
        run = run or Run()
        run.room = room if callable(room) else list(room)
        return run, run.execute(agent)

    def suspended(self, outcome, *waits):
        self.assertEqual(outcome, {"type": "suspend", "waits": list(waits)})

    def test_a_short_wait_is_waited_out_in_place(self):
        called = []

        async def agent(ctx, _):
            return await ctx.step("call", lambda: called.append(1) or 7, limit="openai")
        run, outcome = self.run_once(agent, [FULL, {"taken": False, "retry_ms": 1500}, OPEN])
        self.assertEqual((outcome.get("result"), called), (7, [1]))
        self.assertEqual(run.session.at - run.at, 1_600_000, "the step waits as long as it is told")
        self.assertEqual(run.session.takes[0], {"step": "call#1", "limits": [{"name": "openai"}], "taken": False})

    def test_a_long_wait_suspends_at_once(self):
        async def agent(ctx, _):
            return await ctx.step("call", lambda: 7, limit=perdure.Limit("openai", "acme", 3))
        run, outcome = self.run_once(agent, [LATER])
        self.suspended(outcome, "limit:call#1:1")
        self.assertEqual(run.session.at, run.at, "it waits in place for what it was told is too long")
        self.assertEqual(run.session.commits[-1]["waits"], [
            {"id": "limit:call#1:1", "type": "limit", "name": "call#1", "timeout": "never",
             "limits": [{"name": "openai", "key": "acme", "units": 3}]}])
        run.send("limit", wait_id="limit:call#1:1", name="call#1", outcome="satisfied")
        run, outcome = self.run_once(agent, [LATER], run)  # somebody was faster
        self.suspended(outcome, "limit:call#1:2")
        self.assertEqual(run.inbox, [], "the end of the wait is acknowledged")
        run, outcome = self.run_once(agent, [OPEN], run)
        self.assertEqual((outcome.get("result"), run.keys()), (7, ["call#1"]))
        run, outcome = self.run_once(agent, [Refused("internal")], Run())
        run.journal = [{"key": "call#1", "value": {"ok": 8}}]
        self.assertEqual(run.execute(agent).get("result"), 8)
        self.assertEqual(run.session.takes, [], "a recorded step takes nothing")

    def test_bad_values_are_found_before_anything_is_sent(self):
        for limit, why in ((5, "is no limit"), ([5], "is no limit"), ("", "its name"), ("kind:x", "kind:"),
                           (["a", "b", "c", "d", "e"], "at most 4"), (["a", "a"], "named twice"),
                           (perdure.Limit("a", "x" * 201), "201 bytes"), (perdure.Limit("a", "\n"), "control"),
                           (perdure.Limit("a", 5), "no text"), (perdure.Limit("a", units=-1), "its units"),
                           (perdure.Limit("a", units=True), "its units"),
                           (perdure.Limit("a", units=1_000_001), "its units"), (perdure.Limit("a", "\ud800"), "surrogate")):
            async def step(ctx, _):
                await ctx.step("call", lambda: self.fail("the function is called"), limit=limit)

            async def parallel(ctx, _):
                await ctx.parallel("call", [1], lambda x: self.fail("the function is called"), step_limit=limit)
            for agent in (step, parallel):
                run, outcome = self.run_once(agent)
                error = outcome.get("error", {})
                self.assertEqual((outcome.get("defect"), error.get("code")), (True, "agent_misuse"), (limit, outcome))
                self.assertIn(why, error["message"])
                self.assertEqual((run.session.takes, run.keys()), ([], []), limit)

    def test_a_limit_that_is_not_there_is_an_error_of_the_step(self):
        async def agent(ctx, _):
            try:
                await ctx.step("call", lambda: self.fail("the function is called"), limit="nowhere")
            except Failure as e:
                return await ctx.step("say", lambda: e.code)
        run, outcome = self.run_once(agent, [Refused("unknown_limit", "no limit nowhere")])
        self.assertEqual((outcome.get("result"), run.keys()), ("unknown_limit", ["call#1", "say#1"]))

    def test_a_further_try_takes_units_again(self):
        tries = []

        def call():
            tries.append(1)
            if len(tries) < 3:
                raise RuntimeError("busy")
            return len(tries)

        async def agent(ctx, _):
            return await ctx.step("call", call, limit="openai", retries=2)
        run, outcome = self.run_once(agent, [OPEN, FULL, OPEN, Refused("unknown_limit")])
        self.assertEqual(outcome.get("result"), 3)
        self.assertEqual([t.get("try", 0) for t in run.session.takes], [0, 1, 1])

    def test_items_suspend_the_run_when_all_of_them_wait(self):
        async def agent(ctx, _):
            return (await ctx.parallel("get", "abcd", lambda x: x + x, limit=2, step_limit="site")).results
        run, outcome = self.run_once(agent, lambda step: {"taken": step == "get#1/0"})
        self.suspended(outcome, "limit:get#1/1:1", "limit:get#1/2:1")
        self.assertEqual(run.keys(), ["get#1/0"])
        for n in (1, 2):
            run.send("limit", wait_id="limit:get#1/%d:1" % n, name="get#1/%d" % n, outcome="satisfied")
        run, outcome = self.run_once(agent, run=run)
        self.assertEqual(outcome.get("result"), ["aa", "bb", "cc", "dd"])
        self.assertEqual(run.inbox, [])

    def test_a_branch_waits_while_another_one_works(self):
        async def agent(ctx, _):
            async def left(c):
                return await c.step("call", lambda: 1, limit="openai")

            async def right(c):
                return await c.signal("go")
            return await ctx.all(left=left, right=right)
        run, outcome = self.run_once(agent, lambda _: FULL)
        self.suspended(outcome, "left#1//limit:call#1:1", "right#1//signal:go#1")
        run.send("signal", name="go", wait_id="right#1//signal:go#1", data=2)
        run, outcome = self.run_once(agent, lambda _: FULL, run)
        self.suspended(outcome, "left#1//limit:call#1:2")
        run, outcome = self.run_once(agent, run=run)
        self.assertEqual(outcome.get("result"), {"left": 1, "right": 2})

    def test_a_branch_asks_again_while_another_one_works(self):
        with mock.patch.object(limits, "LOOK", 0.001), mock.patch.object(execution, "WATCH", 0.001):
            asks = []

            async def agent(ctx, _):
                free = asyncio.Event()

                def room(step):
                    asks.append(step)
                    if len(asks) == 3:
                        free.set()
                    return OPEN if free.is_set() else LATER
                run.session.room = room

                async def left(c):
                    return await c.step("call", lambda: 1, limit="openai")

                async def right(c):
                    return await c.step("work", lambda: asyncio.wait_for(free.wait(), 10))
                return await ctx.all(left=left, right=right)
            run = Run()
            outcome = run.execute(agent)
        self.assertEqual((outcome.get("result"), asks), ({"left": 1, "right": True}, ["left#1//call#1"] * 3))

    def test_an_item_asks_again_while_another_one_works(self):
        asks = []

        async def agent(ctx, _):
            free = asyncio.Event()

            def room(step):
                asks.append(step)
                if len(asks) == 4:
                    free.set()
                return OPEN if free.is_set() or step == "get#1/0" else LATER
            run.session.room = room

            async def get(x):
                await asyncio.wait_for(free.wait(), 10)
                return x
            return (await ctx.parallel("get", "ab", get, step_limit="site")).results
        run = Run()
        outcome = run.execute(agent)
        self.assertEqual((outcome.get("result"), asks), (["a", "b"], ["get#1/0"] + ["get#1/1"] * 3))

    def test_a_request_to_stop_ends_a_wait_in_place(self):
        async def agent(ctx, _):
            def room(step):
                ctx._b.ex.cancelled = True
                return FULL
            run.session.room = room
            await ctx.step("call", lambda: self.fail("the function is called"), limit="openai")
        run = Run()
        self.assertEqual(run.execute(agent), {"type": "cancelled"})
        self.assertEqual(len(run.session.takes), 1)

    def test_a_step_closes_a_limit(self):
        def call(s):
            s.close_limit("openai", 90, reason="429")
            s.close_limit("openai", 60, reason="429")
            s.close_limit("openai", 60, key="acme")
            raise RuntimeError("429")

        async def agent(ctx, _):
            await ctx.step("call", call)
        run, outcome = self.run_once(agent)
        self.assertEqual(outcome["error"]["message"], "429")
        self.assertEqual([c["limits"] for c in run.session.commits if "limits" in c], [
            [{"name": "openai", "closed_for": "1m0s", "reason": "429"},
             {"name": "openai", "key": "acme", "closed_for": "1m0s"}]])

    def test_a_closure_is_checked_in_its_call(self):
        for name, closed_for in (("", 5), ("kind:x", 5), ("x", 0), ("x", -1), ("x", "5s"), ("x", 367 * 86400)):
            def call(s):
                with self.assertRaises(ValueError):
                    s.close_limit(name, closed_for)
                return True

            async def agent(ctx, _):
                return await ctx.step("call", call)
            run, outcome = self.run_once(agent)
            self.assertEqual(outcome.get("result"), True, (name, closed_for))
            self.assertFalse(any("limits" in c for c in run.session.commits), (name, closed_for))


if __name__ == "__main__":
    unittest.main()
