"""The worker's side of an execution, played from a story."""

import asyncio
import copy

from perdure.agent import Context, Execution
from perdure.errors import Refused


class Session:
    """Answers commits as testdata/journal/README.md says, and keeps them."""

    posts = False  # whether the messages of commits are appended to the thread
    prompt = False  # what is added is committed with the next step, and never by the clock

    def __init__(self, grant, refusals, thread, uuids, children):
        self.grant, self.refusals, self.thread, self.uuids = grant, refusals, thread, uuids
        self.commits, self.journal, self.cancel = [], [], False
        self.room, self.takes = [], []  # what a question for limits is answered, and what steps have asked
        self.at = grant["at"]
        self.children = children  # gives the items of an inbox that is looked into

    async def commit(self, commit):
        await asyncio.sleep(0)
        commit = copy.deepcopy(commit)
        self.commits.append(commit)
        if len(self.commits) <= len(self.refusals) and self.refusals[len(self.commits) - 1]:
            refused = self.refusals[len(self.commits) - 1]
            raise Refused(refused["code"], refused.get("detail", ""), refused.get("field", ""))
        self.journal += commit.get("journal", [])
        out = {"children": [{"key": c["key"], "run_id": "run:" + c["key"]} for c in commit.get("children", [])]}
        first = self.grant.get("first_epoch")
        token = "token:%d:" % first if first else "token:"
        out["callbacks"] = [{"wait_id": w["id"], "token": token + w["id"]} for w in commit.get("waits", [])
                            if w["type"] == "callback"]
        out["cancel"] = self.cancel
        if self.children:
            self.children.spawned(commit)
        if self.posts:
            self.thread += [{**m, "seq": len(self.thread) + n + 1} for n, m in enumerate(commit.get("messages", []))]
        return out

    async def take_limits(self, step, limits, number):
        await asyncio.sleep(0)
        answer = self.room(step) if callable(self.room) else self.room.pop(0) if self.room else {"taken": True}
        if isinstance(answer, Exception):
            raise answer
        asked = {"step": step, "limits": limits, **({"try": number} if number else {}), "taken": bool(answer.get("taken"))}
        if not self.takes or self.takes[-1] != asked:
            self.takes.append(asked)
        return answer

    async def more(self):
        return self.children.ended() if self.children else []

    async def messages(self, after):
        for m in self.thread:
            if m["seq"] > after:
                yield m

    async def newest(self, last):
        for m in reversed(self.thread):
            if not last or m["seq"] <= last:
                yield m

    def now(self):
        return self.at

    async def sleep(self, seconds):
        self.at += round(seconds * 1e6)
        await asyncio.sleep(0)

    def uuid(self):
        self.uuids[0] += 1
        return "00000000-0000-4000-8000-%012d" % self.uuids[0]

    async def in_thread(self, f, *args):
        return f(*args)

    def call_soon(self, f, *args):
        f(*args)

    def activity(self, text):
        pass

    def stopped(self):
        return False


class Squares:
    """The children of the story map-of-50: each time the agent looks, ten that work complete."""

    def __init__(self, most, seq, live):
        self.most, self.seq, self.live, self.count = most, seq, live, 0

    def spawned(self, commit):
        self.live += [c["key"] for c in commit.get("children", [])]

    def ended(self):
        out = []
        while self.live and len(out) < 10 and self.count < self.most:
            key, self.seq, self.count = self.live.pop(0), self.seq + 1, self.count + 1
            out.append({"seq": self.seq, "type": "child", "name": key, "run_id": "run:" + key, "outcome": "completed",
                        "data": key})
        return out


def execute(agent, options, session):
    execution = Execution(session, agent, Context, **options)
    asyncio.run(execution.run())
    return session.commits
