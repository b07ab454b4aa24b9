"""What steps tell."""

import unittest

from tests.runs import Run


class StepsTest(unittest.TestCase):
    def test_what_a_model_thinks_has_lines_of_its_own(self):
        def ask(s):
            s.reasoning("hm")
            s.delta("Yes")

        async def agent(ctx, _):
            await ctx.step("ask", ask)
        run = Run()
        run.execute(agent)
        told = [e["data"] for c in run.session.commits for e in c.get("events", [])]
        self.assertEqual([(d.get("channel"), d["text"]) for d in told], [("reasoning", "hm"), (None, "Yes")])
