"""Misuses of an agent: each holds the run, with a text that names what met."""

import asyncio
import sys
import unittest

from perdure.errors import Cancelled, Failure, Suspended
from tests.runs import Run


async def noop():
    return 1


class MisuseTest(unittest.TestCase):
    def held(self, agent, *words, code="agent_misuse", run=None):
        run = run or Run()
        outcome = run.execute(agent)
        self.assertEqual(outcome.get("error", {}).get("code"), code, outcome)
        self.assertTrue(outcome["defect"])
        for word in words:
            self.assertIn(word, outcome["error"]["message"])
        return run

    def test_every_call_inside_of_a_step(self):
        calls = {
            "step": lambda c: c.step("b", noop), "sleep": lambda c: c.sleep(1), "signal": lambda c: c.signal("s"),
            "on_signal": lambda c: c.on_signal("s"), "on_message": lambda c: c.on_message(), "after": lambda c: c.after(1),
            "approve": lambda c: c.approve("a", 1), "callback": lambda c: c.callback("a"), "spawn": lambda c: c.spawn("k"),
            "map": lambda c: c.map("k", [1]), "parallel": lambda c: c.parallel("p", [1], lambda x: x),
            "saga": lambda c: c.saga("s", noop), "all": lambda c: c.all(a=lambda c: noop()),
            "version": lambda c: c.version("v", 1), "removed": lambda c: c.removed("x"), "now": lambda c: c.now("n"),
            "uuid": lambda c: c.uuid("u"), "message": lambda c: c.message("assistant", 1), "history": lambda c: c.history(),
            "delta": lambda c: c.delta("x"), "emit": lambda c: c.emit("x:a"), "anew": lambda c: c.anew(1, 2),
            "continue_on": lambda c: c.continue_on(1), "publish": lambda c: c.publish("v", 1),
        }
        for name, make in calls.items():
            for threaded in (False, True):
                with self.subTest(call=name, threaded=threaded):
                    async def agent(ctx, _):
                        async def inside():
                            try:
                                out = make(ctx)
                                if asyncio.iscoroutine(out):
                                    await out
                            except Exception:
                                pass  # a misuse is never forgotten
                            return 1
                        try:
                            await ctx.step("outer", (lambda: inside()) if threaded else inside)
                        except Exception:
                            pass
                        return 1
                    run = self.held(agent, "inside of the step outer#1")
                    self.assertEqual(run.journal, [])

    def test_two_steps_at_once(self):
        async def agent(ctx, _):
            async def slow():
                await asyncio.sleep(0.01)
            await asyncio.gather(ctx.step("left", slow), ctx.step("right", slow))
        self.held(agent, "the step left", "the step right", "ctx.all")

    def test_calls_that_are_not_awaited(self):
        async def forgotten(ctx, _):
            ctx.step("pay", noop)

        async def forgotten_join(ctx, _):
            ctx.spawn("k").join()

        async def not_begun(ctx, _):
            asyncio.ensure_future(ctx.step("pay", noop))

        async def under_way(ctx, _):
            async def slow():
                await asyncio.sleep(0.01)
            asyncio.ensure_future(ctx.step("pay", slow))
            await asyncio.sleep(0)
        for agent, words in ((forgotten, "step pay was called and not awaited"), (forgotten_join, "join"),
                             (not_begun, "under way"), (under_way, "the step pay is under way")):
            with self.subTest(agent=agent.__name__):
                self.held(agent, words)

    def test_a_task_that_is_awaited_at_once(self):
        async def agent(ctx, _):
            first = await asyncio.ensure_future(ctx.step("a", noop))
            return first + await asyncio.wait_for(ctx.step("b", noop), 5)
        self.assertEqual(Run().execute(agent).get("result"), 2)

    def test_calls_in_a_thread(self):
        async def agent(ctx, _):
            await asyncio.to_thread(ctx.uuid, "u")
        self.held(agent, "uuid u", "in a thread")

    def test_what_ends_the_process_ends_the_attempt(self):
        async def ends():
            sys.exit(3)

        async def cancelled():
            raise asyncio.CancelledError()
        agents = [lambda c, _: ends(), lambda c, _: c.step("a", ends), lambda c, _: c.step("a", lambda: sys.exit(3)),
                  lambda c, _: c.step("a", ends, timeout=5), lambda c, _: c.all(b=lambda c: ends()),
                  lambda c, _: cancelled(), lambda c, _: c.all(b=lambda c: cancelled())]
        for n, agent in enumerate(agents):
            outcome = Run().execute(agent)
            self.assertEqual((outcome["type"], outcome.get("error", {}).get("code")), ("fail", "exit"), (n, outcome))

    def test_parents_context_in_a_branch(self):
        async def agent(ctx, _):
            async def branch(c):
                await ctx.step("a", noop)
            await ctx.all(left=branch)
        self.held(agent, "the step a", "left#1")

    def test_another_branchs_context(self):
        async def agent(ctx, _):
            contexts = []

            async def left(c):
                contexts.append(c)
                await asyncio.sleep(0.01)

            async def right(c):
                await contexts[0].step("a", noop)
            await ctx.all(left=left, right=right)
        self.held(agent, "left#1", "right#1")

    def test_suspended_is_caught_and_the_agent_goes_on(self):
        async def goes_on(ctx, _):
            try:
                await ctx.signal("go")
            except BaseException:
                pass
            await ctx.step("a", noop)

        async def returns(ctx, _):
            try:
                await ctx.signal("go")
            except Suspended:
                return 1

        async def raises(ctx, _):
            try:
                await ctx.signal("go")
            finally:
                raise ValueError("cleaned up")

        async def finally_step(ctx, _):
            try:
                await ctx.signal("go")
            finally:
                await ctx.step("clean", noop)
        for agent in (goes_on, returns, raises, finally_step):
            with self.subTest(agent=agent.__name__):
                run = self.held(agent, "perdure.Suspended")
                self.assertEqual(run.journal, [])

    def test_except_exception_lets_a_wait_pass_and_finally_runs(self):
        ran = []

        async def agent(ctx, _):
            try:
                return await ctx.signal("go")
            except Exception:
                return "caught"
            finally:
                ran.append(1)
        run = Run()
        self.assertEqual(run.execute(agent)["type"], "suspend")
        run.send("signal", name="go", wait_id="signal:go#1", data=5)
        self.assertEqual(run.execute(agent)["result"], 5)
        self.assertEqual(len(ran), 2)

    def test_context_after_its_function(self):
        async def agent(ctx, _):
            kept = []

            async def branch(c):
                kept.append(c)
            await ctx.all(left=branch)
            await kept[0].step("a", noop)
        self.held(agent, "after its function has returned")

    def test_defects_of_the_agents_own_code(self):
        for error in (NameError("x"), AttributeError("x"), TypeError("x"), ImportError("x"), UnboundLocalError("x")):
            async def agent(ctx, _):
                raise error
            with self.subTest(error=type(error).__name__):
                self.held(agent, type(error).__name__, code="panic")

    def test_the_same_in_a_step_is_an_error_of_the_step(self):
        async def agent(ctx, _):
            await ctx.step("a", lambda: None + 1)
        outcome = Run().execute(agent)
        self.assertEqual((outcome["type"], outcome["retryable"], outcome.get("defect")), ("fail", True, None))

    def test_a_code_of_an_error_is_kept_if_it_is_legal(self):
        for code, want in (("out_of_stock", "out_of_stock"), ("two words", "failed"), (7, "failed")):
            async def agent(ctx, _):
                error = ValueError("why")
                error.code = code
                raise error
            self.assertEqual(Run().execute(agent)["error"], {"code": want, "message": "why"})

    def test_values_that_are_no_json(self):
        deep = []
        for _ in range(60):
            deep = [deep]
        for value, words in ((float("nan"), "nan"), ({1: 2}, "keys are texts"), (b"x", "bytes"), ("\ud800", "surrogate"),
                             (1 << 64, "64 bits"), ({"a": [object()]}, "/a/*"), (deep, "nested"), ("x" * 1100000, "1 MiB"),
                             (float("inf"), "inf")):
            async def agent(ctx, _):
                try:
                    await ctx.step("read", lambda: value)
                except Failure as e:
                    return str(e)
            with self.subTest(value=str(value)[:30]):
                text = Run().execute(agent)["result"]
                self.assertIn("read#1", text)
                self.assertIn(words, text)

    def test_a_bad_option_fails_in_its_call(self):
        calls = [(lambda c: c.sleep("soon"), "duration"), (lambda c: c.signal("go", 1e10), "366 days"),
                 (lambda c: c.version("v", 0), "1 or more"), (lambda c: c.map("k", [1], limit=0), "limit"),
                 (lambda c: c.first_ok(3, c.spawn("k")), "first_ok"), (lambda c: c.select(), "without a future"),
                 (lambda c: c.step("a", 5), "no function"), (lambda c: c.step(5, noop), "not a text"), (lambda c: c.step("a", noop, undo=noop), "no saga"),
                 (lambda c: c.step("a", noop, about=object()), "no JSON"), (lambda c: c.join_all(5), "no future")]
        for make, words in calls:
            async def agent(ctx, _):
                out = make(ctx)
                if asyncio.iscoroutine(out):
                    await out
            with self.subTest(words=words):
                self.held(agent, words)

    def test_a_higher_version_and_what_the_page_does_not_know(self):
        async def agent(ctx, _):
            return await ctx.step("a", noop)
        for key, value, words in (("a#1", {"v": 2, "ok": 1}, "version 2"), ("_frame:1.1", {"v": 9}, "version 9"),
                                  ("_other:1", 1, "does not know"), ("a#1", 5, "damaged"), ("_frame:1.1", [], "damaged"),
                                  ("_frame:1.1", {"in": [7]}, "damaged"), ("a#1", {}, "damaged"),
                                  ("_frame:1.1", {"lines": 2}, "worker in Go")):
            with self.subTest(key=key, value=value):
                run = Run()
                run.journal, run.epoch = [{"key": key, "value": value}], 1
                self.held(agent, words, code="nondeterminism", run=run)
                self.assertEqual(len(run.journal), 1)

    def test_cancel_is_an_ordinary_error(self):
        async def agent(ctx, _):
            try:
                await ctx.step("a", noop)
            except Cancelled:
                return "cleaned up"
        run = Run(cancel=True)
        self.assertEqual(run.execute(agent), {"type": "complete", "result": "cleaned up"})
