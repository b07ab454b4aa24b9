"""Every story of the journal, cut after every entry, is replayed and compared commit by commit."""

import copy
import unittest

from perdure.canonical import canonical
from tests import vectors
from tests.story_agents import agents
from tests.story_session import Session, Squares, execute


def agent_of(name, number):
    """Returns the build that makes an execution, from 1."""
    out = None
    for builds, f, options in agents[name]:
        if builds[0] <= number:
            out = f, options
    return out


def values(commits, words):
    """Makes commits comparable: texts that are the library's own are left out."""
    out = copy.deepcopy(commits)
    for c in out:
        c.pop("refused", None)
        errors = [c.get("outcome", {}).get("error")]
        errors += [e["value"].get("error") for e in c.get("journal", []) if isinstance(e["value"], dict)]
        for e in errors:
            if e and e["message"] not in words:
                e["message"] = "…"
    return out


def rekeyed(commits, epoch):
    out, numbers = copy.deepcopy(commits), {}
    for c in out:
        for e in c.get("journal", []):
            for sort in ("_frame", "_said"):
                if e["key"].startswith(sort + ":"):
                    numbers[sort] = numbers.get(sort, 0) + 1
                    e["key"] = "%s:%d.%d" % (sort, epoch, numbers[sort])
        for w in c.get("waits", []):
            if w["id"].startswith("_again:"):
                w["id"] = "_again:%d" % epoch
        waits = c.get("outcome", {}).get("waits", [])
        waits[:] = ["_again:%d" % epoch if w.startswith("_again:") else w for w in waits]
        error = c.get("outcome", {}).get("error", {})
        if error.get("cause_key", "").startswith("_frame:") and "_frame" in numbers:
            error["cause_key"] = "_frame:%d.%d" % (epoch, numbers["_frame"])
    return out


class Story:
    def __init__(self, test, name, folder):
        self.test, self.name = test, name
        self.story = vectors.load("%s/%s.json" % (folder, name))
        self.words = canonical(self.story["agent"]) + canonical([x["grant"] for x in self.story["executions"]])
        self.words += "".join(r.get("detail", "") for x in self.story["executions"] for c in x["commits"]
                              for r in [c.get("refused", {})])
        self.starts, self.ends, self.items, self.threads, self.uuids = [], [], [], [], []
        journal, items, thread, uuids = [], {}, [], 0
        for x in self.story["executions"]:
            if x["grant"]["journal"] == 0:
                items = {}
            journal = journal[:x["grant"]["journal"]]
            items = {**items, **{i["seq"]: i for i in x["grant"]["inbox"]}}
            thread = thread + x["grant"].get("thread", [])
            self.starts.append(list(journal))
            self.items.append(items)
            self.threads.append(list(thread))
            self.uuids.append(uuids)
            for c in x["commits"]:
                if "refused" not in c:
                    journal = journal + c.get("journal", [])
                    uuids += sum(len(e["value"].get("uuid", {})) for e in c.get("journal", [])
                                 if e["key"].startswith("_frame:"))
            self.ends.append(list(journal))

    def run(self, n, grant, journal, want, thread=None, takes=()):
        """Executes the build of an execution, and compares its commits. Returns the journal then."""
        grant = {**grant, "run_id": "run", "journal": journal, "thread_id": "thread" if self.story.get("thread") else ""}
        grant.setdefault("input", self.story.get("input"))
        grant["inbox"] = [self.items[n][i] if isinstance(i, int) else i for i in grant["inbox"]]
        squares = None
        if self.name == "map-of-50":
            squares = self.squares(n, journal, grant)
        session = Session(grant, [c.get("refused") for c in want], self.threads[n] if thread is None else thread,
                          [sum(len(e["value"].get("uuid", {})) for e in journal if e["key"].startswith("_frame:"))],
                          squares)
        if takes:
            session.room = lambda step: {"taken": next(x["taken"] for x in takes if x["step"] == step)}
        f, options = agent_of(self.name, n + 1)
        got = execute(f, options, session)
        self.test.assertEqual(values(got, self.words), values(want, self.words))
        self.test.assertEqual(session.takes, list(takes))
        for c in got:
            for e in c.get("journal", []):
                if isinstance(e["value"], dict) and "aside" in e["value"]:
                    self.test.assertEqual(next(iter(e["value"])), "aside")
        return journal + session.journal

    def squares(self, n, journal, grant):
        count = max([m["square#1"]["n"] for e in journal for m in [e["value"].get("mapped", {})] if m] or [0])
        ended = {i["name"] for e in journal for i in e["value"].get("in", []) if i["type"] == "child"}
        items = {i["name"] for i in grant["inbox"] if i["type"] == "child"}
        live = ["square#1/%d" % i for i in range(count) if "square#1/%d" % i not in ended | items]
        seqs = [i["seq"] for e in journal for i in e["value"].get("in", [])] + [i["seq"] for i in grant["inbox"]]
        return Squares(20 - len(ended) if n == 0 else 50, max(seqs or [0]), live)

    def all(self):
        for n, x in enumerate(self.story["executions"]):
            with self.test.subTest(story=self.name, execution=n + 1):
                self.run(n, x["grant"], self.starts[n], x["commits"], takes=x.get("takes", ()))
        for cut in self.story["cuts"]:
            with self.test.subTest(story=self.name, cut=cut["after"], entry=cut["entry"]):
                self.cut(cut)

    def cut(self, cut):
        executions = self.story["executions"]
        n = next(n for n, x in enumerate(executions) if x["grant"]["epoch"] == cut["grant"]["epoch"] - 1)
        journal = self.ends[n][:cut["after"]]
        self.test.assertEqual(journal[-1]["key"], cut["entry"])
        want = cut.get("commits")
        if want is None:
            want = rekeyed(executions[n]["commits"][cut["like"] - 1:], cut["grant"]["epoch"])
        journal = self.run(n, cut["grant"], journal, want, takes=cut.get("takes", ()))
        for offset, x in enumerate(cut.get("then", [])):
            self.test.assertEqual(len(journal), x["grant"]["journal"])
            journal = self.run(n + 1 + offset, x["grant"], journal, x["commits"], x["grant"].get("thread"),
                               x.get("takes", ()))


FOLDERS = ("stories", "limits", "integers")


class StoriesTest(unittest.TestCase):
    maxDiff = 4000

    def test_there_is_an_agent_for_each(self):
        self.assertEqual(sorted(agents), sorted(name for folder in FOLDERS for name in vectors.stories(folder)))


def add(name, folder):
    setattr(StoriesTest, "test_" + name.replace("-", "_"), lambda self: Story(self, name, folder).all())


for _folder in FOLDERS:
    for _name in vectors.stories(_folder):
        add(_name, _folder)
