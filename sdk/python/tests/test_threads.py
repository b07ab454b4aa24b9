"""Reading the thread of a run: a replay sees what the first execution saw."""

import contextlib
import unittest

from tests.runs import Run


def says(seq, text, role="user"):
    return {"seq": seq, "role": role, "content": text}


async def newest(ctx, after):
    out = []
    async with contextlib.aclosing(ctx.newest_messages(after)) as messages:
        async for m in messages:
            out.append(m["content"])
    return out, await ctx.signal("go")


class ThreadTest(unittest.TestCase):
    def replayed(self, before, after, input, want):
        run = Run(input, thread_id="thread")
        run.thread = [*before]
        self.assertEqual(run.execute(newest)["type"], "suspend")
        run.thread += after
        run.send("signal", name="go", wait_id="signal:go#1", data=1)
        self.assertEqual(run.execute(newest).get("result"), [want, 1])

    def test_messages_that_came_later_are_not_seen(self):
        self.replayed([says(1, "a"), says(2, "b")], [says(3, "c")], 0, ["b", "a"])

    def test_a_thread_that_was_empty_stays_empty(self):
        self.replayed([], [says(1, "a")], 0, [])

    def test_messages_after_a_number(self):
        self.replayed([says(1, "a"), says(2, "b"), says(3, "c")], [says(4, "d")], 1, ["c", "b"])

    def test_no_messages_after_a_number(self):
        self.replayed([says(1, "a")], [says(2, "b")], 1, [])

    def test_a_step_asks_whether_there_is_something_unread(self):
        async def agent(ctx, after):
            return await ctx.step("look", lambda s: s.unread(after))
        for after, want in ((1, True), (2, False), (3, False)):
            run = Run(after, thread_id="t")
            run.thread = [says(1, "a"), says(2, "b"), says(3, "c", "assistant")]
            self.assertEqual(run.execute(agent).get("result"), want, after)


if __name__ == "__main__":
    unittest.main()
