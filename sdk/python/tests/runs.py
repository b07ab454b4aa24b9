"""Executes small agents against a journal in memory."""

import asyncio

from perdure.agent import Context, Execution
from tests.story_session import Session, Squares


class Run:
    """A run: its journal grows, and each execution has a higher epoch."""

    def __init__(self, input=None, **grant):
        self.journal, self.inbox, self.epoch, self.at = [], [], 0, 946684800000000
        self.input, self.more, self.seq, self.thread = input, grant, 0, []
        self.room = []

    def send(self, type, **item):
        self.seq += 1
        self.inbox.append({"seq": self.seq, "type": type, **item})

    def execute(self, agent, children=None, **options):
        """Returns the outcome."""
        self.epoch += 1
        grant = {"run_id": "run", "epoch": self.epoch, "at": self.at, "journal": list(self.journal),
                 "inbox": list(self.inbox), "input": self.input, **self.more}
        self.session = Session(grant, [], self.thread, [self.epoch * 100], children)
        self.session.posts, self.session.room = True, self.room
        execution = Execution(self.session, agent, Context, **options)
        asyncio.run(execution.run())
        self.journal += self.session.journal
        acked = {n for c in self.session.commits for n in c.get("ack", [])}
        self.inbox = [i for i in self.inbox if i["seq"] not in acked]
        return self.session.commits[-1]["outcome"]

    def keys(self):
        return [e["key"] for e in self.journal if not e["key"].startswith(("_frame:", "_said:"))]


__all__ = ["Run", "Squares"]
